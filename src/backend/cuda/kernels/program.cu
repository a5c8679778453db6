#include "backend/cuda/kernels/barriers.cuh"
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
constexpr int kStageScales = 2048;  // behind 4 groups of one plane, or 2 of two planes, lie their scales
constexpr int kStageBytes = 2304;

/// An expert of each row, as routes have it.
struct Chosen {
  int32_t experts[kProgramChosen];
  float weights[kProgramChosen];
};

/// What joins a number of y, from memory.
struct Addends {
  float before, shared;
};

/// What a warp asks for, which is its first lane's business, and what has arrived.
struct alignas(16) Flight {
  const uint8_t* values;
  const uint8_t* scales;
  int next;           // job of the phase that is asked for
  int left;           // groups of the job that is asked for
  int planes;         // of its weights
  int fill, use;      // stages
  int ahead;          // that were asked for and not used
  uint32_t parities;  // of the stages' barriers, a bit each: what the next use waits for
  int zero;
};

// Of a block, in the warps that have least to do: who says that it has arrived, and who looks for all.
constexpr int kArriver = kProgramThreads - 32;
constexpr int kWaiter = kProgramThreads - 64;

struct Fixed {
  unsigned long long goal;   // of the barrier
  int turns[kProgramWarps];  // phase at which each warp is
  Phase phases[2];
  uint8_t shares[2][kShareBytes];
  Flight flights[kProgramWarps];  // while no product runs
  uint64_t arrivals[kProgramWarps][kStages];
  RowScratch rows;
  Addends addends[kProgramThreads];
  Chosen chosen;
  RowPositions positions;
};

constexpr int kSharedBytes = 227 * 1024;  // that a block may have
constexpr int kFixedBytes = (sizeof(Fixed) + 127) / 128 * 128;
constexpr int kSumsAt = kFixedBytes;
constexpr int kRowsAt = kSumsAt + kProgramSums * 4;
constexpr int kRingAt = kSharedBytes - kProgramWarps * kStages * kStageBytes;
constexpr int kHalvesAt = kSharedBytes - kSpanBlocks * 2 * kHalfBytes;
static_assert(kRowsAt + kProgramRowBytes <= kRingAt);
static_assert(kSumsAt + static_cast<int>(sizeof(AttentionScratch)) <= kHalvesAt);

__device__ inline Fixed& fixed() {
  extern __shared__ __align__(128) uint8_t memory[];
  return *reinterpret_cast<Fixed*>(memory);
}
__device__ inline uint8_t* shared_at(int bytes) { return reinterpret_cast<uint8_t*>(&fixed()) + bytes; }

__device__ inline AttentionScratch& attention_scratch() {
  return *reinterpret_cast<AttentionScratch*>(shared_at(kSumsAt));
}

/// A block's part of phase `which` of the two that are held.
__device__ inline const Share& share_at(int which) {
  return *reinterpret_cast<const Share*>(fixed().shares[which]);
}

struct Fetcher : Flight {
  uint32_t shared;  // where shared memory begins

