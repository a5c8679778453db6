#include <algorithm>

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/attention_blocks.h"
#include "backend/cuda/kernels/attention_lanes.cuh"
#include "backend/cuda/kernels/copies.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/weighing.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

namespace tercet::cuda {
namespace {

// A thread block takes spans one after another: two warps copy keys and values into a ring in shared memory
// as room comes free, four warps have a block of keys each, as attention_lanes.cuh has them.

constexpr int kAttending = kSpanBlocks * 32;  // threads
constexpr int kCopying = 64;                  // others
constexpr int kThreads = kAttending + kCopying;
constexpr int kExponentsAt = kBlockKeyBytes;  // of a slot that holds keys: theirs, then the values'
constexpr int kHeadRow = kHead + 8;           // floats of a head's O, so that heads lie in different banks

/// Behind the ring's slots.
struct SpanShared {
  float o[kSpanBlocks][kMaxSharing][kHeadRow];
  float2 sizes[kSpanBlocks][kMaxSharing];  // m, l
  uint64_t full[kSpanSlots], empty[kSpanSlots];
};
static_assert(kSpanSlots * kSpanSlotBytes + sizeof(SpanShared) == kSpanShared);
// Whoever waits for a slot names the parity of its use, so the use before must be over: it is, as a slot does
// not come twice among a span's keys, or values, and between them all four warps meet.
static_assert(kSpanSlots >= kSpanBlocks);

/// A row's span of a KV head.
struct SpanItem {
  int64_t row, at;  // at: among those that attend
  int kv_head, span, position;

  __device__ int blocks() const { return min(kSpanBlocks, position / 64 + 1 - span * kSpanBlocks); }
};
__device__ inline int span_items(const BlocksParams& p) {
  return p.groups[p.group_count].spans_before * p.rows.cache.heads;
}
__device__ inline SpanItem span_item(const BlocksParams& p, int index) {
  const int heads = p.rows.cache.heads;
  const int index_of_span = index / heads;
  int group = 0, end = p.group_count;
  while (end - group > 1) {
    const int middle = (group + end) / 2;
    (p.groups[middle].spans_before <= index_of_span ? group : end) = middle;
  }
  const SpanRows of = p.groups[group];
  const int rows = p.groups[group + 1].first - of.first;
  const int in_group = index_of_span - of.spans_before;
  const int at = of.first + in_group % rows;
  const int64_t row = p.list == nullptr ? p.first + at : p.list[at];
  return {row, at, index % heads, in_group / rows, p.rows.places.position[row]};
}

/// Where in the ring a thread is.
struct RingPlace {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void go(int steps) {
    slot += steps;
    while (slot >= kSpanSlots) {
      slot -= kSpanSlots;
      parity ^= 1;
    }
  }
};

/// By the threads that copy: a block's keys, 64 rows of 256 bytes, or its values, 128 rows of 128 bytes;
/// pieces of 16 bytes lie at piece ^ row % 8.
__device__ inline void copy_half(uint32_t slot, const uint16_t* from, int shift) {
  const int me = static_cast<int>(threadIdx.x) - kAttending;
#pragma unroll 8
  for (int i = 0; i < 1024 / kCopying; ++i) {
    const int piece = i * kCopying + me;
    const int row = piece >> shift;
    const int in_row = piece & ((1 << shift) - 1);
    copy_async(slot + (row << (shift + 4)) + (in_row ^ (row & 7)) * 16, from + piece * 8);
  }
}

/// By the warps that copy: the keys of a span's blocks, then their values.
__device__ inline void copy_spans(const BlocksParams& p, uint32_t ring, uint32_t full, uint32_t empty) {
  const int me = static_cast<int>(threadIdx.x) - kAttending;
  const CacheView& cache = p.rows.cache;
  const int items = span_items(p);
  RingPlace place;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < items; index += static_cast<int>(gridDim.x)) {
    const SpanItem item = span_item(p, index);
    const int blocks = item.blocks();
    if (blocks <= 0) continue;
    const int32_t* const pages =
        p.rows.places.pages + p.rows.places.first_page[item.row] + item.span * kSpanBlocks;
    const int page = pages[min(me % 32, blocks - 1)];
    wait_for_earlier_kernels();  // at once from the second time on
#pragma unroll 1
    for (int half = 0; half < 2 * blocks; ++half) {
      const bool values = half >= blocks;
      const int64_t slot =
          cache.slot(p.rows.layer, __shfl_sync(kAll, page, values ? half - blocks : half), item.kv_head);
      barrier_wait(empty + place.slot * 8, place.parity ^ 1);
      const uint32_t to = ring + place.slot * kSpanSlotBytes;
      if (!values && me < 8) {
        copy_async(to + kExponentsAt + me * 16,
                   (me < 4 ? cache.key_exponents : cache.value_exponents) + slot + me % 4 * 16);
      }
      copy_half(to, (values ? cache.values : cache.keys) + slot * kHead, values ? 3 : 4);
      barrier_arrive_after_copies(full + place.slot * 8);
      place.go(1);
    }
  }
}

/// Scores of a lane's keys, as they come.
__device__ inline void score_keys(float (&scores)[16], uint32_t keys, const uint8_t* exponents,
                                  const uint4 (&q)[4], float q_power, int visible) {
  const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
  float c[8][4];
  multiply_keys(c, keys, 0, q);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const char2 e = *reinterpret_cast<const char2*>(exponents + 8 * j + pair);
    scores[2 * j] = 8 * j + pair < visible ? (c[j][0] * q_power) * (kScale * plain_power(e.x)) : -INFINITY;
    scores[2 * j + 1] =
        8 * j + pair + 1 < visible ? (c[j][1] * q_power) * (kScale * plain_power(e.y)) : -INFINITY;
  }
}

