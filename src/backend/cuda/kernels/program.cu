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

/// What a warp asks for, and what has arrived.
struct Flight {
  const uint8_t* values;
  const uint8_t* scales;
  int next;       // job of the phase that is asked for
  int left;       // groups of the job that is asked for
  int planes;     // of its weights
  int fill, use;  // stages
  int ahead;      // that were asked for and not used
};

struct Fixed {
  Phase phases[2];
  uint8_t shares[2][kShareBytes];
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

/// A block's part of phase `which` of the two that are held.
__device__ inline const Share& share_at(int which) {
  return *reinterpret_cast<const Share*>(fixed().shares[which]);
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

  /// Asks for a stage, of jobs below `end`.
  __device__ void ask(const Phase& phase, const Share& share, int end) {
    if (left == 0 && next < end) {
      const Job job = share.job_list()[next];
      const ProductWork& p = phase.works[job.work()].product;
      values = p.values + int64_t{job.its_leaf()} * (p.groups * p.planes * kBlockBytes);
      scales = p.scales + int64_t{job.its_leaf()} * (p.groups * kTile * 4);
      if (job.chosen != kNoExpert) {
        const int expert = fixed().chosen.experts[job.chosen];
        values += expert * p.values_stride;
        scales += expert * p.scales_stride;
      }
      left = p.groups;
      planes = p.planes;
      next += kProgramWarps;
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
  __device__ const uint8_t* next_stage(const Phase& phase, const Share& share) {
    wait_for_copies<kStages - 2>();
    __syncwarp();
    ask(phase, share, share.all_jobs);
    --ahead;
    const uint8_t* const stage = ring() + use * kStageBytes;
    use = use == kStages - 1 ? 0 : use + 1;
    return stage;
  }
};

/// Asks, for jobs below `end`, until as much is on its way as a phase's products expect. `first`: for the
/// first time in this phase.
static __device__ __noinline__ void ask_ahead(const Phase& phase, const Share& share, int end, bool first) {
  Fetcher f;
  if (first) f.next = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int i = f.ahead; i < kStages - 1; ++i) f.ask(phase, share, end);
  f.keep();
}

/// The chain of a job's leaf with up to 4·kQuads rows, of which the first lies at `row`; rows are `apart`
/// bytes apart. A lane gets outputs lane/4 and lane/4 + 8, token lane%4 of each four.
template <int kPlanes, int kQuads>
__device__ inline void chain(Fetcher& fetcher, const Phase& phase, const Share& share, int k,
                             const uint8_t* row, int rows, int apart, int first_group, int groups,
                             float (&acc)[kQuads][2]) {
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
    const uint8_t* const stage = fetcher.next_stage(phase, share);
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
__device__ inline void run_job(Fetcher& fetcher, const Phase& phase, const Share& share, int k,
                               const uint8_t* row, int rows, int apart, int first_group, int groups, int held,
                               float* sums) {
  float acc[kQuads][2];
  chain<kPlanes, kQuads>(fetcher, phase, share, k, row, rows, apart, first_group, groups, acc);
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
__device__ inline void run_job(Fetcher& fetcher, const Phase& phase, const Share& share, int k,
                               const uint8_t* row, int rows, int apart, int first_group, int groups, int held,
                               float* sums) {
  if (rows <= 4) {
    run_job<kPlanes, 1>(fetcher, phase, share, k, row, rows, apart, first_group, groups, held, sums);
  } else {
    run_job<kPlanes, 2>(fetcher, phase, share, k, row, rows, apart, first_group, groups, held, sums);
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

/// A number of y from the sums of its leaves: one of the outputs' numbers.
static __device__ __noinline__ void finish(const Phase& phase, const Outputs outputs, int number) {
  if (number > outputs.count) return;
  const Work& work = phase.works[outputs.work];
  const ProductWork& p = work.product;
  const uint32_t at = outputs.at + number;
  const float before = p.sum != nullptr ? p.sum[at] : 0.0F;
  const float* const from =
      reinterpret_cast<const float*>(shared_at(kSumsAt)) + outputs.sums + number * p.held;
  const int apart = kTile * p.held;
  float value = 0.0F;
  if (work.kind == WorkKind::down) {
    const float* const weights = fixed().chosen.weights + outputs.row * p.chosen;
    const float shared = p.shared != nullptr ? p.shared[at] : 0.0F;
#pragma unroll 1
    for (int j = 0; j < p.chosen; ++j) {
      value = fma_(weights[j], add_leaves(from + (j << p.leaf_shift) * apart, p.leaf_shift, apart), value);
    }
    if (p.shared != nullptr) value = value + shared;
  } else {
    value = add_leaves(from, p.leaf_shift, apart);
    if (p.swiglu != 0) value = swiglu(value, add_leaves(from + (apart << p.leaf_shift), p.leaf_shift, apart));
  }
  p.y[at] = value;
  if (p.sum != nullptr) p.sum[at] = before + value;
}

/// A block's share of a phase's products.
static __device__ __noinline__ void run_products(const Phase& phase, const Share& share) {
  Fetcher fetcher;
  const Job* const jobs = share.job_list();
  const Outputs* const outputs = share.output_list();
  int number = static_cast<int>(threadIdx.x) / 32;
  int output = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int round = 0; round < share.rounds; ++round) {
#pragma unroll 1
    for (; number < share.jobs[round]; number += kProgramWarps) {
      const Job job = jobs[number];
      const Work& work = phase.works[job.work()];
      const ProductWork& p = work.product;
      const Source& source = phase.sources[work.source];
      const int group = (job.its_leaf() & ((1 << p.leaf_shift) - 1)) * p.groups;
      const uint8_t* const from = shared_at(kRowsAt) + source.shared + job.row * p.row_bytes;
      float* const to = reinterpret_cast<float*>(shared_at(kSumsAt)) + job.sums * kTile;
      const int apart = p.row_step * p.row_bytes;
      if (p.planes == 2) {
        run_job<2>(fetcher, phase, share, source.k, from, p.rows, apart, group, p.groups, p.held, to);
      } else {
        run_job<1>(fetcher, phase, share, source.k, from, p.rows, apart, group, p.groups, p.held, to);
      }
    }
    __syncthreads();
#pragma unroll 1
    for (; output < share.outputs[round] * kTile; output += kProgramThreads) {
      finish(phase, outputs[output / kTile], output % kTile);
    }
    if (round + 1 < share.rounds) __syncthreads();
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
__device__ inline void take_sources(const Phase& phase, const Share& share, const Team team) {
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
      first = share.first_row;
      count = share.rows;
    }
    if (s.k > team.threads * 8) {
      round_source<2>(s, first, count, to, team, fixed().rows);
    } else {
      round_source<1>(s, first, count, to, team, fixed().rows);
    }
  }
}

/// The heads of a step's rows, a warp each.
__device__ inline void run_heads(const WriteKvAndQueriesParams& p, int items) {
  const int heads = p.write.heads + 2 * p.write.cache.heads;
  const int warps = static_cast<int>(gridDim.x) * kProgramWarps;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x); i < items; i += warps) {
    write_head_alone(p, i / heads, i % heads);
  }
}

/// Asks for a piece of memory, by all threads; bytes: a multiple of 16.
__device__ inline void ask_for(void* to, const void* from, int bytes) {
  const uint32_t shared = shared_address(to);
  for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += kProgramThreads * 16)
    copy_async(shared + i, static_cast<const uint8_t*>(from) + i);
}

/// Asks for a phase's description and this block's share of it, for place `which`.
__device__ inline void ask_for_phase(int which, const Phase* phase, const uint8_t* shares, int share_bytes) {
  ask_for(&fixed().phases[which], phase, sizeof(Phase));
  ask_for(fixed().shares[which], shares + int64_t{blockIdx.x} * share_bytes, share_bytes);
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

/// Where the rows that attend in a phase stand.
__device__ inline void prepare(const Phase& phase) {
  const int me = static_cast<int>(threadIdx.x) - (kProgramThreads - 64);  // a warp that often has no jobs
  const Work& first = phase.works[0];
  if (first.kind != WorkKind::attention || me < 0 || me >= first.attention.rows.rows) return;
  const RowPlaces& places = first.attention.rows.places;
  fixed().positions.at[me] = places.position[me];
  fixed().positions.first_page[me] = places.first_page[me];
}

/// Asks for weights of the phase in place `which`, which has not begun.
__device__ inline void ask_early(int which) {
  const Phase& phase = fixed().phases[which];
  if (phase.products != 0) ask_ahead(phase, share_at(which), share_at(which).early, true);
}

/// Rows and the choice of experts before the works begin.
__device__ inline void open_phase(const Phase& phase, const Share& share) {
  const Work& last = phase.works[phase.work_count - 1];
  const auto me = static_cast<int>(threadIdx.x);
  if (last.kind == WorkKind::experts && last.product.choose.logits != nullptr) {
    // Half of the warps choose while the others round.
    if (me < kProgramThreads / 2) {
      choose(last.product.choose);
    } else {
      take_sources(phase, share, {me - kProgramThreads / 2, kProgramThreads / 2});
    }
    return;
  }
  if (last.kind == WorkKind::experts || (last.kind == WorkKind::down && last.early == 0)) {
    load_routes(last.product.choose);
  }
  take_sources(phase, share, {me, kProgramThreads});
}

/// What a phase does where it has no products.
__device__ inline void run_other(const Work& work) {
  if (work.kind == WorkKind::attention) {
    attend(work.attention, work.items, fixed().positions,
           *reinterpret_cast<AttentionScratch*>(shared_at(kSumsAt)), shared_at(kHalvesAt));
  } else if (work.kind == WorkKind::write_kv) {
    run_heads(work.write, work.items);
  } else {
    const int heads = work.attention.rows.heads;
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x); i < work.items; i += static_cast<int>(gridDim.x)) {
      fold_spans(work.attention, i / heads, i % heads, 1, fixed().positions.at[i / heads]);
    }
  }
}

__global__ void __launch_bounds__(kProgramThreads, 1) program_kernel(ProgramParams p) {
  GridBarrier barrier(p.arrived);
  ask_for_phase(0, p.phases, p.shares, p.share_bytes);
  wait_for_copies<0>();
  __syncthreads();
  prepare(fixed().phases[0]);
  if (threadIdx.x % 32 == 0) fixed().flights[threadIdx.x / 32] = {};
  __syncwarp();
  ask_early(0);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < p.count; ++i) {
    const int here = i % 2;
    const Phase& phase = fixed().phases[here];
    const Share& share = share_at(here);
    const bool more = i + 1 < p.count;
    if (more) ask_for_phase(1 - here, p.phases + i + 1, phase.next_shares, phase.next_share_bytes);
    open_phase(phase, share);
    __syncthreads();
    if (phase.products != 0) {
      if (phase.late != 0) ask_ahead(phase, share, share.all_jobs, false);
      run_products(phase, share);
    } else {
      run_other(phase.works[0]);
    }
    if (!more) break;
    wait_for_copies<0>();
    barrier.arrive();
    prepare(fixed().phases[1 - here]);
    follow_hints(fixed().phases[1 - here]);
    ask_early(1 - here);
    barrier.wait();
  }
}

}  // namespace

void run_program(Launcher& launcher, const ProgramParams& params, int processors) {
  launcher.add_first(program_kernel, dim3(static_cast<unsigned>(processors)), dim3(kProgramThreads), params,
                     kSharedBytes, true);
}

}  // namespace tercet::cuda
