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
constexpr int kHalves = 3;                  // that four warps have room for

struct AttentionScratch {
  float o[kSpanBlocks][kMaxSharing]
         [kHead];  // before that weights of keys, and weights times 2^E of the values
  float tops[kSpanBlocks][4][kMaxSharing];  // the largest score of a warp's keys
  float2 of[kSpanBlocks][kMaxSharing];      // m, l
  uint16_t queries[kMaxSharing][kHead];     // as Queries has them
  int8_t exponents[kSpanBlocks][kHalves][2][64];
  float powers[kMaxSharing];
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

/// A span of a row and KV head.
struct SpanItem {
  int row, kv_head, span, position;

  __device__ int blocks() const { return min(kSpanBlocks, position / 64 + 1 - span * kSpanBlocks); }
};
__device__ inline SpanItem span_item(const AttentionWork& w, const RowPositions& positions, int index) {
  const int heads = w.rows.rows * w.rows.cache.heads;
  const int span = index / heads;
  const int pair = index - span * heads;
  const int row = pair / w.rows.cache.heads;
  return {row, pair - row * w.rows.cache.heads, span, positions.at[row]};
}

/// The blocks of keys that four warps take, and their bytes' way into shared memory: keys, values, keys, …. A
/// span's blocks are four quarters' of a block of threads, one each.
class SpanStream {
 public:
  __device__ SpanStream(const AttentionWork& w, int items, const RowPositions& positions, AttentionScratch& s,
                        uint32_t shared)
      : w_(w), positions_(positions), s_(s), items_(items), item_(first()), shared_(shared) {}

  static __device__ int quarter() { return static_cast<int>(threadIdx.x) / 128; }
  /// Items that a block of threads takes: first, first + step, ….
  static __device__ int first() { return static_cast<int>(blockIdx.x); }
  static __device__ int step() { return static_cast<int>(gridDim.x); }

  /// Item `index` is complete in the cache.
  __device__ void allow(int index) { allowed_ = index; }
  __device__ void fill() {
    bool any = false;
    while (ahead_ < kHalves && ask()) any = true;
    // Whoever waits for a half counts on two requests after it.
    for (int i = ahead_; any && i < kHalves; ++i) commit_copies();
  }
  __device__ void used() {
    --ahead_;
    if (!ask()) commit_copies();
  }

 private:
  /// Asks for the next half, if there is one and it may be read.
  __device__ bool ask() {
    if (!values_) {
      for (;; item_ += step()) {
        if (item_ >= items_) return false;
        const SpanItem next = span_item(w_, positions_, item_);
        if (quarter() >= next.blocks()) continue;
        const int block = next.span * kSpanBlocks + quarter();
        if (w_.writes != 0 && item_ > allowed_ && block == next.position / 64) return false;
        const int page = w_.rows.places.pages[positions_.first_page[next.row] + block];
        slot_ = w_.rows.cache.slot(w_.rows.layer, page, next.kv_head);
        break;
      }
      const int me = static_cast<int>(threadIdx.x) % 128;
      if (me < 8) {
        const int8_t* const from =
            (me < 4 ? w_.rows.cache.key_exponents : w_.rows.cache.value_exponents) + slot_;
        copy_async(shared_address(&s_.exponents[quarter()][half_][me / 4][0]) + me % 4 * 16,
                   from + me % 4 * 16);
      }
    }
    ask_for_half(shared_ + half_ * kHalfBytes, w_.rows.cache, slot_, values_);
    commit_copies();
    half_ = half_ == kHalves - 1 ? 0 : half_ + 1;
    ++ahead_;
    if (values_) item_ += step();
    values_ = !values_;
    return true;
  }

