#include "backend/cpu/experts.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tercet::cpu {
namespace {

/// Asks for the first of tiles [begin, end), as far ahead as products ask themselves: the next expert's
/// weights lie elsewhere, where nobody would look for them before they are needed.
void ask_for(const PackedMatrix& w, int64_t begin, int64_t end) {
  const int64_t bytes = std::min<int64_t>((end - begin) * w.tile_bytes(), 4608);
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(w.tile(begin) + at);
}

}  // namespace

void choose_experts(const Kernels& kernels, std::span<const float> logits, std::span<const float> bias,
                    const RouterParams& params, std::span<float> score, std::span<float> biased,
                    std::span<int32_t> experts, std::span<float> weights) {
  const auto chosen = static_cast<size_t>(params.chosen);
  kernels.sigmoid(logits.data(), static_cast<int64_t>(logits.size()), score.data());
  for (size_t e = 0; e < logits.size(); ++e) biased[e] = score[e] + bias[e];
  // The largest so far in descending order; of equal ones the lower index came first. Few are chosen, so most
  // are compared with the last only.
  const auto value = [&](size_t j) { return biased[static_cast<size_t>(experts[j])]; };
  for (size_t e = 0; e < logits.size(); ++e) {
    if (e >= chosen && !(biased[e] > value(chosen - 1))) continue;
    size_t j = std::min(e, chosen - 1);
    for (; j > 0 && biased[e] > value(j - 1); --j) experts[j] = experts[j - 1];
    experts[j] = static_cast<int32_t>(e);
  }
  float sum = 0.0F;
  for (size_t j = 0; j < chosen; ++j) sum = sum + score[static_cast<size_t>(experts[j])];
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
  machine_.run(static_cast<int64_t>(touched_.size()) * tiles, bytes, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin, next; i < end; i = next) {
      const Touched& touched = touched_[static_cast<size_t>(i / tiles)];
      const auto e = static_cast<size_t>(touched.expert);
      next = std::min(end, (i / tiles + 1) * tiles);
      if (next < end) {
        const auto after = static_cast<size_t>(touched_[static_cast<size_t>(next / tiles)].expert);
        ask_for(experts.gate[after], 0, tiles);
        ask_for(experts.up[after], 0, tiles);
      }
      gate_up_tiles(experts.gate[e], experts.up[e], i % tiles, i % tiles + next - i, touched.pairs,
                    routes.chosen, a);
    }
  });
}

void ExpertProducts::gate_up_tiles(const PackedMatrix& gate, const PackedMatrix& up, int64_t begin,
                                   int64_t end, std::span<const int32_t> pairs, int64_t chosen,
                                   Rows a) const {
  const RoundedRows& gate_rows = rows_for(gate);
  const RoundedRows& up_rows = rows_for(up);
  const auto rows = static_cast<int64_t>(pairs.size());
  BlockOfRows gates, ups;
  for_blocks(begin, end, 2 * gate.tile_bytes(), rows, [&](int64_t t, int64_t last, int64_t p, int64_t count) {
    const std::span block = pairs.subspan(static_cast<size_t>(p), static_cast<size_t>(count));
    for (size_t i = 0; i < block.size(); ++i) {
      gates.set(static_cast<int64_t>(i), gate_rows, block[i] / chosen);
      ups.set(static_cast<int64_t>(i), up_rows, block[i] / chosen);
    }
    for (; t < last; ++t) {
      machine_.kernels.product(gate.layout, gate.tile(t), gates.rows, count);
      machine_.kernels.product(up.layout, up.tile(t), ups.rows, count);
      const int64_t outputs = std::min<int64_t>(kTile, gate.n - t * kTile);
      for (size_t i = 0; i < block.size(); ++i) {
        machine_.kernels.swiglu(gates.y[i], ups.y[i], outputs, a.data + block[i] * a.cols + t * kTile);
      }
    }
  });
}

void ExpertProducts::down(const PackedExperts& experts, Rows a, const Routes& routes, Rows shared, Rows z,
                          const FailedRow& failed) {
  TERCET_CHECK_EQ(z.cols, experts.out);
  if (z.rows == 0) return;
  group(routes, experts.count);
  const auto row = [&](int64_t pair) { return a.data + pair * a.cols; };
  round({&experts.down}, a.rows, row, 1, [&](int64_t pair) { failed(pair / routes.chosen); });
  const PackedMatrix& like = experts.down.front();
  machine_.run(like.tiles(), like.tile_bytes() * a.rows, [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * kTile;
    const int64_t cols = std::min(end * kTile, z.cols) - first;
    for (int64_t r = 0; r < z.rows; ++r) std::fill_n(z.data + r * z.cols + first, cols, 0.0F);
    // Experts in ascending order, so every row adds its own in ascending order.
    for (size_t i = 0; i < touched_.size(); ++i) {
      const Touched& touched = touched_[i];
      if (i + 1 < touched_.size()) {
        ask_for(experts.down[static_cast<size_t>(touched_[i + 1].expert)], begin, end);
      }
      add_down_tiles(experts.down[static_cast<size_t>(touched.expert)], begin, end, touched.pairs, routes, z);
    }
    for (int64_t r = 0; shared.data != nullptr && r < z.rows; ++r) {
      machine_.kernels.add(z.data + r * z.cols + first, shared.data + r * shared.cols + first, cols);
    }
  });
}

/// z = fma(weight, y, z) for an expert's pairs.
void ExpertProducts::add_down_tiles(const PackedMatrix& w, int64_t begin, int64_t end,
                                    std::span<const int32_t> pairs, const Routes& routes, Rows z) const {
  const RoundedRows& rows = rows_for(w);
  BlockOfRows block;
  for_blocks(begin, end, w.tile_bytes(), static_cast<int64_t>(pairs.size()),
             [&](int64_t t, int64_t last, int64_t p, int64_t count) {
               const std::span own = pairs.subspan(static_cast<size_t>(p), static_cast<size_t>(count));
               for (size_t i = 0; i < own.size(); ++i) block.set(static_cast<int64_t>(i), rows, own[i]);
               for (; t < last; ++t) {
                 machine_.kernels.product(w.layout, w.tile(t), block.rows, count);
                 const int64_t outputs = std::min<int64_t>(kTile, w.n - t * kTile);
                 for (size_t i = 0; i < own.size(); ++i) {
                   float* to = z.data + own[i] / routes.chosen * z.cols + t * kTile;
                   machine_.kernels.add_product(to, routes.weights[own[i]], block.y[i], outputs);
                 }
               }
             });
}

int64_t ExpertProducts::bytes() const {
  int64_t total = static_cast<int64_t>(pairs_.capacity() * sizeof(int32_t));
  for (const auto& form : forms_) total += form->rows.bytes() + static_cast<int64_t>(form->wanted.size());
  return total;
}

}  // namespace tercet::cpu