  __device__ Fetcher() : Flight(fixed().flights[threadIdx.x / 32]), shared(held_address(&fixed())) {}
  __device__ void keep() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) fixed().flights[threadIdx.x / 32] = *this;
    __syncwarp();
  }

  __device__ uint32_t stage(int which) const {
    return shared + kRingAt + (threadIdx.x / 32 * kStages + which) * kStageBytes;
  }
  __device__ uint32_t arrival(int which) const {
    return shared + static_cast<uint32_t>(offsetof(Fixed, arrivals)) +
           (threadIdx.x / 32 * kStages + which) * 8;
  }

  /// Asks for a stage, of jobs below `end`. By the first lane.
  __device__ void ask(const Phase& phase, const Share& share, int end) {
    if (left == 0) {
      if (next >= end) return;
      const Job job = share.job_list()[next];
      const ProductWork& p = phase.works[job.work()].product;
      planes = job.planes();
      left = job.groups();
      const auto groups = static_cast<uint32_t>(left);
      values = p.values + groups * planes * kBlockBytes * job.leaf();
      scales = p.scales + groups * kTile * 4 * job.leaf();
      if (job.chosen() != kNoExpert) {
        const auto expert = static_cast<uint32_t>(fixed().chosen.experts[job.chosen()]);
        values += uint64_t{expert} * p.values_stride;
        scales += uint64_t{expert} * p.scales_stride;
      }
      next += kProgramWarps;
    }
    const int groups = min(left, planes == 2 ? 2 : 4);
    const auto bytes = static_cast<uint32_t>(groups * planes * kBlockBytes);
    const auto scale_bytes = static_cast<uint32_t>(groups * kTile * 4);
    const uint32_t to = stage(fill), barrier = arrival(fill);
    barrier_expect(barrier, bytes + scale_bytes);
    copy_bulk(to, values, bytes, barrier);
    copy_bulk(to + kStageScales, scales, scale_bytes, barrier);
    values += bytes;
    scales += scale_bytes;
    left -= groups;
    fill = fill == kStages - 1 ? 0 : fill + 1;
    ++ahead;
  }

  /// The next stage's bytes have arrived; they stay until the next call.
  __device__ uint32_t next_stage(const Phase& phase, const Share& share) {
    __syncwarp();  // the stage before has been read
    if (threadIdx.x % 32 == 0) {
      ask(phase, share, share.all_jobs);
      --ahead;
    }
    const int now = use;
    barrier_wait(arrival(now), parities >> now & 1U);
    parities ^= 1U << now;
    use = now == kStages - 1 ? 0 : now + 1;
    return stage(now);
  }
};

/// Asks, for jobs below `end`, until as much is on its way as a phase's products expect, and for the rest of
/// the job at hand as far as the second cache. `first`: for the first time in this phase.
static __device__ __noinline__ void ask_ahead(const Phase& phase, const Share& share, int end, bool first) {
  if (threadIdx.x % 32 == 0) {
    Fetcher f;
    if (first) f.next = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
    for (int i = f.ahead; i < kStages - 1; ++i) f.ask(phase, share, end);
    if (f.left > 0) prefetch_bulk(f.values, static_cast<uint32_t>(f.left * f.planes * kBlockBytes));
    fixed().flights[threadIdx.x / 32] = f;
  }
  __syncwarp();
}

/// The chain of a job's leaf with up to 4·kQuads rows, to its sums. A lane has outputs lane/4 and lane/4 + 8,
/// token lane%4 of each four.
template <int kPlanes, int kQuads>
__device__ inline void run_job(Fetcher& fetcher, const Phase& phase, const Share& share, const Job& job) {
  constexpr int kGroups = kPlanes == 2 ? 2 : 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int rows = job.rows();
  const int groups = job.groups();
  const uint32_t planes = fetcher.shared + kRowsAt + job.row_at() + g % 2 * job.gap() + 16 * t;
  const uint32_t first_units = fetcher.shared + kRowsAt + job.units_at();
  uint32_t columns[kQuads], units[kQuads];
  float acc[kQuads][2];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    // Tokens that are not there repeat the last: their sums are nobody's.
    columns[q] = planes + min(q * kTokens + g / 2, rows - 1) * job.apart();
    units[q] = first_units + min(q * kTokens + t, rows - 1) * job.apart();
    acc[q][0] = acc[q][1] = 0.0F;
  }