  const AttentionWork& w_;
  const RowPositions& positions_;
  AttentionScratch& s_;
  const int items_;
  int item_;
  uint32_t shared_;
  int half_ = 0;
  int ahead_ = 0;
  int allowed_ = -1;
  bool values_ = false;
  int64_t slot_ = 0;
};

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
/// all sum. `used` is called when the keys have been read.
template <class Used>
__device__ inline Weighed weigh_keys(uint32_t keys, const int8_t (&exponents)[2][64], const LaneQueries& q,
                                     int visible, AttentionScratch& s, Used used) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int quarter = SpanStream::quarter();
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int g = lane / 4;
  const int t = lane % 4;
  float score[2][2];
  float top = -INFINITY;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int j = 2 * warp + tile;
    float c[4] = {};
    multiply_keys(c, keys, j, q.q);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = 8 * j + 2 * t + i;
      score[tile][i] = (c[i] * q.power) * (kScale * plain_power(exponents[0][key]));
      if (key >= visible) score[tile][i] = -INFINITY;
      top = fmaxf(top, score[tile][i]);
    }
  }
  top = quad_max(top);
  if (t == 0) s.tops[quarter][warp][g] = top;
  quarter_sync();
  used();
  Weighed out;
#pragma unroll
  for (int i = 0; i < 4; ++i) top = fmaxf(top, s.tops[quarter][i][g]);
  out.m = rintf(top);
  const auto at = [&](int j) { return &s.o[quarter][g][(j ^ g) * 8 + 2 * t]; };  // j ^ g: other banks
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

/// P·V of a warp's 32 dimensions, 8·i + 2·(lane%4) + {0, 1} for i = 4·warp …, joins m, l and o.
struct SpanSums {
  float m = -INFINITY, l = 0.0F;
  float o[4][2] = {};

  __device__ void add(uint32_t values, const Weighed& w) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const float next = fmaxf(m, w.m);
    const float before = short_factor(m - next);
    const float own = short_factor(w.m - next);
    l = l * before + w.l * own;
    m = next;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const int i = 4 * warp + tile;
      float c[4] = {};
      multiply_values(c, values, i, w.weights);
      o[tile][0] = fma_(c[0], w.up * own, o[tile][0] * before);
      o[tile][1] = fma_(c[1], w.up * own, o[tile][1] * before);
    }
  }
  /// To `out`, this lane's head's 128 numbers; m and l to `of`.
  __device__ void put(float* out, float2* of) const {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      *reinterpret_cast<float2*>(out + 8 * (4 * warp + tile) + 2 * t) = {o[tile][0], o[tile][1]};
    }
    if (warp == 0 && t == 0) *of = {m, l};
  }
};

/// A row's spans of heads [first, first + count) to its output; by the whole block, a thread two dimensions
/// of a head. What other blocks wrote is read past the first cache.
static __device__ __noinline__ void fold_spans(const AttentionWork& w, int row, int first, int count,
                                               int position) {
  const int d = static_cast<int>(threadIdx.x) % (kHead / 2) * 2;
  const int h = static_cast<int>(threadIdx.x) / (kHead / 2);
  if (h >= count) return;
  const int spans = position / (64 * kSpanBlocks) + 1;
  const int64_t head = int64_t{row} * w.rows.heads + first + h;
  const float* const partials = w.partials + head * w.spans * kPartial;
  float m = -INFINITY, l = 0.0F;
  float2 o = {0.0F, 0.0F};
#pragma unroll 4
  for (int s = 0; s < spans; ++s) {
    const float* const partial = partials + int64_t{s} * kPartial;
    fold(m, l, o, __ldcg(reinterpret_cast<const float2*>(partial + kHead)),
         __ldcg(reinterpret_cast<const float2*>(partial + d)));
  }
  *reinterpret_cast<float2*>(w.rows.out + row * w.rows.ld_out + (first + h) * kHead + d) = {o.x / l, o.y / l};
}