__device__ inline Weighed weigh(float (&scores)[16], const char2 (&exponents)[8]) {
  Weighed out;
  float largest = scores[0];
#pragma unroll
  for (int i = 1; i < 16; ++i) largest = fmaxf(largest, scores[i]);
  out.m = rintf(quad_max(largest));
  float l = 0.0F;
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float weight = weight_of(scores[i], out.m);
    scores[i] = weight * plain_power(i % 2 == 0 ? exponents[i / 2].x : exponents[i / 2].y);
    l = l + weight;
    sum = sum + scores[i];
  }
  out.l = quad_sum(l);
  const int z = weight_exponent(quad_sum(sum));
  out.up = plain_power(z);
  const float down = plain_power(-z);
#pragma unroll
  for (int j = 0; j < 8; ++j) out.weights[j] = half_pair(scores[2 * j] * down, scores[2 * j + 1] * down);
  return out;
}

/// The factors of what was folded up to m, and of what joins it with its own m (rule 8).
struct Factors {
  float before, own;
};
__device__ inline Factors factors_of(float m, float own, float largest) {
  return {short_factor(m - largest), short_factor(own - largest)};
}

/// A span's blocks, in order: 16 threads a head, eight dimensions each.
__device__ inline void fold_span(const BlocksParams& p, const SpanItem& item, int sharing,
                                 const SpanShared& shared) {
  const int head = static_cast<int>(threadIdx.x) / 16;
  if (head >= sharing) return;
  const int blocks = item.blocks();
  const int d = static_cast<int>(threadIdx.x) % 16 * 4;
  float m = -INFINITY, l = 0.0F;
  float4 o[2] = {};
#pragma unroll
  for (int b = 0; b < kSpanBlocks; ++b) {
    if (b >= blocks) break;
    const float2 size = shared.sizes[b][head];
    const float largest = fmaxf(m, size.x);
    const Factors by = factors_of(m, size.x, largest);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 x = *reinterpret_cast<const float4*>(&shared.o[b][head][d + 64 * half]);
      float4& to = o[half];
      to = {to.x * by.before + x.x * by.own, to.y * by.before + x.y * by.own, to.z * by.before + x.z * by.own,
            to.w * by.before + x.w * by.own};
    }
    l = l * by.before + size.y * by.own;
    m = largest;
  }
  const int64_t at = (item.at * p.rows.heads + item.kv_head * sharing + head) * p.spans + item.span;
  float* const to = p.partials + at * kHead + d;
  *reinterpret_cast<float4*>(to) = o[0];
  *reinterpret_cast<float4*>(to + 64) = o[1];
  if (d == 0) p.sizes[at] = {m, l};
}

