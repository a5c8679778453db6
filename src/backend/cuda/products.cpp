#include "backend/cuda/products.h"

#include <optional>
#include <utility>

#include "backend/cuda/kernels/leaf_sums.h"
#include "backend/cuda/kernels/product_batch.h"
#include "backend/cuda/kernels/product_few.h"
#include "backend/cuda/kernels/product_floats.h"
#include "backend/cuda/kernels/product_many.h"
#include "backend/cuda/kernels/product_mma.h"
#include "backend/cuda/kernels/product_row.h"
#include "backend/cuda/kernels/product_warps.h"
#include "backend/cuda/kernels/round_many.h"
#include "backend/cuda/kernels/router.h"
#include "backend/cuda/kernels/rows.h"
#include "backend/cuda/kernels/rows_few.h"
#include "backend/cuda/runtime/status.h"
#include "backend/cuda/select/division.h"
#include "base/check.h"
#include "ops/leaves.h"

namespace tercet::cuda {
namespace {

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

bool same_rounding(const Weights& a, const Weights& b) {
  return a.group == b.group && (a.planes == 0) == (b.planes == 0);
}

}  // namespace

ChooseParams choice_of(uint8_t* failed, const float* logits, int64_t rows, int32_t experts, Vector bias,
                       RouterParams params, Routes routes) {
  ChooseParams choose{};
  choose.logits = logits;
  choose.bias = bias.data;
  choose.chosen_experts = routes.experts;
  choose.weights = routes.weights;
  choose.failed = failed;
  choose.rows = narrow(rows);
  choose.experts = experts;
  choose.chosen = params.chosen;
  choose.normalise = params.normalise ? 1 : 0;
  choose.scaling = params.scaling;
  return choose;
}

Products::Products(Launcher& launcher, int64_t& held, const DeviceTraits& device)
    : launcher_(launcher),
      device_(device),
      program_(launcher, held, device),
      norm_planes_(launcher, held),
      norm_units_(launcher, held),
      norm_halves_(launcher, held),
      norm_sums_(launcher, held),
      unfit_(launcher, held),
      wholes_(launcher, held),
      whole_units_(launcher, held),
      numbers_(launcher, held),
      units_(launcher, held),
      planes_(launcher, held),
      plane_units_(launcher, held),
      halves_(launcher, held),
      sums_(launcher, held),
      leaves_(launcher, held),
      rest_(launcher, held),
      y_(launcher, held),
      sorted_(launcher, held),
      items_(launcher, held),
      ticket_(sizeof(uint32_t), held) {
  check(cudaMemsetAsync(ticket_.get(), 0, sizeof(uint32_t), launcher.stream()));
}

void Products::flush() {
  const StepProgram::Left left = program_.finish();
  if (left.norm) run_norm(left.norm->x, {}, left.norm->weight, left.norm->eps, left.norm->h);
  if (left.choose) choose_experts(launcher_, *left.choose);
}

bool Products::collected(bool taken) {
  if (taken) {
    forget();
  } else {
    flush();
  }
  return taken;
}

void Products::norm(Rows x, Rows z, Vector weight, float eps, Rows h) {
  // The program has no part in what that norm sums up.
  const bool settles = unsettled_.z != nullptr || unsummed_.y != nullptr;
  if (!collected(!settles && program_.norm(x, z, weight, eps, h))) run_norm(x, z, weight, eps, h);
}

void Products::run_norm(Rows x, Rows z, Vector weight, float eps, Rows h) {
  NormParams p{};
  const bool sums = weight.data != nullptr && z.data != nullptr && unsettled_.z == z.data &&
                    unsettled_.rows == x.rows && unsettled_.n == x.cols;
  if (sums) {  // choose_sum() has seen to it that norm_and_round() runs
    p.experts = unsettled_.y;
    p.route_weights = unsettled_.weights;
    p.shared = unsettled_.shared;
    p.chosen = unsettled_.chosen;
    unsettled_ = {};
  }
  const NormPlan held = plan_norm(device_, x.rows, x.cols, false);
  if (weight.data != nullptr && z.data != nullptr && held.held && z.cols == x.cols) {
    const LeafSumParams leaves = take_leaves(z);
    p.parts = leaves.parts;
    p.leaf_stride = leaves.leaf_stride;
    p.leaves_of_z = leaves.leaves;
  }
  settle();
  written(x);
  p.x = x.data;
  p.z = z.data;
  p.weight = weight.data;
  p.h = h.data;
  p.ldx = p.ldz = p.ldh = x.cols;
  p.rows = narrow(x.rows);
  p.k = narrow(x.cols);
  p.eps = eps;
  const bool may_route = z.data != nullptr && !sums;  // after the experts the next layer's attention comes
  const NormPlan plan = weight.data == nullptr ? NormPlan() : plan_norm(device_, x.rows, x.cols, may_route);
  TERCET_CHECK(plan.held || !sums);
  if (plan.planes) p.rounded = room(norm_planes_, norm_units_, x.rows, x.cols, Form::planes);
  if (plan.halves) {
    const int64_t rows = plan.rest ? 2 * x.rows : x.rows;
    const Rounded more = room(norm_halves_, norm_sums_, rows, x.cols, Form::halves);
    p.rounded.halves = more.halves;
    p.rounded.sums = more.sums;
    p.rounded.leaf_units = more.leaf_units;
  }
  if (plan.rounds()) {
    p.unfit = unfit_.get<uint8_t>(x.rows);
    p.leaves = narrow(leaf_count(x.cols / kBlock));
    p.rest = plan.rest ? 1 : 0;
  }
  if (plan.held) {
    norm_and_round(launcher_, p);
  } else {
    cuda::norm(launcher_, p);
  }
  if (weight.data == nullptr) return;
  written(h);
  if (plan.rounds()) held_ = {h, plan.planes, plan.halves, plan.rest, true};
}

void Products::norm_into(const float* x, int64_t ldx, int64_t rows, Vector weight, float eps, float* h,
                         int64_t ldh) {
  settle();
  NormParams p{};
  p.x = const_cast<float*>(x);  // written only where there is a z
  p.weight = weight.data;
  p.h = h;
  p.ldx = ldx;
  p.ldh = ldh;
  p.rows = narrow(rows);
  p.k = narrow(weight.size);
  p.eps = eps;
  cuda::norm(launcher_, p);
}

void Products::written(Rows rows) {
  const Rows& held = held_.rows;
  const float* end = rows.data + rows.rows * rows.cols;
  const float* held_end = held.data + held.rows * held.cols;
  if (rows.data < held_end && held.data < end) held_ = {};
}

Rounded Products::room_for(Rows rows) {
  held_ = {};
  return room(norm_halves_, norm_sums_, rows.rows, rows.cols, Form::halves);
}

LeafSumParams Products::take_leaves(Rows y) {
  const bool all =
      unsummed_.y == y.data && unsummed_.rows == y.rows && unsummed_.n == y.cols && unsummed_.ldy == y.cols;
  return all ? std::exchange(unsummed_, {}) : LeafSumParams{};
}

void Products::settle() {
  if (unsettled_.z != nullptr) combine(launcher_, std::exchange(unsettled_, {}));
  sum_leaves();
  const Waiting own = std::exchange(waiting_, {});
  if (own.choose.logits != nullptr) choose_experts(launcher_, own.choose);
  if (own.gate_up != nullptr) run_gate_up(own.failed, own.h, *own.gate_up, own.a);
  if (own.down != nullptr) run_linear(own.failed, own.a, nullptr, *own.down, own.shared);
  sum_leaves();
}

void Products::sum_leaves() {
  if (unsummed_.y != nullptr) add_leaves(launcher_, std::exchange(unsummed_, {}));
}

Rounded Products::room(Scratch& numbers, Scratch& units, int64_t rows, int64_t k, Form form) {
  Rounded out;
  const int64_t groups = k / kBlock;
  if (form == Form::floats) {
    out.numbers = numbers.get<int16_t>(rows * k);
    out.units = units.get<UnitSum>(rows * groups);
  } else if (form == Form::planes) {
    out.planes = numbers.get<int8_t>(rows * 2 * k);
    out.units = units.get<UnitSum>(rows * groups);
  } else {
    out.halves = numbers.get<uint16_t>(rows * k);
    out.sums = units.get<float>(rows * (groups + leaf_count(groups)));
    out.leaf_units = out.sums + rows * groups;
  }
  return out;
}

namespace {

/// The rounding of `count` rows in groups of 64, but for where to.
RoundParams rounding_of(Rows h, int64_t count, uint8_t* failed, int64_t flag_div) {
  RoundParams p{};
  p.x = h.data;
  p.failed = failed;
  p.weights.group = kBlock;
  p.weights.planes = 1;
  p.weights.leaves = narrow(leaf_count(h.cols / kBlock));
  p.ldx = h.cols;
  p.rows = narrow(count);
  p.k = narrow(h.cols);
  p.x_div = 1;
  p.flag_div = narrow(flag_div);
  p.units_per_row = narrow(h.cols / kBlock);
  return p;
}

}  // namespace

Products::Ready Products::round(Rows h, const int32_t* ids, int64_t count, uint8_t* failed, int64_t flag_div,
                                Form form) {
  if (form == Form::floats) {
    RoundParams p = rounding_of(h, count, failed, flag_div);
    p.ids = ids;
    p.weights.planes = 0;
    p.rounded = room(wholes_, whole_units_, count, h.cols, form);
    round_rows(launcher_, p);
    return {p.rounded, nullptr, nullptr};
  }
  const bool planes = form == Form::planes;
  if (held_.holds(h, form)) {
    Scratch& numbers = planes ? norm_planes_ : norm_halves_;
    const int64_t rows = held_.rest && !planes ? 2 * held_.rows.rows : held_.rows.rows;
    return {room(numbers, planes ? norm_units_ : norm_sums_, rows, h.cols, form), ids,
            held_.flags ? unfit_.get<uint8_t>(0) : nullptr};
  }
  RoundParams p = rounding_of(h, count, failed, flag_div);
  p.ids = ids;
  p.rounded = room(planes ? planes_ : halves_, planes ? plane_units_ : sums_, count, h.cols, form);
  run_rounding(p, form);
  return {p.rounded, nullptr, nullptr};
}

Rounded Products::round_beside(Rows a, Rows beside, uint8_t* failed, int64_t flag_div) {
  RoundParams p = rounding_of(a, a.rows + beside.rows, failed, flag_div);
  p.beside = beside.data;
  p.first_beside = narrow(a.rows);
  p.rounded = room(halves_, sums_, p.rows, a.cols, Form::halves);
  run_rounding(p, Form::halves);
  return p.rounded;
}

void Products::run_rounding(const RoundParams& p, Form form) {
  switch (choose_rounding(device_, p.rows, p.k, form == Form::halves).kernel) {
    case RoundKernel::plain:
      return round_rows(launcher_, p);
    case RoundKernel::held:
      return round_held_rows(launcher_, p);
    case RoundKernel::warps:
      return round_many(launcher_, p);
  }
}

void Products::run(const FewProductParams& p, ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::row:
      return product_row(launcher_, p);
    case ProductKernel::few:
      return product_few(launcher_, p);
    case ProductKernel::many:
    case ProductKernel::mma:
    case ProductKernel::floats:
      return run_many(p, kernel, false);
    case ProductKernel::plain:
    case ProductKernel::warps:
      TERCET_CHECK(!any_form(kernel));  // they have parameters of their own
  }
}