#pragma unroll 1
  for (int done = 0; done < groups; done += kGroups) {
    const uint32_t stage = fetcher.next_stage(phase, share);
    const auto group = [&](int i) {
      uint4 values[kPlanes];
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        values[plane] = read_words(stage + (i * kPlanes + plane) * kBlockBytes + lane * 16);
      const uint2 scales = read_pair(stage + kStageScales + i * (kTile * 4) + g * 8);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float2 unit = read_two_floats(units[q] + (done + i) * 8);
        extend<kPlanes>(acc[q], values, scales, read_words(columns[q] + (done + i) * kBlock),
                        {unit.x, unit.y});
      }
    };
    if (kQuads == 1 && done + kGroups <= groups) {  // side by side
#pragma unroll
      for (int i = 0; i < kGroups; ++i) group(i);
    } else {
#pragma unroll 1
      for (int i = 0; i < min(kGroups, groups - done); ++i) group(i);
    }
  }
  if (t >= rows) return;
  const int held = held_sums(rows);
  const uint32_t sums = fetcher.shared + kSumsAt + (job.sums() * kTile + g * held + t) * 4;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    write_float(sums + q * kTokens * 4, acc[q][0]);
    write_float(sums + (8 * held + q * kTokens) * 4, acc[q][1]);
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

/// Asks for what joins a block's first numbers; they come with the copies that are committed next.
__device__ inline void ask_for_addends(const Phase& phase, const Share& share) {
  const auto me = static_cast<int>(threadIdx.x);
  if (me >= share.outputs[0] * kTile) return;
  const Outputs outputs = share.output_list()[me / kTile];
  const ProductWork& p = phase.works[outputs.work].product;
  const uint32_t at = outputs.at + me % kTile;
  if (me % kTile > outputs.count) return;
  Addends& to = fixed().addends[me];
  if (p.sum != nullptr) copy_word_async(shared_address(&to.before), p.sum + at);
  if (p.shared != nullptr) copy_word_async(shared_address(&to.shared), p.shared + at);
}

/// A number of y from the sums of its leaves: one of the outputs' numbers.
__device__ inline void finish(const Phase& phase, const Outputs outputs, int number, const Addends* addends) {
  if (number > outputs.count) return;
  const Work& work = phase.works[outputs.work];
  const ProductWork& p = work.product;
  const uint32_t at = outputs.at + number;
  const float* const from =
      reinterpret_cast<const float*>(shared_at(kSumsAt)) + outputs.sums + number * p.held;
  const int apart = kTile * p.held;
  float value = 0.0F;
  if (work.kind == WorkKind::down) {
    const float* const weights = fixed().chosen.weights + outputs.row * p.chosen;
    constexpr int kTogether = 4;
#pragma unroll 1
    for (int first = 0; first < p.chosen; first += kTogether) {
      float sums[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int j = min(first + i, p.chosen - 1);
        sums[i] = add_leaves(from + (j << p.leaf_shift) * apart, p.leaf_shift, apart);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + i < p.chosen) value = fma_(weights[first + i], sums[i], value);
      }
    }
    if (p.shared != nullptr) value = value + (addends != nullptr ? addends->shared : p.shared[at]);
  } else {
    value = add_leaves(from, p.leaf_shift, apart);
    if (p.swiglu != 0) value = swiglu(value, add_leaves(from + (apart << p.leaf_shift), p.leaf_shift, apart));
  }
  p.y[at] = value;
  if (p.sum != nullptr) p.sum[at] = (addends != nullptr ? addends->before : p.sum[at]) + value;
}

/// A block's share of a phase's products.
static __device__ __noinline__ void run_products(const Phase& phase, const Share& share) {
  Fetcher fetcher;
  const Job* const jobs = share.job_list();
  int number = static_cast<int>(threadIdx.x) / 32;
  int output = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int round = 0; round < share.rounds; ++round) {
#pragma unroll 1
    for (; number < share.jobs[round]; number += kProgramWarps) {
      const Job job = jobs[number];
      if (job.planes() == 2) {
        job.rows() <= kTokens ? run_job<2, 1>(fetcher, phase, share, job)
                              : run_job<2, 2>(fetcher, phase, share, job);
      } else {
        job.rows() <= kTokens ? run_job<1, 1>(fetcher, phase, share, job)
                              : run_job<1, 2>(fetcher, phase, share, job);
      }
    }
    if (round == 0) {  // the addends, at most
      commit_copies();
      wait_for_copies<0>();
    }
    __syncthreads();
#pragma unroll 1
    for (const int end = share.outputs[round] * kTile; output < end; output += kProgramThreads) {
      finish(phase, share.output_list()[output / kTile], output % kTile,
             output < kProgramThreads ? &fixed().addends[output] : nullptr);
    }
    if (round + 1 < share.rounds) __syncthreads();
  }
  fetcher.keep();
}

