// Products: the router and the experts.
#include <algorithm>
#include <utility>

#include "backend/cuda/kernels/pairs.h"
#include "backend/cuda/kernels/product_batch.h"
#include "backend/cuda/kernels/product_few.h"
#include "backend/cuda/kernels/product_floats.h"
#include "backend/cuda/kernels/product_many.h"
#include "backend/cuda/kernels/product_mma.h"
#include "backend/cuda/kernels/product_row.h"
#include "backend/cuda/kernels/router.h"
#include "backend/cuda/kernels/rows.h"
#include "backend/cuda/products.h"
#include "backend/cuda/select/division.h"
#include "base/check.h"

namespace tercet::cuda {
namespace {

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

ExpertsForm form_of(const PackedExperts& experts) {
  return {experts.same.gate_up, experts.same.down, experts.alike, experts.tame(), experts.count};
}

}  // namespace

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
  if (any_form(kernel) || form == Form::floats) {
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
    if (choose_choice(device_, kernel, h.rows, routes.chosen).kernel == ChoiceKernel::with_sort) {
      const LeafSumParams sum = queue_many(product, kernel);
      if (sum.y != nullptr) {
        choose.logits = sum.parts;
        choose.leaves = sum.leaves;
        choose.leaf_stride = sum.leaf_stride;
      }
      waiting_ = {};
      waiting_.experts = routes.experts;
      waiting_.choose = choose;
      waiting_.failed = failed;
      waiting_.h = h;
      return;
    }
    run(product, kernel);
  }
  choose_experts(launcher_, choose);
}

int32_t Products::pairs_together(const Weights& weights, bool swiglu, int64_t pairs,
                                 const PackedExperts& experts, ExpertsKernel kernel) const {
  if (kernel == ExpertsKernel::sorted_batch) return kBatchPairs;
  if (kernel == ExpertsKernel::sorted_few) return kFewRows;
  const int64_t used = std::min(experts.count, pairs);
  const int64_t average = (pairs + used - 1) / used;
  if (kernel == ExpertsKernel::sorted_mma) return mma_rows_together(weights, average);
  if (kernel == ExpertsKernel::sorted_floats) return float_rows_together(average);
  return rows_together(weights, swiglu, average, used, device_.processors);
}

Products::Sorted Products::sort(const Routes& routes, int64_t count, int32_t here, int64_t beside,
                                const ChooseParams* choose) {
  TERCET_CHECK_LE(count, kMaxExperts);
  const int64_t pairs = routes.rows * routes.chosen;
  const int64_t most = pairs / here + std::min(count, pairs) + (beside + here - 1) / here;
  auto* const items = items_.get<PairItem>(most + 2);  // the last two's memory holds their ends
  const bool sorted = sort_of_.experts == routes.experts && sort_of_.pairs == pairs &&
                      sort_of_.beside == beside && sort_of_.together == here;
  if (sorted && choose == nullptr) return {items, most};
  sort_of_ = {routes.experts, pairs, beside, here, false};
  PairParams sort{};
  sort.experts = routes.experts;
  sort.sorted = sorted_.get<int32_t>(pairs + beside);
  sort.items = items;
  sort.ends = reinterpret_cast<int32_t*>(items + most);
  sort.pairs = narrow(pairs);
  sort.count = narrow(count);
  sort.most = here;
  sort.beside = narrow(beside);
  if (choose == nullptr) {
    sort_pairs(launcher_, sort);
  } else {
    choose_and_sort(launcher_, {*choose, sort, reinterpret_cast<uint32_t*>(ticket_.get())});
  }
  return {items, most};
}