/// By the four warps that attend.
__device__ inline void attend(const BlocksParams& p, uint8_t* memory, SpanShared& shared, uint32_t full,
                              uint32_t empty) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const uint32_t ring = shared_address(memory);
  const int sharing = p.rows.heads / p.rows.cache.heads;
  const int items = span_items(p);
  RingPlace span_place;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < items; index += static_cast<int>(gridDim.x)) {
    const SpanItem item = span_item(p, index);
    const int blocks = item.blocks();
    if (blocks <= 0) continue;
    RingPlace place = span_place;
    place.go(warp);
    span_place.go(2 * blocks);
    Weighed w;
    if (warp < blocks) {
      const int64_t head = item.row * p.rows.heads + item.kv_head * sharing + min(g, sharing - 1);
      uint4 q[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[i] = reinterpret_cast<const uint4*>(p.queries.halves + head * kHead + 32 * t)[i];
      }
      float q_power = p.queries.powers[head];
      if (q_power < 0.0F) {
        q_power = 1.0F;
        p.rows.failed[item.row] = 1;
      }
      float scores[16];
      char2 exponents[8];
      barrier_wait(full + place.slot * 8, place.parity);
      const uint8_t* const of_keys = memory + place.slot * kSpanSlotBytes + kExponentsAt;
      score_keys(scores, ring + place.slot * kSpanSlotBytes, of_keys, q, q_power,
                 item.position + 1 - (item.span * kSpanBlocks + warp) * 64);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        exponents[j] = *reinterpret_cast<const char2*>(of_keys + 64 + 8 * j + 2 * t);
      }
      barrier_arrive(empty + place.slot * 8);
      w = weigh(scores, exponents);
    }
    named_barrier(1, kAttending);  // the last span has been folded
    if (warp < blocks) {
      place.go(blocks);
      barrier_wait(full + place.slot * 8, place.parity);
      float* const o = &shared.o[warp][g][2 * t];
#pragma unroll
      for (int first = 0; first < 16; first += 8) {
        float c[8][4];
        multiply_values(c, ring + place.slot * kSpanSlotBytes, first, w.weights);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          *reinterpret_cast<float2*>(o + 8 * (first + i)) = {c[i][0] * w.up, c[i][1] * w.up};
        }
      }
      barrier_arrive(empty + place.slot * 8);
      if (t == 0) shared.sizes[warp][g] = {w.m, w.l};
    }
    named_barrier(1, kAttending);
    fold_span(p, item, sharing, shared);
  }
}

__global__ void __launch_bounds__(kThreads, kSpansAtOnce) spans_kernel(BlocksParams p) {
  let_later_kernels_begin();
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<SpanShared*>(memory + kSpanSlots * kSpanSlotBytes);
  const uint32_t full = shared_address(shared.full);
  const uint32_t empty = shared_address(shared.empty);
  if (threadIdx.x < kSpanSlots) {
    barrier_init(full + threadIdx.x * 8, kCopying);
    barrier_init(empty + threadIdx.x * 8, 32);
  }
  __syncthreads();
  if (threadIdx.x >= kAttending) {
    copy_spans(p, shared_address(memory), full, empty);
  } else {
    wait_for_earlier_kernels();
    attend(p, memory, shared, full, empty);
  }
}

constexpr int kFoldStep = 8;   // spans
constexpr int kFewFolds = 64;  // rows times heads

/// How many spans are folded at a time, and how many such chunks are under way. One head has few threads,
/// which wait for little but memory; a leaf has many.
template <int kChunkSpans, int kStageCount>
struct FoldForm {
  static constexpr int kChunk = kChunkSpans;
  static constexpr int kStages = kStageCount;
  static constexpr int kRing = kChunk * kStages;
  static constexpr int kSpanBytes = 32 * sizeof(float);  // of a warp's numbers
  static constexpr int kFactorBytes = kChunk * sizeof(float4);

  /// Shared memory of a warp, where there are so many spans: factors, then numbers.
  __host__ __device__ static int warp_bytes(int spans) {
    const int whole = (spans + kFoldStep - 1) / kFoldStep * kFoldStep;
    return kFactorBytes + (whole < kRing ? whole : kRing) * kSpanBytes;
  }
};
using HeadFold = FoldForm<64, 2>;
using LeafFold = FoldForm<16, 3>;

/// The running maximum before each of a lane's spans, and after the last: `m` of a chunk's spans, of which a
/// lane has kOwn that follow each other; `before`: that of earlier chunks.
template <int kOwn>
__device__ inline void running_maxima(const float2 (&sizes)[kOwn], float before, float (&out)[kOwn + 1]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float largest = sizes[0].x;
#pragma unroll
  for (int i = 1; i < kOwn; ++i) largest = fmaxf(largest, sizes[i].x);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(kAll, largest, step);
    if (lane >= step) largest = fmaxf(largest, other);
  }
  const float above = __shfl_up_sync(kAll, largest, 1);
  out[0] = lane == 0 ? before : fmaxf(before, above);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) out[i + 1] = fmaxf(out[i], sizes[i].x);
}

