#include "backend/cuda/kernels/choose.cuh"
#include "backend/cuda/kernels/fragments.cuh"
#include "backend/cuda/kernels/program.h"
#include "backend/cuda/kernels/program_attention.cuh"
#include "backend/cuda/kernels/program_rows.cuh"
#include "backend/cuda/kernels/write_head.cuh"

namespace tercet::cuda {
namespace {

// A warp takes its share of a phase's jobs, a leaf of a tile each, one after another. Their bytes come
// through a ring of its own in shared memory, a few groups at a time; what is asked for runs ahead of what is
// computed, into the next phase where that one's weights are known.
constexpr int kStages = 3;
constexpr int kStageBytes = 2304;  // 4 groups of one plane with their scales, or 2 of two planes

/// An expert of each row, as routes have it.
struct Chosen {
  int32_t experts[kProgramChosen];
  float weights[kProgramChosen];
};

/// Items of a work that a block takes: by their cost, all works of the phase counting.
struct Share {
  int first, end;
};

/// A warp's place among the jobs of a phase that it asks for.
struct JobState {
  int work;         // the last that it entered
  int first;        // item of that work's share
  int number, end;  // jobs
  int left;         // groups of the job that was found
  int more;         // there may be another one
  const uint8_t* values;
  const uint8_t* scales;
};

/// What a warp asks for, and what has arrived.
struct Flight {
  const uint8_t* values;
  const uint8_t* scales;
  int left;       // groups of the job that is asked for
  int planes;     // of its weights
  int more;       // there may be another job
  int fill, use;  // stages
  int ahead;      // that were asked for and not used
};

struct Fixed {
  Phase phases[2];
  Share shares[2][kPhaseWorks];
  JobState jobs[kProgramWarps];
  Flight flights[kProgramWarps];  // while no product runs
  RowScratch rows;
  Chosen chosen;
  RowPositions positions;
};

constexpr int kSharedBytes = 227 * 1024;  // that a block may have
constexpr int kFixedBytes = (sizeof(Fixed) + 127) / 128 * 128;
constexpr int kSumsAt = kFixedBytes;
constexpr int kRowsAt = kSumsAt + kProgramSums * 4;
constexpr int kRingAt = kSharedBytes - kProgramWarps * kStages * kStageBytes;
constexpr int kHalvesAt = kSharedBytes - kSpanBlocks * kHalves * kHalfBytes;
static_assert(kRowsAt + kProgramRowBytes <= kRingAt);
static_assert(kSumsAt + static_cast<int>(sizeof(AttentionScratch)) <= kHalvesAt);

__device__ inline Fixed& fixed() {
  extern __shared__ __align__(128) uint8_t memory[];
  return *reinterpret_cast<Fixed*>(memory);
}
__device__ inline uint8_t* shared_at(int bytes) { return reinterpret_cast<uint8_t*>(&fixed()) + bytes; }

__device__ inline Share share_of(const Phase& phase, int which) {
  const Work& w = phase.works[which];
  const auto item = [&](uint32_t block) {
    const auto part = static_cast<int>(block * phase.part >> 32) - w.before;
    return part <= 0 ? 0 : min(divide(part + static_cast<int>(w.cost.value) - 1, w.cost), w.items);
  };
  return {item(blockIdx.x), item(blockIdx.x + 1)};
}

__device__ inline bool is_product(WorkKind kind) {
  return kind == WorkKind::product || kind == WorkKind::experts || kind == WorkKind::down;
}

/// Where a job lies in its item.
struct Job {
  int item, slot, leaf;  // slot: gate or up, or which expert of a row
};
__device__ inline Job job_of(const ProductWork& w, int first_item, int number) {
  const int item = divide(number, w.leaf_jobs);
  const int in_item = number - item * static_cast<int>(w.leaf_jobs.value);
  return {first_item + item, in_item >> w.leaf_shift, in_item & ((1 << w.leaf_shift) - 1)};
}

/// Finds the next job of the calling warp in a phase; false where there is none, or (`ahead`) none whose
/// weights are known before the phase begins.
static __device__ __noinline__ bool next_job(const Phase& phase, bool ahead) {
  JobState& state = fixed().jobs[threadIdx.x / 32];
  int work_index = state.work;
  int first = state.first;
  int number = state.number;
  int end = state.end;
  __syncwarp();
#pragma unroll 1
  while (number >= end) {
    if (work_index + 1 >= phase.work_count || (ahead && phase.works[work_index + 1].early == 0)) break;
    ++work_index;
    const Work& work = phase.works[work_index];
    if (!is_product(work.kind)) continue;
    const Share share = share_of(phase, work_index);
    first = share.first;
    number = static_cast<int>(threadIdx.x) / 32;
    end = (share.end - share.first) * static_cast<int>(work.product.leaf_jobs.value);
  }
  state.work = work_index;
  state.first = first;
  state.end = end;
  state.number = number + kProgramWarps;
  if (number >= end) {
    state.number = number;
    __syncwarp();
    return false;
  }
  const Work& work = phase.works[work_index];
  const ProductWork& p = work.product;
  const Job job = job_of(p, first, number);
  int tile = job.item;
  int expert = 0;
  if (work.kind != WorkKind::product) {
    const int of = divide(job.item, p.tiles);  // pair, or row
    tile -= of * static_cast<int>(p.tiles.value);
    expert = fixed().chosen.experts[work.kind == WorkKind::down ? of * p.choose.chosen + job.slot : of];
  }
  if (p.swiglu != 0) tile += job.slot * static_cast<int>(p.tiles.value);
  state.left = p.groups;
  state.more = number + kProgramWarps < end || work_index + 1 < phase.work_count ? 1 : 0;
  const auto at = static_cast<uint32_t>(tile);
  const auto leaf = static_cast<uint32_t>(job.leaf);
  state.values = p.values + expert * p.values_stride + (at * p.values_tile + leaf * p.values_leaf);
  state.scales = p.scales + expert * p.scales_stride + (at * p.scales_tile + leaf * p.scales_leaf);
  __syncwarp();
  return true;
}

struct Fetcher : Flight {
  __device__ Fetcher() : Flight(fixed().flights[threadIdx.x / 32]) { __syncwarp(); }
  __device__ void keep() const {
    fixed().flights[threadIdx.x / 32] = *this;
    __syncwarp();
  }