void Products::run_any_form(const ProductParams& p) {
  if (choose_any_form(device_).kernel == ProductKernel::warps) return product_warps(launcher_, p);
  product(launcher_, p);
}

LeafSumParams Products::part_leaves(FewProductParams& p, int64_t leaf_stride) {
  LeafSumParams sum{};
  p.leaf_stride = leaf_stride;
  if (p.leaf_stride == 0) return sum;
  sum.parts = leaves_.get<float>(p.leaf_stride * p.weights.leaves);
  sum.y = std::exchange(p.y, leaves_.get<float>(0));
  sum.ldy = std::exchange(p.ldy, p.weights.n);
  sum.leaf_stride = p.leaf_stride;
  sum.rows = p.rows;
  sum.n = p.weights.n;
  sum.leaves = p.weights.leaves;
  sum.swiglu = std::exchange(p.swiglu, 0);
  return sum;
}

LeafSumParams Products::queue_many(FewProductParams p, ProductKernel kernel) {
  const bool swiglu = p.swiglu != 0;
  if (kernel == ProductKernel::many && takes_leaves(device_, p.weights, p.rows)) {
    const LeafSumParams sum = part_leaves(p, p.rows * p.weights.n);
    product_leaves(launcher_, p);
    return sum;
  }
  const int processors = device_.processors;
  const auto part = [&](int together, int parts) {
    return part_leaves(p, leaf_floats(p.weights, p.rows, together, parts, processors));
  };
  if (kernel == ProductKernel::mma) {
    const int together = mma_rows_together(p.weights, p.rows);
    const LeafSumParams sum = part(together, mma_parts(p.weights, p.swiglu));
    product_mma(launcher_, p, together, processors);
    return sum;
  }
  if (kernel == ProductKernel::floats) {
    const int together = float_rows_together(p.rows);
    LeafSumParams sum{};
    if (together == kFloatRows) sum = part(together, block_parts(p.weights, p.swiglu, kFloatBlockTiles));
    product_floats(launcher_, p, together, processors);
    return sum;
  }
  const int together = rows_together(p.weights, swiglu, p.rows, 1, processors);
  const LeafSumParams sum = part(together, many_parts(p.weights, p.swiglu));
  product_many(launcher_, p, together, processors);
  return sum;
}

