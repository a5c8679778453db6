// Attention within a phase (program.h): a block of threads a span of 4 blocks of keys, 4 warps a block of
// keys.
#pragma once

#include "backend/cuda/kernels/attention_lanes.cuh"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/program.h"
#include "backend/cuda/kernels/program_rows.cuh"
#include "backend/cuda/kernels/write_head.cuh"

namespace tercet::cuda {

constexpr int kHalfBytes = 64 * kHead * 2;  // of a block: its keys, or its values

/// A span of a row and KV head.
struct SpanItem {
  int row, kv_head, span, position;
  int first_page;  // of the row's sequence

  __device__ int blocks() const { return min(kSpanBlocks, position / 64 + 1 - span * kSpanBlocks); }
};

/// What a block of threads has of an item. Each stage of its work is a function of its own that takes all
/// from here: registers that a call puts aside come back from the second cache.
struct AttentionScratch {
  alignas(16) float o[kSpanBlocks][kMaxSharing][kHead];
  float weights[kSpanBlocks][kMaxSharing][kHead];    // of keys, and times 2^E of the values
  float tops[kSpanBlocks][4][kMaxSharing];           // the largest score of a warp's keys
  float2 of[kSpanBlocks][kMaxSharing];               // m, l
  alignas(16) uint16_t queries[kMaxSharing][kHead];  // as Queries has them
  alignas(16) int8_t exponents[kSpanBlocks][2][64];  // of keys, of values
  alignas(16) float norms[2][kHead];                 // weights, of queries and keys
  alignas(16) Angle angles[kHead / 2];               // of the item's row
  float powers[kMaxSharing];
  SpanItem at;
  int last;
};

/// Of the step's rows.
struct RowPositions {
  int at[kProgramRows];
  int first_page[kProgramRows];
};

/// By the 128 threads of a block of keys: 64 rows of 256 bytes (keys), or 128 rows of 128 (values); pieces of
/// 16 bytes lie at piece ^ row % 8.
__device__ inline void ask_for_half(uint32_t shared, const CacheView& cache, int64_t slot, bool values) {
  const int me = static_cast<int>(threadIdx.x) % 128;
  const uint16_t* const from = (values ? cache.values : cache.keys) + slot * kHead + me * 8;
  const int shift = values ? 3 : 4;  // of a row's pieces
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int piece = me + 128 * i;
    const int row = piece >> shift;
    const int in_row = piece & ((1 << shift) - 1);
    copy_async(shared + (row << (shift + 4)) + (in_row ^ (row & 7)) * 16, from + i * 1024);
  }
}

/// The barrier of a block's four warps.
__device__ inline void quarter_sync() {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + static_cast<int>(threadIdx.x) / 128) : "memory");
}

__device__ inline SpanItem span_item(const AttentionWork& w, const RowPositions& positions, int index) {
  const int heads = w.rows.rows * w.rows.cache.heads;
  const int span = index / heads;
  const int pair = index - span * heads;
  const int row = pair / w.rows.cache.heads;
  return {row, pair - row * w.rows.cache.heads, span, positions.at[row], positions.first_page[row]};
}

/// Which of a span's blocks of keys a thread's four warps have.
__device__ inline int quarter() { return static_cast<int>(threadIdx.x) / 128; }
/// Where its keys lie, then its values.
__device__ inline uint8_t* block_at(uint8_t* halves, int block) { return halves + block * 2 * kHalfBytes; }

