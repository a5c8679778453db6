#include "backend/cpu/experts.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tercet::cpu {

void choose_experts(const Kernels& kernels, std::span<const float> logits, std::span<const float> bias,
                    const RouterParams& params, std::span<float> score, std::span<float> biased,
                    std::span<int32_t> experts, std::span<float> weights) {
  const auto chosen = static_cast<size_t>(params.chosen);
  kernels.sigmoid(logits.data(), static_cast<int64_t>(logits.size()), score.data());
  for (size_t e = 0; e < logits.size(); ++e) biased[e] = score[e] + bias[e];
  float sum = 0.0F;
  for (size_t j = 0; j < chosen; ++j) {
    // The first of the largest that is left: ties go to the lower index. Few are chosen, so no sort.
    size_t best = logits.size();
    for (size_t e = 0; e < logits.size(); ++e) {
      const auto taken = std::span(experts).first(j);
      if (best != logits.size() && !(biased[e] > biased[best])) continue;
      if (std::find(taken.begin(), taken.end(), static_cast<int32_t>(e)) == taken.end()) best = e;
    }
    experts[j] = static_cast<int32_t>(best);
    sum = sum + score[best];
  }
  sum = sum + 1e-20F;
  std::sort(experts.begin(), experts.begin() + params.chosen);
  for (size_t j = 0; j < chosen; ++j) {
    const float own = score[static_cast<size_t>(experts[j])];
    weights[j] = (params.normalise ? own / sum : own) * params.scaling;
  }
}

void ExpertProducts::group(const Routes& routes, int64_t count) {
  const int64_t pairs = routes.rows * routes.chosen;
  std::vector<int32_t> begin(static_cast<size_t>(count) + 1, 0);
  for (int64_t p = 0; p < pairs; ++p) ++begin[static_cast<size_t>(routes.experts[p]) + 1];
  for (size_t e = 1; e < begin.size(); ++e) begin[e] += begin[e - 1];
  pairs_.resize(static_cast<size_t>(pairs));
  touched_.clear();
  for (int64_t e = 0; e < count; ++e) {
    const auto first = static_cast<size_t>(begin[static_cast<size_t>(e)]);
    const auto size = static_cast<size_t>(begin[static_cast<size_t>(e) + 1]) - first;
    if (size > 0) touched_.push_back({static_cast<int32_t>(e), std::span(pairs_).subspan(first, size)});
  }
  for (int64_t p = 0; p < pairs; ++p) {
    pairs_[static_cast<size_t>(begin[static_cast<size_t>(routes.experts[p])]++)] = static_cast<int32_t>(p);
  }
}

const RoundedRows& ExpertProducts::rows_for(const PackedMatrix& matrix) const {
  size_t i = 0;
  while (!forms_[i]->like->same_rows(matrix)) ++i;
  return forms_[i]->rows;
}

/// Rounds each row once for each form among the matrices that it meets.
void ExpertProducts::round(std::initializer_list<const std::vector<PackedMatrix>*> kinds, int64_t rows,
                           const std::function<const float*(int64_t)>& row, int64_t pairs_in_row,
                           const FailedRow& failed) {
  forms_used_ = 0;
  for (const auto* matrices : kinds) {
    for (const Touched& touched : touched_) {
      Form& form = form_like((*matrices)[static_cast<size_t>(touched.expert)], rows);
      for (const int32_t pair : touched.pairs) form.wanted[static_cast<size_t>(pair / pairs_in_row)] = 1;
    }
  }
  for (size_t i = 0; i < forms_used_; ++i) {
    Form& form = *forms_[i];
    machine_.run(rows, 8 * form.like->k, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        if (form.wanted[static_cast<size_t>(r)] == 0) continue;
        if (!form.rows.round(machine_.kernels, row(r), r, nullptr)) failed(r);
      }
    });
  }
}

ExpertProducts::Form& ExpertProducts::form_like(const PackedMatrix& matrix, int64_t rows) {
  size_t i = 0;
  while (i < forms_used_ && !forms_[i]->like->same_rows(matrix)) ++i;
  if (i < forms_used_) return *forms_[i];
  if (i == forms_.size()) forms_.push_back(std::make_unique<Form>());
  ++forms_used_;
  forms_[i]->like = &matrix;
  forms_[i]->rows.reset(rows, matrix.layout);
  forms_[i]->wanted.assign(static_cast<size_t>(rows), 0);
  return *forms_[i];
}

void ExpertProducts::gate_up(const PackedExperts& experts, Rows h, const Routes& routes, Rows a,
                             const FailedRow& failed) {
  TERCET_CHECK_EQ(a.cols, experts.inter);
  if (h.rows == 0) return;
  group(routes, experts.count);
  const auto row = [&](int64_t r) { return h.data + r * h.cols; };
  round({&experts.gate, &experts.up}, h.rows, row, routes.chosen, failed);
  const int64_t tiles = experts.gate.front().tiles();
  const auto rows_each = static_cast<int64_t>((pairs_.size() + touched_.size() - 1) / touched_.size());
  const int64_t bytes = 2 * experts.gate.front().tile_bytes() * rows_each;
  machine_.run(static_cast<int64_t>(touched_.size()) * tiles, bytes,
               [&](int64_t begin, int64_t end, int thread) {
                 for (int64_t i = begin; i < end; ++i) {
                   const Touched& touched = touched_[static_cast<size_t>(i / tiles)];
                   const auto e = static_cast<size_t>(touched.expert);
                   gate_up_tile(experts.gate[e], experts.up[e], i % tiles, touched.pairs, routes.chosen, a,
                                threads_[static_cast<size_t>(thread)]);
                 }
               });
}