void Products::run_many(FewProductParams p, ProductKernel kernel, bool sums_wait) {
  const LeafSumParams sum = queue_many(p, kernel);
  if (sum.y == nullptr) return;
  if (sums_wait) {
    unsummed_ = sum;
  } else {
    add_leaves(launcher_, sum);
  }
}

void Products::any_linear(uint8_t* failed, Rows h, const int32_t* ids, const Part& part, const Part* before,
                          Rows y) {
  const Weights& w = part.weights;
  ProductParams product{};
  product.x.numbers = numbers_.get<int16_t>(y.rows * w.k);
  product.x.units = units_.get<UnitSum>(y.rows * w.groups());
  if (before == nullptr || !same_rounding(before->weights, w)) {
    RoundParams p{};
    p.x = h.data;
    p.ids = ids;
    p.failed = failed;
    p.rounded = product.x;
    p.weights = w;
    p.ldx = h.cols;
    p.rows = narrow(y.rows);
    p.k = w.k;
    p.x_div = p.flag_div = 1;
    p.units_per_row = w.groups();
    round_rows(launcher_, p);
  }
  product.y = y.data + part.first;
  product.weights = w;
  product.ldy = y.cols;
  product.rows = narrow(y.rows);
  product.n = w.n;
  product.units_per_row = w.groups();
  run_any_form(product);
}