__device__ inline void put_chosen(const ChooseParams& c, int at, int expert, float weight) {
  fixed().chosen.experts[at] = expert;
  fixed().chosen.weights[at] = weight;
  if (blockIdx.x > 0) return;
  c.chosen_experts[at] = expert;
  c.weights[at] = weight;
}

/// The choice of experts of all rows, by a team; before there are sums. Of several rows each is a warp's.
static __device__ __noinline__ void choose(const ChooseParams& c, const Team team) {
  uint8_t* const scratch = shared_at(kSumsAt);
  if (c.rows == 1) {
    choose_by_ranks(c, team, *reinterpret_cast<RankScratch*>(scratch),
                    [&](int place, int expert, float weight) { put_chosen(c, place, expert, weight); });
    return;
  }
  const int row = team.me / 32;
  if (row >= c.rows) return;
  auto& own = reinterpret_cast<ChooseScratch*>(scratch)[row];
  const auto put = [&](int place, int expert, float weight) {
    put_chosen(c, row * c.chosen + place, expert, weight);
  };
  if (c.experts <= 128) {
    choose_of_row<4>(c, row, own, put);
  } else {
    choose_of_row<8>(c, row, own, put);
  }
}

static __device__ __noinline__ void write_head_alone(const WriteKvAndQueriesParams& p, int row, int head) {
  write_head(p, row, head);
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
    if (i > 0) team.sync();  // the scratch memory is free
    round_source(s, first, count, held_address(to), team, held_address(&fixed().rows));
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

// What lives from phase to phase lies in shared memory, and functions that are called stay functions: after a
// barrier of the grid the first cache is empty, so a register that was put aside comes from the second.

/// All blocks have arrived here, and what they wrote before is to be seen. By all threads.
static __device__ __noinline__ void arrive(uint64_t* arrived) {
  __syncthreads();
  if (threadIdx.x != kArriver) return;
  asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(arrived) : "memory");
}
static __device__ __noinline__ void wait_for_all(const uint64_t* arrived) {
  if (threadIdx.x == kWaiter) {
    const unsigned long long goal = fixed().goal;
    unsigned long long now = 0;
    do {
      asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(now) : "l"(arrived) : "memory");
    } while (now < goal);
    fixed().goal = goal + gridDim.x;
  }
  __syncthreads();
}

/// The phase at which the calling warp is.
__device__ inline int turn() { return *const_cast<const volatile int*>(&fixed().turns[threadIdx.x / 32]); }
__device__ inline void next_turn() {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ++fixed().turns[threadIdx.x / 32];
  __syncwarp();
}

/// The keys and values of a block's first item, where the phase writes what is new in them.
__device__ inline void ask_for_first_span(const Work& work) {
  const auto index = static_cast<int>(blockIdx.x);
  if (index >= work.items || !asked_before(work.attention, index)) return;
  ask_for_span(work.attention, index, fixed().positions, attention_scratch(), shared_at(kHalvesAt));
}

/// Before this turn's phase begins, one of `count`: its weights or keys, as far as they are known, and what
/// the next one is.
static __device__ __noinline__ void prepare(const Phase* phases, int count) {
  const int i = turn();
  const Phase& phase = fixed().phases[i % 2];
  if (phase.works[0].kind == WorkKind::attention) ask_for_first_span(phase.works[0]);
  if (i + 1 < count) ask_for_phase(1 - i % 2, phases + i + 1, phase.next_shares, phase.next_share_bytes);
  commit_copies();
  follow_hints(phase);
  if (phase.products != 0) ask_ahead(phase, share_at(i % 2), share_at(i % 2).early, true);
}