/// Makes an item the one at hand and asks for its keys and values, and for what its heads need where they are
/// written. What the phase writes itself comes as it was before.
static __device__ __noinline__ void ask_for_span(const AttentionWork& w, int index,
                                                 const RowPositions& positions, AttentionScratch& s,
                                                 uint8_t* halves) {
  const auto me = static_cast<int>(threadIdx.x);
  const int own = quarter();
  const SpanItem at = span_item(w, positions, index);
  if (me == 0) s.at = at;
  if (at.blocks() <= 0) return;
  if (own < at.blocks()) {
    const CacheView& cache = w.rows.cache;
    const int page = w.rows.places.pages[at.first_page + at.span * kSpanBlocks + own];
    const int64_t slot = cache.slot(w.rows.layer, page, at.kv_head);
    const uint32_t shared = shared_address(block_at(halves, own));
    ask_for_half(shared, cache, slot, false);
    ask_for_half(shared + kHalfBytes, cache, slot, true);
    if (me % 128 < 8) {
      const bool values = me % 8 >= 4;
      const int8_t* const from = (values ? cache.value_exponents : cache.key_exponents) + slot;
      copy_async(shared_address(s.exponents[own][values ? 1 : 0]) + me % 4 * 16, from + me % 4 * 16);
    }
  }
  if (w.writes != 0 && me < 96) {
    const WriteKvParams& p = w.write.write;
    const int piece = me % 32 * 4;  // floats
    if (me < 64) {
      copy_async(shared_address(s.norms[me / 32] + piece), (me < 32 ? p.q_norm : p.k_norm) + piece);
    } else {
      copy_async(shared_address(s.angles + piece / 2), p.angles + at.row * (kHead / 2) + piece / 2);
    }
  }
  commit_copies();
}

/// Asks for keys and values as far as the second cache: blocks of threads share them, with the warps that
/// have least to do.
static __device__ __noinline__ void fetch_keys(const KeysAhead& ahead, const RowPositions& positions) {
  constexpr int kWarps = 4;
  constexpr int kHalfLines = kHalfBytes / 128;
  const int me = static_cast<int>(threadIdx.x) - (kProgramThreads - kWarps * 32);
  if (me < 0) return;
  const int heads = ahead.cache.heads;
  const int pairs = ahead.rows * heads;
  int longest = 0;
  for (int row = 0; row < ahead.rows; ++row) longest = max(longest, positions.at[row] / 64);
  const int lines = (longest + 1) * pairs * 2 * kHalfLines;
#pragma unroll 2
  for (int i = static_cast<int>(blockIdx.x) * kWarps * 32 + me; i < lines;
       i += static_cast<int>(gridDim.x) * kWarps * 32) {
    const int at = i / (2 * kHalfLines);
    const int block = at / pairs;
    const int row = (at - block * pairs) / heads;
    if (block > positions.at[row] / 64) continue;
    const int page = ahead.pages[positions.first_page[row] + block];
    const int64_t slot = ahead.cache.slot(ahead.layer, page, at % heads);
    const bool values = i / kHalfLines % 2 != 0;
    const int line = i % kHalfLines;
    const uint16_t* const from = (values ? ahead.cache.values : ahead.cache.keys) + slot * kHead + line * 64;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
    if (line > 0) continue;
    const int8_t* const exponents = values ? ahead.cache.value_exponents : ahead.cache.key_exponents;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(exponents + slot));
  }
}

/// A lane's queries: of head lane/4, or the last one.
struct LaneQueries {
  uint4 q[4];
  float power;

  __device__ void load(const uint16_t* halves, float its_power) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q[i] = reinterpret_cast<const uint4*>(halves + 32 * (static_cast<int>(threadIdx.x) % 4))[i];
    }
    power = its_power;
  }
};

/// Weights of the block's 64 keys, as rule 8 has them: each of four warps computes those of its 16 keys, then
/// all sum.
__device__ inline Weighed weigh_keys(uint32_t keys, const LaneQueries& q, int visible, AttentionScratch& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own = quarter();
  const int8_t(&exponents)[2][64] = s.exponents[own];
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int g = lane / 4;
  const int t = lane % 4;
  float score[2][2];
  float top = -INFINITY;
  float c[2][4];
  multiply_keys(c, keys, 2 * warp, q.q);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = 8 * (2 * warp + tile) + 2 * t + i;
      score[tile][i] = (c[tile][i] * q.power) * (kScale * plain_power(exponents[0][key]));
      if (key >= visible) score[tile][i] = -INFINITY;
      top = fmaxf(top, score[tile][i]);
    }
  }
  top = quad_max(top);
  if (t == 0) s.tops[own][warp][g] = top;
  quarter_sync();
  Weighed out;