  static __device__ uint8_t* ring() {
    return shared_at(kRingAt) + static_cast<int>(threadIdx.x) / 32 * kStages * kStageBytes;
  }

  __device__ void ask(const Phase& phase, bool before) {
    if (left == 0 && more != 0 && next_job(phase, before)) {
      const JobState& state = fixed().jobs[threadIdx.x / 32];
      more = state.more;
      values = state.values;
      scales = state.scales;
      left = state.left;
      planes = phase.works[state.work].product.planes;
      __syncwarp();
    }
    if (left > 0) {
      const int groups = min(left, planes == 2 ? 2 : 4);
      const int bytes = groups * planes * kBlockBytes;
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const auto stage = shared_address(ring() + fill * kStageBytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i * 512 < bytes) copy_async(stage + i * 512 + lane * 16, values + i * 512 + lane * 16);
      }
      if (lane < groups * 4) copy_async(stage + 2048 + lane * 16, scales + lane * 16);
      values += bytes;
      scales += groups * (kTile * 4);
      left -= groups;
      fill = fill == kStages - 1 ? 0 : fill + 1;
      ++ahead;
    }
    commit_copies();
  }

  /// The next stage's bytes have arrived; they stay until the next call.
  __device__ const uint8_t* next(const Phase& phase) {
    wait_for_copies<kStages - 2>();
    __syncwarp();
    ask(phase, false);
    --ahead;
    const uint8_t* const stage = ring() + use * kStageBytes;
    use = use == kStages - 1 ? 0 : use + 1;
    return stage;
  }
};

/// Asks until as much is on its way as a phase's products expect. `before`: the phase has not begun.
static __device__ __noinline__ void ask_ahead(const Phase& phase, bool before, bool first) {
  Fetcher f;
  if (first) {
    JobState& state = fixed().jobs[threadIdx.x / 32];
    state.work = -1;
    state.first = state.number = state.end = 0;
    __syncwarp();
  }
  f.more = 1;
#pragma unroll 1
  for (int i = f.ahead; i < kStages - 1; ++i) f.ask(phase, before);
  f.keep();
}

/// The chain of a job's leaf with up to 4·kQuads rows, of which the first lies at `row`; rows are `apart`
/// bytes apart. A lane gets outputs lane/4 and lane/4 + 8, token lane%4 of each four.
template <int kPlanes, int kQuads>
__device__ inline void chain(Fetcher& fetcher, const Phase& phase, int k, const uint8_t* row, int rows,
                             int apart, int first_group, int groups, float (&acc)[kQuads][2]) {
  constexpr int kGroups = kPlanes == 2 ? 2 : 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const uint8_t* columns[kQuads];
  const UnitSum* units[kQuads];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    // Tokens that are not there repeat the last: their sums are nobody's.
    const SharedRow x{const_cast<uint8_t*>(row) + min(q * kTokens + g / 2, rows - 1) * apart, k};
    const SharedRow u{const_cast<uint8_t*>(row) + min(q * kTokens + t, rows - 1) * apart, k};
    columns[q] = x.plane(g % 2) + first_group * kBlock + 16 * t;
    units[q] = u.units() + first_group;
    acc[q][0] = acc[q][1] = 0.0F;
  }
#pragma unroll 1
  for (int done = 0; done < groups; done += kGroups) {
    const uint8_t* const stage = fetcher.next(phase);
    const auto group = [&](int i) {
      uint4 values[kPlanes];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        values[plane] =
            *reinterpret_cast<const uint4*>(stage + (i * kPlanes + plane) * kBlockBytes + lane * 16);
      }
      const uint2 scales = *reinterpret_cast<const uint2*>(stage + 2048 + i * (kTile * 4) + g * 8);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        extend<kPlanes>(acc[q], values, scales,
                        *reinterpret_cast<const uint4*>(columns[q] + (done + i) * kBlock),
                        units[q][done + i]);
      }
    };
