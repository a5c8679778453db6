#include "backend/cuda/products.h"

#include <optional>
#include <utility>

#include "backend/cuda/kernels/leaf_sums.h"
#include "backend/cuda/kernels/pairs.h"
#include "backend/cuda/kernels/product_batch.h"
#include "backend/cuda/kernels/product_few.h"
#include "backend/cuda/kernels/product_many.h"
#include "backend/cuda/kernels/product_mma.h"
#include "backend/cuda/kernels/product_row.h"
#include "backend/cuda/kernels/product_warps.h"
#include "backend/cuda/kernels/round_many.h"
#include "backend/cuda/kernels/router.h"
#include "backend/cuda/kernels/rows.h"
#include "backend/cuda/kernels/rows_few.h"
#include "backend/cuda/select/division.h"
#include "base/check.h"
#include "ops/leaves.h"

namespace tercet::cuda {
namespace {

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

bool same_rounding(const Weights& a, const Weights& b) {
  return a.group == b.group && (a.planes == 0) == (b.planes == 0);
}

ExpertsForm form_of(const PackedExperts& experts) {
  return {experts.same.gate_up, experts.same.down, experts.alike, experts.tame(), experts.count};
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
      items_(launcher, held) {}

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
  const bool settles = unsettled_.z != nullptr;  // the program has no part in what that norm sums up
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

void Products::settle() {
  if (unsettled_.z != nullptr) combine(launcher_, std::exchange(unsettled_, {}));
}

Rounded Products::room(Scratch& numbers, Scratch& units, int64_t rows, int64_t k, Form form) {
  Rounded out;
  const int64_t groups = k / kBlock;
  if (form == Form::planes) {
    out.planes = numbers.get<int8_t>(rows * 2 * k);
    out.units = units.get<UnitSum>(rows * groups);
  } else {
    out.halves = numbers.get<uint16_t>(rows * k);
    out.sums = units.get<float>(rows * (groups + leaf_count(groups)));
    out.leaf_units = out.sums + rows * groups;
  }
  return out;
}

Products::Ready Products::round(Rows h, const int32_t* ids, int64_t count, uint8_t* failed, int64_t flag_div,
                                Form form) {
  const bool planes = form == Form::planes;
  if (held_.holds(h, form)) {
    Scratch& numbers = planes ? norm_planes_ : norm_halves_;
    const int64_t rows = held_.rest && !planes ? 2 * held_.rows.rows : held_.rows.rows;
    return {room(numbers, planes ? norm_units_ : norm_sums_, rows, h.cols, form), ids,
            held_.flags ? unfit_.get<uint8_t>(0) : nullptr};
  }
  RoundParams p{};
  p.x = h.data;
  p.ids = ids;
  p.failed = failed;
  p.rounded = room(planes ? planes_ : halves_, planes ? plane_units_ : sums_, count, h.cols, form);
  p.weights.group = kBlock;
  p.weights.planes = 1;
  p.weights.leaves = narrow(leaf_count(h.cols / kBlock));
  p.ldx = h.cols;
  p.rows = narrow(count);
  p.k = narrow(h.cols);
  p.x_div = 1;
  p.flag_div = narrow(flag_div);
  p.units_per_row = narrow(h.cols / kBlock);
  run_rounding(p, form);
  return {p.rounded, nullptr, nullptr};
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
      return run_many(p, kernel);
    case ProductKernel::plain:
    case ProductKernel::warps:
      TERCET_CHECK(!any_form(kernel));  // they have parameters of their own
  }
}

void Products::run_any_form(const ProductParams& p) {
  if (choose_any_form(device_).kernel == ProductKernel::warps) return product_warps(launcher_, p);
  product(launcher_, p);
}

void Products::run_many(FewProductParams p, ProductKernel kernel) {
  const bool swiglu = p.swiglu != 0, mma = kernel == ProductKernel::mma;
  const int together = mma ? mma_rows_together(p.weights, p.rows)
                           : rows_together(p.weights, swiglu, p.rows, 1, device_.processors);
  const int parts = mma ? mma_parts(p.weights, p.swiglu) : many_parts(p.weights, p.swiglu);
  p.leaf_stride = leaf_floats(p.weights, p.rows, together, parts, device_.processors);
  LeafSumParams sum{};
  if (p.leaf_stride != 0) {
    sum.parts = leaves_.get<float>(p.leaf_stride * p.weights.leaves);
    sum.y = std::exchange(p.y, leaves_.get<float>(0));
    sum.ldy = std::exchange(p.ldy, p.weights.n);
    sum.leaf_stride = p.leaf_stride;
    sum.rows = p.rows;
    sum.n = p.weights.n;
    sum.leaves = p.weights.leaves;
    sum.swiglu = std::exchange(p.swiglu, 0);
  }
  mma ? product_mma(launcher_, p, together, device_.processors)
      : product_many(launcher_, p, together, device_.processors);
  if (p.leaf_stride != 0) add_leaves(launcher_, sum);
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
  settle();
  if (collected(ids == nullptr && program_.linear(failed, h, weights, y))) return;
  const Part* before = nullptr;
  std::optional<Ready> ready;
  for (const Part& part : weights.parts) {
    const ProductKernel kernel = choose_product(device_, part.weights, y.rows, weights.tame()).kernel;
    if (any_form(kernel)) {
      any_linear(failed, h, ids, part, before, y);
      before = &part;
      continue;
    }
    if (!ready) ready = round(h, ids, y.rows, failed, 1, form_for(kernel));
    FewProductParams p{};
    p.weights = part.weights;
    p.ids = ready->ids;
    p.unfit = ready->unfit;
    p.failed = failed;
    p.y = y.data + part.first;
    p.x = ready->rows;
    p.ldy = y.cols;
    p.rows = narrow(y.rows);
    run(p, kernel);
  }
  written(y);
}

void Products::gate_up(uint8_t* failed, Rows h, const PackedLinear& weights, Rows a) {
  settle();
  if (collected(program_.gate_up(failed, h, weights, a))) return;
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
    linear(failed, h, nullptr, weights, both);
    swiglu(launcher_, {both.data, a.data, narrow(a.rows), narrow(a.cols)});
  }
  written(a);
}

Rounded Products::round_for_router(uint8_t* failed, Rows h, const Weights& router, ProductKernel kernel,
                                   ChooseParams& choose) {
  const Form form = form_for(kernel);
  if (form == Form::halves && held_.rest && held_.holds(h, form) && held_.rows.rows == h.rows) {
    choose.step = 1;
    choose.rest = narrow(h.rows);
    choose.unfit = unfit_.get<uint8_t>(0);
    return room(norm_halves_, norm_sums_, 2 * h.rows, h.cols, form);
  }
  choose.step = 2;
  choose.rest = 1;
  const int64_t rows = 2 * h.rows;
  RoundParams p{};
  p.x = h.data;
  p.failed = failed;
  p.rest = rest_.get<float>(h.rows * h.cols);
  p.weights = router;
  p.ldx = h.cols;
  p.rows = narrow(h.rows);
  p.k = narrow(h.cols);
  p.x_div = p.flag_div = 1;
  p.units_per_row = router.groups();
  if (any_form(kernel)) {
    p.rounded.numbers = numbers_.get<int16_t>(rows * h.cols);
    p.rounded.units = units_.get<UnitSum>(rows * router.groups());
    round_rows(launcher_, p);
  } else {
    const bool planes = form == Form::planes;
    p.rounded = room(planes ? planes_ : halves_, planes ? plane_units_ : sums_, rows, h.cols, form);
    run_rounding(p, form);
  }
  return p.rounded;
}

void Products::route(uint8_t* failed, Rows h, const PackedLinear& weights, Vector bias, RouterParams params,
                     Routes routes) {
  settle();
  const Weights& router = weights.parts.front().weights;
  TERCET_CHECK_LE(router.n, kMaxExperts);
  TERCET_CHECK_LE(params.chosen, kMaxChosen);
  if (collected(program_.route(failed, h, weights, bias, params, routes))) return;
  sort_of_ = {};
  const int64_t rows = 2 * h.rows;
  auto* const logits = y_.get<float>(rows * router.n);
  const ProductKernel kernel = choose_router(device_, router, h.rows, weights.tame()).kernel;
  ChooseParams choose = choice_of(failed, logits, h.rows, router.n, bias, params, routes);
  const Rounded rounded = round_for_router(failed, h, router, kernel, choose);
  if (any_form(kernel)) {
    ProductParams product{};
    product.y = logits;
    product.x = rounded;
    product.weights = router;
    product.ldy = router.n;
    product.rows = narrow(rows);
    product.n = router.n;
    product.units_per_row = router.groups();
    run_any_form(product);
  } else {
    FewProductParams product{};
    product.weights = router;
    product.y = logits;
    product.x = rounded;
    product.ldy = router.n;
    product.rows = narrow(rows);
    run(product, kernel);
  }
  choose_experts(launcher_, choose);
}

void Products::run_items(FewProductParams p, const Routes& routes, const PackedExperts& experts,
                         ExpertsKernel kernel) {
  const int64_t count = experts.count;
  TERCET_CHECK_LE(count, kMaxExperts);
  const int64_t pairs = routes.rows * routes.chosen;
  const int64_t used = std::min(count, pairs);
  int32_t here = kFewRows;
  if (kernel == ExpertsKernel::sorted_batch) here = batch_pairs(device_, form_of(experts));
  const int64_t average = (pairs + used - 1) / used;
  if (kernel == ExpertsKernel::sorted_mma) here = mma_rows_together(p.weights, average);
  if (kernel == ExpertsKernel::sorted_many) {
    here = rows_together(p.weights, p.swiglu != 0, average, used, device_.processors);
  }
  const int64_t most = pairs / here + used;
  if (sort_of_.experts != routes.experts || sort_of_.pairs != pairs || sort_of_.together != here) {
    sort_of_ = {routes.experts, pairs, here};
    auto* const items = items_.get<PairItem>(most + 2);  // the last two's memory holds their ends
    PairParams sort{};
    sort.experts = routes.experts;
    sort.sorted = sorted_.get<int32_t>(pairs);
    sort.items = items;
    sort.ends = reinterpret_cast<int32_t*>(items + most);
    sort.pairs = narrow(pairs);
    sort.count = narrow(count);
    sort.most = here;
    sort_pairs(launcher_, sort);
  }
  p.items = items_.get<PairItem>(0);
  p.ends = reinterpret_cast<const int32_t*>(p.items + most);
  p.sorted = sorted_.get<int32_t>(0);
  p.slots = narrow(most);
  if (kernel == ExpertsKernel::sorted_few) {
    product_few(launcher_, p);
  } else if (kernel == ExpertsKernel::sorted_batch) {
    product_batch(launcher_, p, here);
  } else if (kernel == ExpertsKernel::sorted_mma) {
    product_mma(launcher_, p, here, device_.processors);
  } else {
    product_many(launcher_, p, here, device_.processors);
  }
}

void Products::any_pairs(uint8_t* failed, Rows x, int64_t x_div, const Routes& routes, const Weights* list,
                         int64_t least_group, int64_t n, float* y, int64_t ldy) {
  const int64_t pairs = routes.rows * routes.chosen;
  const int64_t units_per_row = x.cols / least_group;
  RoundParams p{};
  p.x = x.data;
  p.list = list;
  p.which = routes.experts;
  p.failed = failed;
  p.rounded.numbers = numbers_.get<int16_t>(pairs * x.cols);
  p.rounded.units = units_.get<UnitSum>(pairs * units_per_row);
  p.ldx = x.cols;
  p.rows = narrow(pairs);
  p.k = narrow(x.cols);
  p.x_div = narrow(x_div);
  p.flag_div = narrow(routes.chosen);
  p.units_per_row = narrow(units_per_row);
  round_rows(launcher_, p);
  ProductParams product{};
  product.list = list;
  product.which = routes.experts;
  product.y = y;
  product.x = p.rounded;
  product.ldy = ldy;
  product.rows = narrow(pairs);
  product.n = narrow(n);
  product.units_per_row = narrow(units_per_row);
  run_any_form(product);
}

void Products::experts_gate_up(uint8_t* failed, Rows h, const Routes& routes, const PackedExperts& experts,
                               Rows a) {
  settle();
  if (collected(program_.experts_gate_up(failed, h, routes, experts, a))) return;
  const int64_t pairs = routes.rows * routes.chosen;
  const ExpertsKernel kernel = choose_experts_gate_up(device_, form_of(experts), pairs).kernel;
  if (kernel == ExpertsKernel::any_form) {
    auto* const y = y_.get<float>(pairs * 2 * a.cols);
    for (const auto& [list, at] : {std::pair{experts.gate, y}, {experts.up, y + a.cols}}) {
      any_pairs(failed, h, routes.chosen, routes, list, experts.least_group, a.cols, at, 2 * a.cols);
    }
    swiglu(launcher_, {y, a.data, narrow(pairs), narrow(a.cols)});
    return written(a);
  }
  const Ready ready = round(h, nullptr, h.rows, failed, 1, form_for(kernel));
  FewProductParams p{};
  p.weights = experts.same.gate_up;
  p.unfit = ready.unfit;
  p.failed = failed;
  p.y = a.data;
  p.x = ready.rows;
  p.values_stride = experts.same.gate_up_values;
  p.scales_stride = experts.same.gate_up_scales;
  p.ldy = a.cols;
  p.x_div = narrow(routes.chosen);
  p.swiglu = 1;
  if (kernel == ExpertsKernel::row || kernel == ExpertsKernel::few) {
    p.which = routes.experts;
    p.slots = narrow(pairs);
    run(p, kernel == ExpertsKernel::row ? ProductKernel::row : ProductKernel::few);
  } else {
    run_items(p, routes, experts, kernel);
  }
  written(a);
}

void Products::experts_down(uint8_t* failed, Rows a, const Routes& routes, const PackedExperts& experts,
                            Rows shared, Rows z) {
  settle();
  if (collected(program_.experts_down(failed, a, routes, experts, shared, z))) return;
  const int64_t pairs = routes.rows * routes.chosen;
  written(z);
  const ExpertsKernel kernel = choose_experts_down(device_, form_of(experts), pairs, routes.chosen).kernel;
  if (kernel == ExpertsKernel::row) {
    FewDownParams p{};
    p.weights = experts.same.down;
    p.experts = routes.experts;
    p.route_weights = routes.weights;
    p.shared = shared.data;
    p.z = z.data;
    p.x = round(a, nullptr, a.rows, failed, routes.chosen, Form::planes).rows;
    p.values_stride = experts.same.down_values;
    p.scales_stride = experts.same.down_scales;
    p.rows = narrow(z.rows);
    p.chosen = narrow(routes.chosen);
    return down_few(launcher_, p);
  }
  auto* const y = y_.get<float>(pairs * z.cols);
  if (kernel != ExpertsKernel::any_form) {
    FewProductParams p{};
    p.weights = experts.same.down;
    p.y = y;
    p.x = round(a, nullptr, a.rows, failed, routes.chosen, form_for(kernel)).rows;
    p.values_stride = experts.same.down_values;
    p.scales_stride = experts.same.down_scales;
    p.ldy = z.cols;
    p.x_div = 1;
    run_items(p, routes, experts, kernel);
  } else {
    any_pairs(failed, a, 1, routes, experts.down, experts.least_group, z.cols, y, z.cols);
  }
  unsettled_ = {y, routes.weights, shared.data, z.data, narrow(z.rows), narrow(z.cols), narrow(routes.chosen),
                0};
  if (choose_sum(device_, z.cols).kernel == SumKernel::combine) settle();
}

}  // namespace tercet::cuda