/// Rows and the choice of experts before the works of this turn's phase begin.
static __device__ __noinline__ void open_phase() {
  const int which = turn() % 2;
  const Phase& phase = fixed().phases[which];
  const Share& share = share_at(which);
  const Work& last = phase.works[phase.work_count - 1];
  const auto me = static_cast<int>(threadIdx.x);
  ask_for_addends(phase, share);
  if (last.kind == WorkKind::experts && last.product.choose.logits != nullptr) {
    // Half of the warps choose while the others round.
    if (me < kRankThreads) {
      choose(last.product.choose, {me, kRankThreads, 5});
    } else {
      take_sources(phase, share, {me - kRankThreads, kProgramThreads - kRankThreads, 6});
    }
    return;
  }
  if (last.kind == WorkKind::experts || (last.kind == WorkKind::down && last.early == 0)) {
    load_routes(last.product.choose);
  }
  take_sources(phase, share, {me, kProgramThreads, 6});
}

static __device__ __noinline__ void run_phase() {
  const int which = turn() % 2;
  const Phase& phase = fixed().phases[which];
  const Work& work = phase.works[0];
  if (phase.products != 0) {
    if (phase.keys.rows > 0) fetch_keys(phase.keys, fixed().positions);
    if (phase.late != 0) ask_ahead(phase, share_at(which), share_at(which).all_jobs, false);
    run_products(phase, share_at(which));
  } else if (work.kind == WorkKind::attention) {
    attend(work.attention, work.items, fixed().positions, attention_scratch(), shared_at(kHalvesAt));
    fence_for_async();  // keys and values lay where weights will
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

static __device__ __noinline__ void start(const ProgramParams& p) {
  ask_for_phase(0, p.phases, p.shares, p.share_bytes);
  commit_copies();
  if (static_cast<int>(threadIdx.x) < p.rows) {
    fixed().positions.at[threadIdx.x] = p.places.position[threadIdx.x];
    fixed().positions.first_page[threadIdx.x] = p.places.first_page[threadIdx.x];
  }
  if (threadIdx.x % 32 == 0) {
    fixed().flights[threadIdx.x / 32] = {};
    fixed().turns[threadIdx.x / 32] = 0;
    for (uint64_t& arrival : fixed().arrivals[threadIdx.x / 32]) barrier_init(shared_address(&arrival), 1);
    fence_for_async();
  }
  if (threadIdx.x == kWaiter) {
    // Blocks of this launch that are ahead have arrived once at most, of earlier ones all.
    const unsigned long long now = *reinterpret_cast<const volatile unsigned long long*>(p.arrived);
    fixed().goal = now - now % gridDim.x + gridDim.x;
  }
  wait_for_copies<0>();
  __syncthreads();
}

__global__ void __launch_bounds__(kProgramThreads, 1) program_kernel(ProgramParams p) {
  start(p);
  prepare(p.phases, p.count);
  __syncthreads();
#pragma unroll 1
  for (;;) {
    if (fixed().phases[turn() % 2].products != 0) {
      open_phase();
      __syncthreads();
    }
    run_phase();
    if (turn() + 1 == p.count) return;
    wait_for_copies<0>();
    arrive(p.arrived);
    next_turn();
    prepare(p.phases, p.count);
    wait_for_all(p.arrived);
  }
}

}  // namespace

void run_program(Launcher& launcher, const ProgramParams& params, int processors) {
  launcher.add_first(program_kernel, dim3(static_cast<unsigned>(processors)), dim3(kProgramThreads), params,
                     kSharedBytes, true);
}

}  // namespace tercet::cuda