#pragma unroll(kQuads == 1 ? kGroups : 1)
    for (int i = 0; i < kGroups; ++i) {
      if (done + i < groups) group(i);
    }
  }
}

template <int kPlanes, int kQuads>
__device__ inline void run_job(Fetcher& fetcher, const Phase& phase, int k, const uint8_t* row, int rows,
                               int apart, int first_group, int groups, int held, float* sums) {
  float acc[kQuads][2];
  chain<kPlanes, kQuads>(fetcher, phase, k, row, rows, apart, first_group, groups, acc);
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  if (t >= rows) return;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    sums[g * held + q * kTokens + t] = acc[q][0];
    sums[(g + 8) * held + q * kTokens + t] = acc[q][1];
  }
}

template <int kPlanes>
__device__ inline void run_job(Fetcher& fetcher, const Phase& phase, int k, const uint8_t* row, int rows,
                               int apart, int first_group, int groups, int held, float* sums) {
  if (rows <= 4) {
    run_job<kPlanes, 1>(fetcher, phase, k, row, rows, apart, first_group, groups, held, sums);
  } else {
    run_job<kPlanes, 2>(fetcher, phase, k, row, rows, apart, first_group, groups, held, sums);
  }
}

/// The leaves' sums of an output and row, in order.
__device__ inline float add_leaves(const float* sums, int leaf_shift, int apart) {
  float of_leaf[8];
#pragma unroll
  for (int l = 0; l < 8; ++l) {
    if (l >> leaf_shift == 0) of_leaf[l] = sums[l * apart];
  }
  float sum = of_leaf[0];
#pragma unroll
  for (int l = 1; l < 8; ++l) {
    if (l >> leaf_shift == 0) sum = sum + of_leaf[l];
  }
  return sum;
}