/// Numbers 32·quarter + lane of a head's result, by a warp: its spans folded in order. Lanes find the factors
/// of a chunk's spans, which follow from the running maximum, so that nothing but a product and a sum waits
/// for the span before. `row`: among those that attend.
template <class Form>
__device__ inline float fold_spans(const BlocksParams& p, int spans, int64_t row, int64_t head, int quarter,
                                   uint8_t* memory) {
  constexpr int kOwn = Form::kChunk > 32 ? Form::kChunk / 32 : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = (row * p.rows.heads + head) * p.spans;
  const float* const from = p.partials + first * kHead + quarter * 32 + lane % 8 * 4;
  auto* const factors = reinterpret_cast<float4*>(memory);
  auto* const numbers = reinterpret_cast<float*>(factors + Form::kChunk);
  const auto shared = shared_address(numbers) + lane % 8 * 16;
  // What spans lack of a step is zeros.
  const auto ask = [&](int begin) {
    const int end = min(begin + Form::kChunk, (spans + kFoldStep - 1) / kFoldStep * kFoldStep);
#pragma unroll 2
    for (int s = begin + lane / 8; s < end; s += 4) {
      copy_async_or_zero(shared + s % Form::kRing * Form::kSpanBytes,
                         from + int64_t{min(s, spans - 1)} * kHead, s < spans);
    }
    commit_copies();
  };
  float2 sizes[kOwn];
  const auto read_sizes = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int s = lane * kOwn + i;
      const bool real = s < Form::kChunk && begin + s < spans;
      sizes[i] = real ? p.sizes[first + begin + s] : float2{-INFINITY, 0.0F};
    }
  };
  read_sizes(0);
#pragma unroll 1
  for (int stage = 0; stage < Form::kStages; ++stage) ask(stage * Form::kChunk);
  float m = -INFINITY, l = 0.0F, o = 0.0F;
#pragma unroll 1
  for (int begin = 0; begin < spans; begin += Form::kChunk) {
    float maxima[kOwn + 1];
    running_maxima(sizes, m, maxima);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const Factors by = factors_of(maxima[i], sizes[i].x, maxima[i + 1]);
      if (lane * kOwn < Form::kChunk) {
        factors[lane * kOwn + i] = {by.before, by.own, sizes[i].y * by.own, 0.0F};
      }
    }
    m = __shfl_sync(kAll, maxima[kOwn], 31);
    read_sizes(begin + Form::kChunk);
    wait_for_copies<Form::kStages - 1>();
    __syncwarp();
    const float* const x = numbers + begin % Form::kRing * 32 + lane;
    const int here = min(Form::kChunk, spans - begin);
#pragma unroll 1
    for (int s = 0; s < here; s += kFoldStep) {
      float4 by[kFoldStep];
      float own[kFoldStep];
#pragma unroll
      for (int i = 0; i < kFoldStep; ++i) {
        by[i] = factors[s + i];
        own[i] = x[(s + i) * 32] * by[i].y;
      }
#pragma unroll
      for (int i = 0; i < kFoldStep; ++i) {
        o = o * by[i].x + own[i];
        l = l * by[i].x + by[i].z;
      }
    }
    __syncwarp();
    ask(begin + Form::kRing);
  }
  return o / l;
}

/// What both folds do first: where rows are no kernel writes, so it may be read before earlier ones end.
struct FoldedRow {
  int64_t row;
  int spans;
};
__device__ inline FoldedRow folded_row(const BlocksParams& p) {
  let_later_kernels_begin();
  const int at = static_cast<int>(blockIdx.x);
  const int64_t row = p.list == nullptr ? p.first + at : p.list[at];
  const int spans = p.rows.places.position[row] / (64 * kSpanBlocks) + 1;
  wait_for_earlier_kernels();
  return {row, spans};
}

/// For a head of a row, or a quarter of one.
__global__ void __launch_bounds__(kHead) fold_spans_kernel(BlocksParams p) {
  extern __shared__ __align__(128) uint8_t memory[];
  const FoldedRow of = folded_row(p);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int i = static_cast<int>(blockIdx.z * blockDim.x + threadIdx.x);  // of the head
  p.rows.out[of.row * p.rows.ld_out + int64_t{blockIdx.y} * kHead + i] = fold_spans<HeadFold>(
      p, of.spans, blockIdx.x, blockIdx.y, i / 32, memory + warp * HeadFold::warp_bytes(p.spans));
}