/// Folds the blocks of a span, in order, and the spans where this was the row's last one.
__device__ inline void finish_span(const AttentionWork& w, const SpanItem& at, AttentionScratch& s) {
  const int sharing = w.rows.heads / w.rows.cache.heads;
  const int d = static_cast<int>(threadIdx.x) % (kHead / 2) * 2;
  const int h = static_cast<int>(threadIdx.x) / (kHead / 2);
  const int blocks = at.blocks();
  const int spans = at.position / (64 * kSpanBlocks) + 1;
  const bool alone = w.tickets != nullptr && spans == 1;
  if (h < sharing) {
    float m = -INFINITY, l = 0.0F;
    float2 o = {0.0F, 0.0F};
#pragma unroll 1
    for (int b = 0; b < blocks; ++b) {
      fold(m, l, o, s.of[b][h], *reinterpret_cast<const float2*>(&s.o[b][h][d]));
    }
    const int64_t head = at.kv_head * sharing + h;
    if (alone) {
      *reinterpret_cast<float2*>(w.rows.out + at.row * w.rows.ld_out + head * kHead + d) = {o.x / l, o.y / l};
    } else {
      float* const partial =
          w.partials + ((int64_t{at.row} * w.rows.heads + head) * w.spans + at.span) * kPartial;
      *reinterpret_cast<float2*>(partial + d) = o;
      if (d == 0) *reinterpret_cast<float2*>(partial + kHead) = {m, l};
    }
  }
  if (w.tickets == nullptr || alone) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* const ticket = w.tickets + at.row * w.rows.cache.heads + at.kv_head;
    uint32_t before = 0;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
    s.last = before == static_cast<uint32_t>(spans - 1) ? 1 : 0;
    if (s.last != 0) *ticket = 0;
  }
  __syncthreads();
  if (s.last != 0) fold_spans(w, at.row, at.kv_head * sharing, sharing, at.position);
}

/// An item's queries into shared memory, and its row's key and value into the cache if they belong to this
/// span.
static __device__ __noinline__ void prepare_heads(const AttentionWork& w, int row, int kv_head, bool own_keys,
                                                  int position, int first_page, AttentionScratch& s) {
  const int sharing = w.rows.heads / w.rows.cache.heads;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int head = kv_head * sharing + warp;
  if (warp >= sharing) {
    if (!own_keys || warp >= sharing + 2) return;
    head = w.rows.heads + (warp - sharing) * w.rows.cache.heads + kv_head;
  }
  write_head(w.write.write, row, head, position, first_page, {s.queries[warp], nullptr, s.powers + warp},
             false);
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

static __device__ __noinline__ void attend(const AttentionWork& w, int items, const RowPositions& positions,
                                           AttentionScratch& s, uint8_t* halves) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int own = SpanStream::quarter();
  const auto shared = shared_address(halves) + own * kHalves * kHalfBytes;
  const int sharing = w.rows.heads / w.rows.cache.heads;
  SpanStream stream(w, items, positions, s, shared);
  int half = 0;
  const auto next_half = [&] {
    const int now = half;
    half = half == kHalves - 1 ? 0 : half + 1;
    wait_for_copies<kHalves - 1>();
    quarter_sync();
    return now;
  };
  stream.fill();
  int held_row = -1, held_head = -1;  // whose queries are there
#pragma unroll 1
  for (int index = SpanStream::first(); index < items; index += SpanStream::step()) {
    const SpanItem at = span_item(w, positions, index);
    const int blocks = at.blocks();
    if (blocks <= 0) continue;
    const bool own_keys = w.writes != 0 && at.span == at.position / (64 * kSpanBlocks);
    if (own_keys || held_row != at.row || held_head != at.kv_head) {
      if (w.writes != 0) {
        prepare_heads(w, at.row, at.kv_head, own_keys, at.position, positions.first_page[at.row], s);
      } else {
        load_queries(w, at, s);
      }
      held_row = at.row;
      held_head = at.kv_head;
      __syncthreads();
      stream.allow(index);
      if (w.writes != 0) stream.fill();
    }
    if (own < blocks) {
      LaneQueries q;
      const int head = min(g, sharing - 1);
      q.load(s.queries[head], s.powers[head]);
      if (q.power < 0.0F) {
        q.power = 1.0F;
        w.rows.failed[at.row] = 1;
      }
      SpanSums sums;
      const int keys = next_half();
      const int visible = at.position + 1 - (at.span * kSpanBlocks + own) * 64;
      const Weighed weighed = weigh_keys(shared + keys * kHalfBytes, s.exponents[own][keys], q, visible, s,
                                         [&] { stream.used(); });
      sums.add(shared + next_half() * kHalfBytes, weighed);
      sums.put(s.o[own][g], &s.of[own][g]);
    }
    __syncthreads();
    if (own < blocks) stream.used();
    finish_span(w, at, s);
    __syncthreads();
  }
}

}  // namespace tercet::cuda