/// Writes the results of items [first, first + count), whose leaves' sums are complete.
static __device__ __noinline__ void finish_items(const Work& work, int first, int count, const float* sums) {
  const ProductWork& p = work.product;
  const auto rows = static_cast<int>(p.rows.value);
  const int apart = kTile * p.held;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count * kTile * rows; i += kProgramThreads) {
    const int output = i % kTile;
    const int in_round = divide(i / kTile, p.rows);
    const int row = i / kTile - in_round * rows;
    int tile = first + in_round;
    int out_row = row;
    if (work.kind != WorkKind::product) {
      out_row = divide(tile, p.tiles);
      tile -= out_row * static_cast<int>(p.tiles.value);
    }
    const int n = tile * kTile + output;
    if (n >= p.outputs) continue;
    const int64_t at = out_row * p.ldy + n;
    const float before = p.sum != nullptr ? p.sum[at] : 0.0F;
    const float* const from =
        sums + (in_round * static_cast<int>(p.leaf_jobs.value) * kTile + output) * p.held + row;
    float value = 0.0F;
    if (work.kind == WorkKind::down) {
      const float* const weights = fixed().chosen.weights + out_row * p.choose.chosen;
      const float shared = p.shared != nullptr ? p.shared[at] : 0.0F;
#pragma unroll 1
      for (int j = 0; j < p.choose.chosen; ++j) {
        value = fma_(weights[j], add_leaves(from + (j << p.leaf_shift) * apart, p.leaf_shift, apart), value);
      }
      if (p.shared != nullptr) value = value + shared;
    } else {
      value = add_leaves(from, p.leaf_shift, apart);
      if (p.swiglu != 0) {
        value = swiglu(value, add_leaves(from + (apart << p.leaf_shift), p.leaf_shift, apart));
      }
    }
    p.y[at] = value;
    if (p.sum != nullptr) p.sum[at] = before + value;
  }
}

static __device__ __noinline__ void run_product(const Phase& phase, int which, Share share) {
  const Work& work = phase.works[which];
  const ProductWork& p = work.product;
  const Source& source = phase.sources[work.source];
  const int jobs = (share.end - share.first) * static_cast<int>(p.leaf_jobs.value);
  if (jobs == 0) return;
  Fetcher fetcher;
  auto* const sums = reinterpret_cast<float*>(shared_at(kSumsAt));
  const uint8_t* const rows = shared_at(kRowsAt) + source.shared;
  int number = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int first = 0; first < jobs; first += p.together) {
    const int end = min(first + p.together, jobs);
#pragma unroll 1
    for (; number < end; number += kProgramWarps) {
      const Job job = job_of(p, share.first, number);
      int row = 0;
      if (work.kind == WorkKind::experts) {
        row = divide(divide(job.item, p.tiles), p.chosen) * p.row_step;
      } else if (work.kind == WorkKind::down) {
        row = (divide(job.item, p.tiles) - divide(share.first, p.tiles)) * static_cast<int>(p.chosen.value) +
              job.slot;
      }
      const uint8_t* const from = rows + row * p.row_bytes;
      float* const to = sums + (number - first) * kTile * p.held;
      const auto job_rows = static_cast<int>(p.rows.value);
      const int apart = p.row_step * p.row_bytes;
      if (p.planes == 2) {
        run_job<2>(fetcher, phase, source.k, from, job_rows, apart, p.groups * job.leaf, p.groups, p.held,
                   to);
      } else {
        run_job<1>(fetcher, phase, source.k, from, job_rows, apart, p.groups * job.leaf, p.groups, p.held,
                   to);
      }
    }
    __syncthreads();
    finish_items(work, share.first + divide(first, p.leaf_jobs), divide(end - first, p.leaf_jobs), sums);
    if (end < jobs) __syncthreads();
  }
  fetcher.keep();
}