void Products::linear(uint8_t* failed, Rows h, const int32_t* ids, const PackedLinear& weights, Rows y) {
  if (down_waits(h, ids, weights, y)) return;
  settle();
  if (collected(ids == nullptr && program_.linear(failed, h, weights, y))) return;
  run_linear(failed, h, ids, weights, y);
}

void Products::run_linear(uint8_t* failed, Rows h, const int32_t* ids, const PackedLinear& weights, Rows y) {
  const Part* before = nullptr;
  std::optional<Ready> ready;
  Form form{};  // of these
  for (const Part& part : weights.parts) {
    const ProductKernel kernel = choose_product(device_, part.weights, y.rows, weights.tame()).kernel;
    if (any_form(kernel)) {
      any_linear(failed, h, ids, part, before, y);
      before = &part;
      continue;
    }
    if (!ready || form != form_for(kernel)) {
      form = form_for(kernel);
      ready = round(h, ids, y.rows, failed, 1, form);
    }
    FewProductParams p{};
    p.weights = part.weights;
    p.ids = ready->ids;
    p.unfit = ready->unfit;
    p.failed = failed;
    p.y = y.data + part.first;
    p.x = ready->rows;
    p.ldy = y.cols;
    p.rows = narrow(y.rows);
    if (kernel == ProductKernel::many && weights.parts.size() == 1) {
      run_many(p, kernel, true);
    } else {
      run(p, kernel);
    }
  }
  written(y);
}

bool Products::gate_up_waits(Rows h, const PackedLinear& weights, Rows a) {
  const Rows& routed = waiting_.h;
  if (waiting_.choose.logits == nullptr || waiting_.gate_up != nullptr) return false;
  if (routed.data != h.data || routed.rows != h.rows || routed.cols != h.cols) return false;
  waiting_.gate_up = &weights;
  waiting_.a = a;
  return true;
}

bool Products::down_waits(Rows h, const int32_t* ids, const PackedLinear& weights, Rows y) {
  const Rows& a = waiting_.a;
  if (waiting_.gate_up == nullptr || waiting_.down != nullptr || ids != nullptr) return false;
  if (a.data != h.data || a.rows != h.rows || a.cols != h.cols) return false;
  waiting_.down = &weights;
  waiting_.shared = y;
  return true;
}

void Products::gate_up(uint8_t* failed, Rows h, const PackedLinear& weights, Rows a) {
  if (gate_up_waits(h, weights, a)) return;
  settle();
  if (collected(program_.gate_up(failed, h, weights, a))) return;
  run_gate_up(failed, h, weights, a);
}

void Products::run_gate_up(uint8_t* failed, Rows h, const PackedLinear& weights, Rows a) {
  const Weights& w = weights.parts.front().weights;
  if (swiglu_inside(device_, w, weights.parts.size(), a.cols)) {
    const ProductKernel kernel = choose_product(device_, w, h.rows, weights.tame(), true).kernel;
    const Ready ready = round(h, nullptr, h.rows, failed, 1, form_for(kernel));
    FewProductParams p{};
    p.weights = w;
    p.unfit = ready.unfit;
    p.failed = failed;
    p.y = a.data;
    p.x = ready.rows;
    p.ldy = a.cols;
    p.rows = narrow(a.rows);
    p.swiglu = 1;
    run(p, kernel);
  } else {
    const Rows both{y_.get<float>(a.rows * 2 * a.cols), a.rows, 2 * a.cols};
    run_linear(failed, h, nullptr, weights, both);
    sum_leaves();
    swiglu(launcher_, {both.data, a.data, narrow(a.rows), narrow(a.cols)});
  }
  written(a);
}

}  // namespace tercet::cuda