#pragma unroll
  for (int i = 0; i < 4; ++i) top = fmaxf(top, s.tops[own][i][g]);
  out.m = rintf(top);
  const auto at = [&](int j) { return &s.weights[own][g][(j ^ g) * 8 + 2 * t]; };  // j ^ g: other banks
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int j = 2 * warp + tile;
    float2 weight, valued;
    weight = {weight_of(score[tile][0], out.m), weight_of(score[tile][1], out.m)};
    valued = {weight.x * plain_power(exponents[1][8 * j + 2 * t]),
              weight.y * plain_power(exponents[1][8 * j + 2 * t + 1])};
    *reinterpret_cast<float2*>(at(j)) = weight;
    *reinterpret_cast<float2*>(at(j) + 64) = valued;
  }
  quarter_sync();
  float l = 0.0F;
  float sum = 0.0F;
  float2 valued[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 weight = *reinterpret_cast<const float2*>(at(j));
    valued[j] = *reinterpret_cast<const float2*>(at(j) + 64);
    l = (l + weight.x) + weight.y;
    sum = (sum + valued[j].x) + valued[j].y;
  }
  out.l = quad_sum(l);
  const int z = weight_exponent(quad_sum(sum));
  out.up = plain_power(z);
  const float down = plain_power(-z);
#pragma unroll
  for (int j = 0; j < 8; ++j) out.weights[j] = half_pair(valued[j].x * down, valued[j].y * down);
  return out;
}

/// P·V of a warp's 32 dimensions, 8·i + 2·(lane%4) + {0, 1} for i = 4·warp …, with m and l.
__device__ inline void add_values(uint32_t values, const Weighed& w, float* out, float2* of) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  float c[4][4];
  multiply_values(c, values, 4 * warp, w.weights);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<float2*>(out + 8 * (4 * warp + i) + 2 * t) = {c[i][0] * w.up, c[i][1] * w.up};
  }
  if (warp == 0 && t == 0) *of = {w.m, w.l};
}

/// What a lane has of a head whose spans or blocks are folded: four dimensions.
struct Folded {
  float m = -INFINITY, l = 0.0F;
  float4 o = {0.0F, 0.0F, 0.0F, 0.0F};

  /// The first `count` of kCount, each with its m and l, join in turn (rule 8): the factors first, which do
  /// not wait for each other.
  template <int kCount>
  __device__ void add(const float2 (&next)[kCount], const float4 (&next_o)[kCount], int count) {
    float before[kCount], own[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float largest = i < count ? fmaxf(m, next[i].x) : m;
      before[i] = short_factor(m - largest);
      own[i] = short_factor(next[i].x - largest);
      m = largest;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i >= count) break;
      const float4 n = next_o[i];
      o = {o.x * before[i] + n.x * own[i], o.y * before[i] + n.y * own[i], o.z * before[i] + n.z * own[i],
           o.w * before[i] + n.w * own[i]};
      l = l * before[i] + next[i].y * own[i];
    }
  }
  __device__ float4 result() const { return {o.x / l, o.y / l, o.z / l, o.w / l}; }
};