template <int kPer>
__device__ __noinline__ void choose_by_warp(const ChooseParams& c) {
  const int row = static_cast<int>(threadIdx.x) / 32;
  auto* const scratch = reinterpret_cast<ChooseScratch*>(shared_at(kSumsAt));  // before there are sums
  choose_of_row<kPer>(c, row, scratch[row], [&](int place, int expert, float weight) {
    const int at = row * c.chosen + place;
    fixed().chosen.experts[at] = expert;
    fixed().chosen.weights[at] = weight;
    if (blockIdx.x > 0) return;
    c.chosen_experts[at] = expert;
    c.weights[at] = weight;
  });
}

static __device__ __noinline__ void write_head_alone(const WriteKvAndQueriesParams& p, int row, int head) {
  write_head(p, row, head);
}

/// The choice of experts for row `warp`.
__device__ inline void choose(const ChooseParams& c) {
  if (static_cast<int>(threadIdx.x) / 32 >= c.rows) return;
  if (c.experts <= 128) {
    choose_by_warp<4>(c);
  } else {
    choose_by_warp<8>(c);
  }
}

__device__ inline void load_routes(const ChooseParams& c) {
  const auto i = static_cast<int>(threadIdx.x);
  if (i >= c.rows * c.chosen) return;
  fixed().chosen.experts[i] = c.chosen_experts[i];
  fixed().chosen.weights[i] = c.weights[i];
}

/// Rows in shared memory before a phase's products begin.
__device__ inline void take_sources(const Phase& phase, const Share* shares, const Team team) {
#pragma unroll 1
  for (int i = 0; i < phase.source_count; ++i) {
    const Source& s = phase.sources[i];
    uint8_t* const to = shared_at(kRowsAt) + s.shared;
    if (s.ready != 0) {
      load_source(s, to, team);
      continue;
    }
    int first = 0;
    int count = s.rows;
    if (s.pairs > 0) {
      const Divisor tiles = phase.works[0].product.tiles;
      first = divide(shares[0].first, tiles);
      count = shares[0].end == shares[0].first ? 0 : (divide(shares[0].end - 1, tiles) + 1 - first) * s.pairs;
      first *= s.pairs;
    }
    if (s.k > team.threads * 8) {
      round_source<2>(s, first, count, to, team, fixed().rows);
    } else {
      round_source<1>(s, first, count, to, team, fixed().rows);
    }
  }
}

__device__ inline void run_heads(const WriteKvAndQueriesParams& p, Share share) {
  const int heads = p.write.heads + 2 * p.write.cache.heads;
#pragma unroll 1
  for (int i = share.first + static_cast<int>(threadIdx.x) / 32; i < share.end; i += kProgramWarps) {
    write_head_alone(p, i / heads, i % heads);
  }
}

/// Asks for a phase's description.
__device__ inline void ask_for_phase(Phase& to, const Phase* from) {
  const auto shared = shared_address(&to);
  for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(sizeof(Phase));
       i += kProgramThreads * 16)
    copy_async(shared + i, reinterpret_cast<const uint8_t*>(from) + i);
  commit_copies();
}

__device__ inline void follow_hints(const Phase& phase) {
#pragma unroll
  for (const Hint& hint : phase.hints) {
    const int at = static_cast<int>(threadIdx.x) * 128;
    if (blockIdx.x == 0 && at < hint.bytes) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(hint.data) + at));
    }
  }
}

/// All blocks have arrived here, and what they wrote before is to be seen.
class GridBarrier {
 public:
  explicit __device__ GridBarrier(uint64_t* arrived)
      : arrived_(reinterpret_cast<unsigned long long*>(arrived)) {}