/// The same for a leaf of a row, which is then rounded as round_held_rows() does it; a leaf that fails
/// becomes zeros.
__global__ void __launch_bounds__(kFoldedLeaf) fold_and_round_kernel(BlocksParams p) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ uint32_t largest_of[32];
  __shared__ int sums_of[32];
  const FoldedRow of = folded_row(p);
  const int64_t row = of.row;
  const int leaf = static_cast<int>(blockIdx.y);
  const int i = leaf * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);  // of the row
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float x = fold_spans<LeafFold>(p, of.spans, blockIdx.x, i / kHead, i % kHead / 32,
                                       memory + warp * LeafFold::warp_bytes(p.spans));
  p.rows.out[row * p.rows.ld_out + i] = x;
  const uint32_t largest = warp_max(magnitude_bits(x));
  if (lane == 0) largest_of[warp] = largest;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int of_leaf = ceil_exponent(float_from_bits(warp_max(lane < warps ? largest_of[lane] : 0U)));
  const int of_group = ceil_exponent(float_from_bits(max(largest_of[warp], largest_of[warp ^ 1])));
  const bool good = !exponent_fails(of_leaf);
  const int e = good ? of_leaf : 0;
  const int step = good ? max(of_group, e - 16) - 13 : 0;
  const int n = good ? static_cast<int>(round_plainly(x, step) * plain_power(-step)) : 0;
  const int sum = warp_sum(n);
  if (lane == 0) sums_of[warp] = sum;
  p.rounded.halves[row * p.rows.ld_out + half_slot(i)] =
      half_bits(static_cast<float>(n) * plain_power(step - e + 15 - i % 2 * 4));
  __syncthreads();
  if (lane == 0 && warp % 2 == 0) {
    const int64_t groups = p.rows.ld_out / kBlock;
    p.rounded.sums[row * groups + i / kBlock] =
        static_cast<float>(sums_of[warp] + sums_of[warp + 1]) * plain_power(step - e - 9);
  }
  if (threadIdx.x > 0) return;
  p.rounded.leaf_units[row * p.leaves + leaf] = plain_power(e + 9);
  if (!good) p.rows.failed[row] = 1;
}

constexpr int kRoundWarps = 8;

__global__ void __launch_bounds__(kRoundWarps * 32) round_queries_kernel(RoundQueriesParams p) {
  after_earlier_kernels();
  const int64_t index = int64_t{blockIdx.x} * kRoundWarps + threadIdx.x / 32;
  if (index >= int64_t{p.rows} * p.heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* const from = p.qkv + index / p.heads * p.ld + index % p.heads * kHead + lane;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = from[32 * i];
  put_query(p.queries.halves + index * kHead, p.queries.powers + index, x);
}

}  // namespace

void round_queries(Launcher& launcher, const RoundQueriesParams& params) {
  const int64_t warps = int64_t{params.rows} * params.heads;
  launcher.add(round_queries_kernel, dim3(static_cast<unsigned>((warps + kRoundWarps - 1) / kRoundWarps)),
               dim3(kRoundWarps * 32), params);
}

void attention_blocks(Launcher& launcher, const BlocksParams& params) {
  const auto rows = static_cast<unsigned>(params.rows.rows);
  const int64_t items = int64_t{params.rows.cache.heads} * params.rows.rows * params.spans;
  launcher.add(
      spans_kernel,
      dim3(static_cast<unsigned>(std::min<int64_t>(items, int64_t{kSpansAtOnce} * params.processors))),
      dim3(kThreads), params, kSpanShared);
  if (params.rounded.halves != nullptr) {
    const auto columns = static_cast<unsigned>(params.rows.ld_out / params.leaves);
    launcher.add(fold_and_round_kernel, dim3(rows, static_cast<unsigned>(params.leaves)), dim3(columns),
                 params, static_cast<size_t>(columns / 32) * LeafFold::warp_bytes(params.spans));
  } else {
    // Few heads are folded by quarters, to have more multiprocessors at work.
    const unsigned parts = params.rows.rows * params.rows.heads <= kFewFolds ? kHead / 32 : 1;
    const unsigned threads = kHead / parts;
    launcher.add(fold_spans_kernel, dim3(rows, static_cast<unsigned>(params.rows.heads), parts),
                 dim3(threads), params,
                 static_cast<size_t>(threads / 32) * HeadFold::warp_bytes(params.spans));
  }
}

}  // namespace tercet::cuda