/// A row's spans of heads [first, first + count) to its output; by the whole block, a warp a head. What other
/// blocks wrote is read past the first cache.
static __device__ __noinline__ void fold_spans(const AttentionWork& w, int row, int first, int count,
                                               int position) {
  const int d = static_cast<int>(threadIdx.x) % 32 * 4;
  const int h = static_cast<int>(threadIdx.x) / 32;
  if (h >= count) return;
  const int spans = position / (64 * kSpanBlocks) + 1;
  const int64_t head = int64_t{row} * w.rows.heads + first + h;
  const float* const partials = w.partials + head * w.spans * kPartial;
  Folded all;
  constexpr int kTogether = 8;
#pragma unroll 1
  for (int first_span = 0; first_span < spans; first_span += kTogether) {
    float2 of[kTogether];
    float4 its[kTogether];
#pragma unroll
    for (int s = 0; s < kTogether; ++s) {
      const float* const partial = partials + min(first_span + s, spans - 1) * kPartial;
      of[s] = __ldcg(reinterpret_cast<const float2*>(partial + kHead));
      its[s] = __ldcg(reinterpret_cast<const float4*>(partial + d));
    }
    all.add(of, its, spans - first_span);
  }
  store_four(w.rows.out + row * w.rows.ld_out + (first + h) * kHead + d, all.result());
}

/// Folds the blocks of a span, in order, a warp a head; s.last: the row's spans are left to this block of
/// threads.
static __device__ __noinline__ void finish_span(const AttentionWork& w, AttentionScratch& s) {
  const SpanItem& at = s.at;
  const int sharing = w.rows.heads / w.rows.cache.heads;
  const int d = static_cast<int>(threadIdx.x) % 32 * 4;
  const int h = static_cast<int>(threadIdx.x) / 32;
  const int blocks = at.blocks();
  const int spans = at.position / (64 * kSpanBlocks) + 1;
  const bool alone = w.tickets != nullptr && spans == 1;
  if (h < sharing) {
    Folded all;
    float2 of[kSpanBlocks];
    float4 its[kSpanBlocks];
#pragma unroll
    for (int b = 0; b < kSpanBlocks; ++b) {
      of[b] = s.of[b][h];
      its[b] = *reinterpret_cast<const float4*>(&s.o[b][h][d]);
    }
    all.add(of, its, blocks);
    const int64_t head = at.kv_head * sharing + h;
    if (alone) {
      store_four(w.rows.out + at.row * w.rows.ld_out + head * kHead + d, all.result());
    } else {
      float* const partial =
          w.partials + ((int64_t{at.row} * w.rows.heads + head) * w.spans + at.span) * kPartial;
      store_four(partial + d, all.o);
      if (d == 0) *reinterpret_cast<float2*>(partial + kHead) = {all.m, all.l};
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    s.last = 0;
    if (w.tickets == nullptr || alone) return;
    uint32_t* const ticket = w.tickets + at.row * w.rows.cache.heads + at.kv_head;
    uint32_t before = 0;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
    s.last = before == static_cast<uint32_t>(spans - 1) ? 1 : 0;
    if (s.last != 0) *ticket = 0;
  }
}

/// A row's new key or value to its block in shared memory.
__device__ inline void put_in_block(const HeadRole& role, int position, const RoundedHead& head,
                                    AttentionScratch& s, uint8_t* halves) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int block = position / 64 % kSpanBlocks;
  const int key = position % 64;
  uint8_t* const to = block_at(halves, block) + (role.value ? kHalfBytes : 0);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int d = lane + 32 * i;
    const int row = role.value ? d : key;
    const int column = role.value ? key : d;
    const int at = row * (role.value ? 128 : 256) + ((column / 8) ^ (row % 8)) * 16 + column % 8 * 2;
    *reinterpret_cast<uint16_t*>(to + at) = head.halves[i];
  }
  if (lane == 0) s.exponents[block][role.value ? 1 : 0][key] = static_cast<int8_t>(head.exponent);
}

/// The head that a warp writes of an item, or −1.
__device__ inline int own_head(const AttentionWork& w, const SpanItem& at) {
  const int sharing = w.rows.heads / w.rows.cache.heads;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < sharing) return at.kv_head * sharing + warp;
  const bool own_keys = at.span == at.position / (64 * kSpanBlocks);
  if (!own_keys || warp >= sharing + 2) return -1;
  return w.rows.heads + (warp - sharing) * w.rows.cache.heads + at.kv_head;
}

