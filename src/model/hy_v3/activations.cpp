#include "model/hy_v3/activations.h"

#include <algorithm>
#include <functional>

namespace tercet::hy_v3 {
namespace {

/// One walk over all buffers, for counting and for allocating alike.
Activations lay_out(const Config& c, const Placement& p, int64_t max_rows, bool with_mtp,
                    const std::function<void*(int64_t)>& take) {
  const auto rows = [&](int64_t count, int64_t cols) {
    return Rows{static_cast<float*>(take(count * cols * static_cast<int64_t>(sizeof(float)))), count, cols};
  };
  const auto sharded = [&](int64_t count, int64_t cols) {
    const Rows all = rows(count, cols);
    return Sharded{p.shards == 1 ? all : rows(count, p.share(cols)), all};
  };
  const bool mtp_here = with_mtp && p.last_stage();
  Activations out;
  out.x = rows(max_rows, c.hidden_size);
  out.h = rows(max_rows, c.hidden_size);
  out.hidden = rows(mtp_here ? max_rows : 0, c.hidden_size);
  out.pair = rows(mtp_here ? max_rows : 0, 2 * c.hidden_size);
  out.mtp_x = sharded(mtp_here ? max_rows : 0, c.hidden_size);
  out.qkv = rows(max_rows, p.share(c.q_size() + 2 * c.kv_size()));
  out.attention = sharded(max_rows, c.q_size());
  out.z = sharded(max_rows, c.hidden_size);
  out.a = sharded(max_rows, std::max(c.intermediate_size, c.shared_intermediate_size()));
  out.experts = sharded(max_rows * c.experts_per_token, c.moe_intermediate_size);
  out.shared = rows(max_rows, p.share(c.hidden_size));
  const int64_t routes = max_rows * c.experts_per_token * 4;
  out.routes = {static_cast<int32_t*>(take(routes)), static_cast<float*>(take(routes)), max_rows,
                c.experts_per_token};
  const int64_t logit_rows = p.last_stage() ? std::min(kLogitRows, max_rows) : 0;
  out.logits = sharded(logit_rows, c.vocab_size);
  return out;
}

}  // namespace

Activations Activations::first(int64_t rows) const {
  Activations out = *this;
  for (Rows* part : {&out.x, &out.h, &out.hidden, &out.pair, &out.qkv, &out.shared})
    *part = part->first(rows);
  for (Sharded* part : {&out.mtp_x, &out.attention, &out.z, &out.a}) *part = part->first(rows);
  out.experts = experts.first(rows * routes.chosen);
  out.routes.rows = rows;
  return out;
}

ActivationMemory allocate_activations(const Config& config, const Placement& placement, int64_t max_rows,
                                      bool with_mtp, Ops& ops) {
  ActivationMemory out;
  out.view = lay_out(config, placement, max_rows, with_mtp, [&](int64_t bytes) {
    out.buffers.push_back(ops.allocate(bytes));
    return out.buffers.back().get();
  });
  return out;
}

int64_t activation_bytes(const Config& config, const Placement& placement, int64_t max_rows, bool with_mtp) {
  int64_t total = 0;
  lay_out(config, placement, max_rows, with_mtp, [&](int64_t bytes) -> void* {
    total += bytes;
    return nullptr;
  });
  return total;
}

}  // namespace tercet::hy_v3