void ExpertProducts::gate_up_tile(const PackedMatrix& gate, const PackedMatrix& up, int64_t t,
                                  std::span<const int32_t> pairs, int64_t chosen, Rows a,
                                  TileScratch& scratch) const {
  const auto count = static_cast<int64_t>(pairs.size());
  const RoundedRows& gate_rows = rows_for(gate);
  const RoundedRows& up_rows = rows_for(up);
  scratch.reset(2 * count);
  for (int64_t p = 0; p < count; ++p) {
    const int64_t row = pairs[static_cast<size_t>(p)] / chosen;
    scratch.set(p, gate_rows, row);
    scratch.set(count + p, up_rows, row);
  }
  machine_.kernels.product(gate.layout, gate.tile(t), scratch.rows.data(), count);
  machine_.kernels.product(up.layout, up.tile(t), scratch.rows.data() + count, count);
  const int64_t outputs = std::min<int64_t>(kTile, gate.n - t * kTile);
  for (int64_t p = 0; p < count; ++p) {
    float* to = a.data + pairs[static_cast<size_t>(p)] * a.cols + t * kTile;
    machine_.kernels.swiglu(scratch.at(p), scratch.at(count + p), outputs, to);
  }
}

void ExpertProducts::down(const PackedExperts& experts, Rows a, const Routes& routes, Rows shared, Rows z,
                          const FailedRow& failed) {
  TERCET_CHECK_EQ(z.cols, experts.out);
  if (z.rows == 0) return;
  group(routes, experts.count);
  const auto row = [&](int64_t pair) { return a.data + pair * a.cols; };
  round({&experts.down}, a.rows, row, 1, [&](int64_t pair) { failed(pair / routes.chosen); });
  // By tile, so that a row's experts are added where their results arise, in ascending order.
  const PackedMatrix& first = experts.down.front();
  machine_.run(first.tiles(), first.tile_bytes() * a.rows, [&](int64_t begin, int64_t end, int thread) {
    TileScratch& scratch = threads_[static_cast<size_t>(thread)];
    scratch.reset(a.rows);
    std::vector<int64_t> place(static_cast<size_t>(a.rows));  // of a pair, in the order of pairs_
    for (int64_t i = 0; i < a.rows; ++i) {
      const int32_t pair = pairs_[static_cast<size_t>(i)];
      place[static_cast<size_t>(pair)] = i;
      const auto e = static_cast<size_t>(routes.experts[pair]);
      scratch.set(i, rows_for(experts.down[e]), pair);
    }
    for (int64_t t = begin; t < end; ++t) {
      int64_t done = 0;
      for (const Touched& touched : touched_) {
        const PackedMatrix& w = experts.down[static_cast<size_t>(touched.expert)];
        const auto count = static_cast<int64_t>(touched.pairs.size());
        machine_.kernels.product(w.layout, w.tile(t), scratch.rows.data() + done, count);
        done += count;
      }
      combine(routes, place, t * kTile, shared, z, scratch);
    }
  });
}

/// z of one tile's outputs, which begin at `first`, from all pairs' results.
void ExpertProducts::combine(const Routes& routes, std::span<const int64_t> place, int64_t first, Rows shared,
                             Rows z, TileScratch& scratch) const {
  const int64_t outputs = std::min<int64_t>(kTile, z.cols - first);
  for (int64_t r = 0; r < z.rows; ++r) {
    float sum[kTile] = {};
    for (int64_t j = 0; j < routes.chosen; ++j) {
      const int64_t pair = r * routes.chosen + j;
      const float* y = scratch.at(place[static_cast<size_t>(pair)]);
      machine_.kernels.add_product(sum, routes.weights[pair], y, kTile);
    }
    if (shared.data != nullptr) machine_.kernels.add(sum, shared.data + r * shared.cols + first, outputs);
    std::memcpy(z.data + r * z.cols + first, sum, static_cast<size_t>(outputs) * sizeof(float));
  }
}

int64_t ExpertProducts::bytes() const {
  int64_t total = static_cast<int64_t>(pairs_.capacity() * sizeof(int32_t));
  for (const auto& form : forms_) total += form->rows.bytes() + static_cast<int64_t>(form->wanted.size());
  for (const TileScratch& scratch : threads_) {
    total +=
        static_cast<int64_t>(scratch.y.size() * sizeof(float) + scratch.rows.size() * sizeof(ProductRow));
  }
  return total;
}

}  // namespace tercet::cpu