void Products::run_items(FewProductParams p, const Sorted& sorted, int32_t here, ExpertsKernel kernel) {
  p.items = sorted.items;
  p.ends = reinterpret_cast<const int32_t*>(p.items + sorted.most);
  p.sorted = sorted_.get<int32_t>(0);
  p.slots = narrow(sorted.most);
  if (kernel == ExpertsKernel::sorted_few) {
    product_few(launcher_, p);
  } else if (kernel == ExpertsKernel::sorted_batch) {
    p.known = std::exchange(sort_of_.known, true) ? 1 : 0;
    product_batch(launcher_, p, batch_warps(device_, p.weights));
  } else if (kernel == ExpertsKernel::sorted_mma) {
    product_mma(launcher_, p, here, device_.processors);
  } else if (kernel == ExpertsKernel::sorted_floats) {
    product_floats(launcher_, p, here, device_.processors);
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

bool Products::shares_kernels(const Waiting& own, Rows h, const Routes& routes,
                              const PackedExperts& experts) const {
  if (own.gate_up == nullptr || own.down == nullptr) return false;
  if (own.h.data != h.data || own.h.rows != h.rows || own.gate_up->parts.size() != 1 ||
      own.down->parts.size() != 1 || !own.gate_up->tame() || !own.down->tame()) {
    return false;
  }
  return goes_beside(device_, form_of(experts), own.gate_up->parts.front().weights,
                     own.down->parts.front().weights, routes.rows * routes.chosen, routes.chosen);
}

void Products::experts_gate_up(uint8_t* failed, Rows h, const Routes& routes, const PackedExperts& experts,
                               Rows a) {
  const int64_t pairs = routes.rows * routes.chosen;
  const ExpertsKernel kernel = choose_experts_gate_up(device_, form_of(experts), pairs).kernel;
  Waiting own;
  if (kernel == ExpertsKernel::sorted_batch && waiting_.experts == routes.experts) {
    own = std::exchange(waiting_, {});
  }
  settle();
  if (collected(program_.experts_gate_up(failed, h, routes, experts, a))) return;
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
    return written(a);
  }
  const bool beside = shares_kernels(own, h, routes, experts);
  const int32_t here = pairs_together(p.weights, true, pairs, experts, kernel);
  const Sorted sorted = sort(routes, experts.count, here, beside ? h.rows : 0,
                             own.choose.logits == nullptr ? nullptr : &own.choose);
  if (beside) {
    const Weights& w = own.gate_up->parts.front().weights;
    p.values_beside = w.values;
    p.scales_beside = w.scales;
    p.y_beside = own.a.data;
  }
  run_items(p, sorted, here, kernel);
  written(a);
  own.choose = {};
  own.experts = routes.experts;
  if (beside) {
    written(own.a);
    own.gate_up = nullptr;
    waiting_ = own;
  } else if (own.gate_up != nullptr) {
    waiting_ = own;
    settle();
  }
}

void Products::experts_down(uint8_t* failed, Rows a, const Routes& routes, const PackedExperts& experts,
                            Rows shared, Rows z) {
  const int64_t pairs = routes.rows * routes.chosen;
  Waiting own;
  if (waiting_.gate_up == nullptr && waiting_.down != nullptr && waiting_.experts == routes.experts &&
      waiting_.shared.data == shared.data && shared.cols == z.cols) {
    own = std::exchange(waiting_, {});  // experts_gate_up() has seen to it that product_batch() runs
  }
  settle();
  if (collected(program_.experts_down(failed, a, routes, experts, shared, z))) return;
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
    p.values_stride = experts.same.down_values;
    p.scales_stride = experts.same.down_scales;
    p.ldy = z.cols;
    p.x_div = 1;
    const int32_t here = pairs_together(p.weights, false, pairs, experts, kernel);
    const Sorted sorted = sort(routes, experts.count, here, own.down != nullptr ? own.a.rows : 0, nullptr);
    if (own.down != nullptr) {
      const Weights& w = own.down->parts.front().weights;
      p.x = round_beside(a, own.a, failed, routes.chosen);
      p.values_beside = w.values;
      p.scales_beside = w.scales;
      p.y_beside = shared.data;
      p.first_beside = narrow(a.rows);
      written(shared);
    } else {
      p.x = round(a, nullptr, a.rows, failed, routes.chosen, form_for(kernel)).rows;
    }
    run_items(p, sorted, here, kernel);
  } else {
    any_pairs(failed, a, 1, routes, experts.down, experts.least_group, z.cols, y, z.cols);
  }
  unsettled_ = {y, routes.weights, shared.data, z.data, narrow(z.rows), narrow(z.cols), narrow(routes.chosen),
                0};
  if (choose_sum(device_, z.cols).kernel == SumKernel::combine) settle();
}

}  // namespace tercet::cuda