  /// By all threads.
  __device__ void arrive() {
    __syncthreads();
    if (threadIdx.x != kWaiter) return;
    if (goal_ == 0) {
      __threadfence();
      const unsigned long long before = atomicAdd(arrived_, 1);
      goal_ = before - before % gridDim.x;
    } else {
      asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(arrived_) : "memory");
    }
    goal_ += gridDim.x;
  }
  __device__ void wait() {
    if (threadIdx.x == kWaiter) {
      unsigned long long now = 0;
      do {
        asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(now) : "l"(arrived_) : "memory");
      } while (now < goal_);
    }
    __syncthreads();
  }

 private:
  static constexpr int kWaiter = kProgramThreads - 32;  // in the warp that has least to do
  unsigned long long* arrived_;
  unsigned long long goal_ = 0;
};

__global__ void __launch_bounds__(kProgramThreads, 1) program_kernel(ProgramParams p) {
  GridBarrier barrier(p.arrived);
  const auto prepare = [](int which) {
    const Phase& phase = fixed().phases[which];
    const int me = static_cast<int>(threadIdx.x) - (kProgramThreads - 64);  // a warp that often has no jobs
    if (me < 0 || me >= 32) return;
    if (me < phase.work_count) fixed().shares[which][me] = share_of(phase, me);
    const Work& first = phase.works[0];
    if (first.kind != WorkKind::attention || me >= first.attention.rows.rows) return;
    const RowPlaces& places = first.attention.rows.places;
    fixed().positions.at[me] = places.position[me];
    fixed().positions.first_page[me] = places.first_page[me];
  };
  ask_for_phase(fixed().phases[0], p.phases);
  wait_for_copies<0>();
  __syncthreads();
  prepare(0);
  if (threadIdx.x % 32 == 0) fixed().flights[threadIdx.x / 32] = {};
  __syncwarp();
  ask_ahead(fixed().phases[0], true, true);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < p.count; ++i) {
    const int here = i % 2;
    const Phase& phase = fixed().phases[here];
    const Share* const shares = fixed().shares[here];
    const bool more = i + 1 < p.count;
    if (more) ask_for_phase(fixed().phases[1 - here], p.phases + i + 1);
    const Work& last = phase.works[phase.work_count - 1];
    if (last.kind == WorkKind::experts && last.product.choose.logits != nullptr) {
      // Half of the warps choose while the others round.
      if (threadIdx.x < kProgramThreads / 2) {
        choose(last.product.choose);
      } else {
        take_sources(phase, shares,
                     {static_cast<int>(threadIdx.x) - kProgramThreads / 2, kProgramThreads / 2});
      }
    } else {
      if (last.kind == WorkKind::experts || (last.kind == WorkKind::down && last.early == 0)) {
        load_routes(last.product.choose);
      }
      take_sources(phase, shares, {static_cast<int>(threadIdx.x), kProgramThreads});
    }
    __syncthreads();
    if (phase.late != 0) ask_ahead(phase, false, false);
#pragma unroll 1
    for (int w = 0; w < phase.work_count; ++w) {
      if (w > 0) __syncthreads();
      const Work& work = phase.works[w];
      if (is_product(work.kind)) {
        run_product(phase, w, shares[w]);
      } else if (work.kind == WorkKind::attention) {
        attend(work.attention, work.items, fixed().positions,
               *reinterpret_cast<AttentionScratch*>(shared_at(kSumsAt)), shared_at(kHalvesAt));
      } else if (work.kind == WorkKind::write_kv) {
        run_heads(work.write, shares[w]);
      } else if (work.kind == WorkKind::fold) {
        const int heads = work.attention.rows.heads;
        for (int j = shares[w].first; j < shares[w].end; ++j)
          fold_spans(work.attention, j / heads, j % heads, 1, fixed().positions.at[j / heads]);
      }
    }
    if (!more) break;
    wait_for_copies<0>();
    barrier.arrive();
    prepare(1 - here);
    follow_hints(fixed().phases[1 - here]);
    ask_ahead(fixed().phases[1 - here], true, true);
    barrier.wait();
  }
}

}  // namespace

void run_program(Launcher& launcher, const ProgramParams& params, int processors) {
  launcher.add_first(program_kernel, dim3(static_cast<unsigned>(processors)), dim3(kProgramThreads), params,
                     kSharedBytes, true);
}

}  // namespace tercet::cuda