__device__ inline void load_queries(const AttentionWork& w, const SpanItem& at, AttentionScratch& s) {
  const int sharing = w.rows.heads / w.rows.cache.heads;
  const int64_t head = int64_t{at.row} * w.rows.heads + at.kv_head * sharing;
  for (int i = static_cast<int>(threadIdx.x); i < sharing * kHead / 8; i += kProgramThreads) {
    reinterpret_cast<uint4*>(s.queries)[i] =
        reinterpret_cast<const uint4*>(w.queries.halves + head * kHead)[i];
  }
  if (static_cast<int>(threadIdx.x) < sharing) s.powers[threadIdx.x] = w.queries.powers[head + threadIdx.x];
}

/// An item's queries into shared memory, and its row's key and value into the cache and their block where
/// they belong to this span: a warp a head. Waits for what was asked for.
static __device__ __noinline__ void take_heads(const AttentionWork& w, AttentionScratch& s, uint8_t* halves) {
  const WriteKvParams& p = w.write.write;
  const SpanItem& at = s.at;
  const int head = w.writes != 0 ? own_head(w, at) : -1;
  float x[4] = {};
  if (head >= 0) {
    const float* const from = p.qkv + at.row * p.ld + head * kHead + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = from[32 * i];
  }
  wait_for_copies<1>();  // behind them came what the next phase is
  __syncthreads();
  if (w.writes == 0) {
    load_queries(w, at, s);
  } else if (head >= 0) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const HeadRole role = head_role(p, head);
    const RoundedHead rounded = round_whole_head(x, role, s.norms[role.query ? 0 : 1], s.angles, p.eps);
    if (role.query) {
      put_query(s.queries[warp], s.powers + warp, rounded);
    } else {
      put_in_block(role, at.position, rounded, s, halves);
      put_in_cache(p, at.row, role, at.position, at.first_page, rounded);
    }
  }
}

/// A quarter's block of keys: weights and values.
static __device__ __noinline__ void take_keys(const AttentionWork& w, AttentionScratch& s, uint8_t* halves) {
  const SpanItem& at = s.at;
  const int own = quarter();
  if (own >= at.blocks()) return;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int head = min(g, w.rows.heads / w.rows.cache.heads - 1);
  LaneQueries q;
  q.load(s.queries[head], s.powers[head]);
  if (q.power < 0.0F) {
    q.power = 1.0F;
    w.rows.failed[at.row] = 1;
  }
  const auto shared = shared_address(block_at(halves, own));
  const int visible = at.position + 1 - (at.span * kSpanBlocks + own) * 64;
  const Weighed weighed = weigh_keys(shared, q, visible, s);
  add_values(shared + kHalfBytes, weighed, s.o[own][g], &s.of[own][g]);
}

/// The item whose keys and values may be asked for before the phase begins: it writes what is new in them.
__device__ inline bool asked_before(const AttentionWork& w, int index) {
  return w.writes != 0 && index == static_cast<int>(blockIdx.x);
}

static __device__ __noinline__ void attend(const AttentionWork& w, int items, const RowPositions& positions,
                                           AttentionScratch& s, uint8_t* halves) {
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < items; index += static_cast<int>(gridDim.x)) {
    if (!asked_before(w, index)) {
      ask_for_span(w, index, positions, s, halves);
      commit_copies();
      __syncthreads();
    }
    if (s.at.blocks() > 0) {
      take_heads(w, s, halves);
      __syncthreads();
      take_keys(w, s, halves);
      __syncthreads();
      finish_span(w, s);
      __syncthreads();
      const int sharing = w.rows.heads / w.rows.cache.heads;
      if (s.last != 0) fold_spans(w, s.at.row, s.at.kv_head * sharing, sharing, s.at.position);
    }
    __syncthreads();
  }
}

}  // namespace tercet::cuda
