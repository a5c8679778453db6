#include "model/hy_v3/layer.h"

namespace tercet::hy_v3 {
namespace {

/// The first columns of rows whose memory is as wide as the widest of its uses.
Sharded narrow(const Sharded& rows, int64_t mine, int64_t all) {
  return {{rows.mine.data, rows.mine.rows, mine}, {rows.all.data, rows.all.rows, all}};
}

/// a = SwiGLU of all columns, from this shard's.
Rows swiglu(const LayerContext& c, const SwiGlu& w) {
  const Sharded a = narrow(c.rows.a, w.gate_up->n / 2, w.down->k);
  c.ops.gate_up(c.step, c.rows.h, *w.gate_up, a.mine);
  c.shards.all_gather(a.mine, a.all);
  return a.all;
}

void moe(const LayerContext& c, const Moe& w) {
  Activations& r = c.rows;
  const RouterParams params{static_cast<int32_t>(c.config.experts_per_token), c.config.router_scaling,
                            c.config.route_norm};
  c.ops.route(c.step, r.h, *w.router, w.bias.view(), params, r.routes);
  Rows shared;
  if (w.shared) {
    c.ops.linear(c.step, swiglu(c, *w.shared), *w.shared->down, r.shared);
    shared = r.shared;
  }
  c.ops.experts_gate_up(c.step, r.h, r.routes, *w.experts, r.experts.mine);
  c.shards.all_gather(r.experts.mine, r.experts.all);
  c.ops.experts_down(c.step, r.experts.all, r.routes, *w.experts, shared, r.z.mine);
}

}  // namespace

void decoder_layer(const LayerContext& c, const Layer& w, int32_t cache_layer, Vector next_norm) {
  Activations& r = c.rows;
  const float eps = c.config.rms_norm_eps;

  c.ops.linear(c.step, r.h, *w.qkv, r.qkv);
  c.ops.write_kv(c.step, r.qkv, w.q_norm.view(), w.k_norm.view(), eps, {c.config.rope_theta}, c.cache,
                 cache_layer);
  c.ops.attention(c.step, r.qkv, c.cache, cache_layer, r.attention.mine);
  c.shards.all_gather(r.attention.mine, r.attention.all);
  c.ops.linear(c.step, r.attention.all, *w.o, r.z.mine);
  c.shards.all_gather(r.z.mine, r.z.all);
  c.ops.add_norm(c.step, r.x, r.z.all, w.post_norm.view(), eps, r.h);

  if (w.dense) {
    c.ops.linear(c.step, swiglu(c, *w.dense), *w.dense->down, r.z.mine);
  } else {
    moe(c, *w.moe);
  }
  c.shards.all_gather(r.z.mine, r.z.all);
  c.ops.add_norm(c.step, r.x, r.z.all, next_norm, eps, r.h);
}

}  // namespace tercet::hy_v3
