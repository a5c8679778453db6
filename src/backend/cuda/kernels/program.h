// A step of few rows as one kernel: phases of operations, between which all blocks wait for each other.
// Kernels of their own would each wait for the one before, for their instructions and for their first bytes;
// here the code stays in the caches and a phase's weights are asked for before the phase begins.
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/kernels/router.h"
#include "backend/cuda/kernels/views.h"
#include "backend/cuda/kernels/write_kv.h"
#include "ops/exact_math.h"

namespace tercet::cuda {

constexpr int kProgramChosen = 64;   // experts of all rows, at most
constexpr int kProgramGroups = 128;  // of a row, at most
/// Of a norm (program_rows.cuh).
constexpr float kLeastEps = 0x1p-60F;
/// sum ÷ k, rounded to nearest, of a finite sum whose quotient is not below 2^-90, with inverse = 1 ÷ k
/// rounded: a product, its exact remainder and one step (Markstein 1990).
TERCET_DEVICE_HOST inline float quotient(float sum, float k, float inverse) {
  const float near = sum * inverse;
  return fma_(fma_(-near, k, sum), inverse, near);
}
/// Bytes that a phase's rounded rows may take in shared memory.
constexpr int kProgramRowBytes = 76 * 1024;
/// Floats for the sums of an item's leaves.
constexpr int kProgramSums = 4096;

/// Divides whole numbers n by `value`, n·value being below 2^32: ⌊n·magic / 2^32⌋ with magic = ⌈2^32 /
/// value⌉, or n where magic is 0 (value 1).
struct Divisor {
  uint32_t value;
  uint32_t magic;
};

/// Rows [rows][k] that enter products. Each block rounds them for itself, or loads them where `ready`.
struct Source {
  const float* x;     // not where `ready`
  const float* norm;  // weight of an RMSNorm before the rounding, or null
  float* h;           // its result
  int8_t*
      planes;  // rounded rows as Rounded has them: where they are (`ready`), or where they are put, or null
  UnitSum* units;
  uint8_t* failed;  // a row that fails sets failed[row / flags]
  int32_t rows, k;
  Divisor octets;    // k / 8
  Divisor per_leaf;  // groups of a leaf
  Divisor flags;
  int32_t parts;  // 2: each row is followed by what its rounding left
  int32_t ready;
  int32_t step;    // of `planes`: distance of rows
  int32_t pairs;   // of each row of the step, if the phase's item needs only those of its rows; else 0
  int32_t shared;  // bytes: where they lie in the rows' shared memory
  float eps;       // of the norm: kLeastEps or more
  float inverse;   // 1 ÷ k, rounded
  int32_t row_bytes;
};

enum class WorkKind : int32_t {
  product,    // item: a tile of 16 outputs, with SwiGLU one of gate and one of up
  experts,    // the same for a pair of a row and an expert; the experts are chosen before where logits are
              // given
  down,       // item: a row and a tile; z = Σ weight·down, + shared
  write_kv,   // item: a row and a head
  attention,  // item: a span, a row and a KV head
  fold,       // item: a row and a head, whose spans are folded
};

constexpr bool is_product(WorkKind kind) {
  return kind == WorkKind::product || kind == WorkKind::experts || kind == WorkKind::down;
}

struct ProductWork {
  const uint8_t* values;  // as Weights has them, of expert 0
  const uint8_t* scales;
  uint32_t values_stride, scales_stride;  // of experts
  float* y;                               // [rows or pairs][ldy]
  float* sum;                             // where not null: sum = fl(sum + result) as well, [rows][ldy]
  const float* shared;                    // of `down`, or null
  int64_t ldy;
  int32_t tiles;       // items of a row or pair, of `experts` and `down`
  int32_t slots;       // tiles of an item: gate and up, or experts of a row
  int32_t rows;        // of x that a job takes
  int32_t chosen;      // of `experts` and `down`: of each row
  int32_t outputs;     // columns of y
  int32_t planes;      // 1 or 2
  int32_t leaf_shift;  // 2^leaf_shift leaves
  int32_t groups;      // of a leaf
  int32_t row_step;    // distance of a job's rows in the source
  int32_t held;        // held_sums(rows)
  int32_t zero;
  int32_t swiglu;
  ChooseParams choose;  // of `experts`, with logits where the choice is made here; of `experts` and `down`:
                        // the routes
};

struct AttentionWork {
  AttentionParams rows;
  Queries queries;                // where the phase does not write
  WriteKvAndQueriesParams write;  // where `writes`: no two rows are of one sequence
  float* partials;                // [rows][heads][spans][kPartial]
  uint32_t* tickets;              // [rows][kv heads], zeros between phases; null: a `fold` follows
  int32_t spans;                  // of the longest row, or more
  int32_t writes;                 // the phase does what `write_kv` does as well
};

struct Work {
  WorkKind kind;
  int32_t items;
  int32_t cost;   // of an item, in any unit that the phase's works share
  int32_t early;  // its weights may be asked for before the phase begins
  int32_t source;
  int32_t zero;
  union {
    ProductWork product;
    WriteKvAndQueriesParams write;
    AttentionWork attention;
  };

  Work() : product() {}
};

/// What a warp computes at a time: a leaf of a tile, with all that it takes besides the weights' addresses.
/// Words, so that it is read at once.
struct alignas(16) Job {
  uint32_t what;    // the leaf, of the work's or an expert's own; behind its 24 bits two of the work, four of
                    // the rows, one that is set for weights of two planes
  uint32_t counts;  // place of its expert among the chosen ones, or kNoExpert; groups of the leaf, 8 bits
                    // each; where its sums go, in 16 floats
  uint32_t begin;   // of the leaf in its first row in shared memory, in 16 bytes; of its units, in 8 bytes
  uint32_t steps;   // between the planes of a row, between rows, in 16 bytes

  TERCET_DEVICE_HOST uint32_t leaf() const { return what & 0xffffffU; }
  TERCET_DEVICE_HOST int work() const { return static_cast<int>(what >> 24 & 3U); }
  TERCET_DEVICE_HOST int rows() const { return static_cast<int>(what >> 26 & 15U); }
  TERCET_DEVICE_HOST int planes() const { return 1 + static_cast<int>(what >> 30); }
  TERCET_DEVICE_HOST int chosen() const { return static_cast<int>(counts & 255U); }
  TERCET_DEVICE_HOST int groups() const { return static_cast<int>(counts >> 8 & 255U); }
  TERCET_DEVICE_HOST int sums() const { return static_cast<int>(counts >> 16); }
  TERCET_DEVICE_HOST uint32_t row_at() const { return (begin & 0xffffU) * 16; }
  TERCET_DEVICE_HOST uint32_t units_at() const { return (begin >> 16) * 8; }
  TERCET_DEVICE_HOST uint32_t gap() const { return (steps & 0xffffU) * 16; }
  TERCET_DEVICE_HOST uint32_t apart() const { return (steps >> 16) * 16; }
};
constexpr int kNoExpert = 255;
/// Floats that a job's sums of an output take.
TERCET_DEVICE_HOST constexpr int held_sums(int64_t rows) { return rows == 1 ? 1 : rows <= 4 ? 4 : 8; }
constexpr int64_t kProgramLeaves = int64_t{1} << 24;  // of a work (an expert's own) there are fewer

/// What 16 threads make of the sums: numbers of y side by side.
struct Outputs {
  uint32_t at;                  // the first
  uint16_t sums;                // of its first leaf, in floats
  uint8_t work : 4, count : 4;  // count: numbers − 1
  uint8_t row;                  // of the step, of `down`
};

constexpr int kShareRounds = 16;
constexpr int kShareBytes = 6656;

/// A block's part of a phase's products: rounds of jobs, whose sums fit, and of the outputs that are made of
/// them. Behind it lie its jobs, then its outputs.
struct Share {
  uint16_t jobs[kShareRounds], outputs[kShareRounds];  // where rounds end
  uint16_t rounds;
  uint16_t early;            // jobs, the first ones, whose weights may be asked for before the phase begins
  uint16_t first_row, rows;  // of a source with `pairs` that they need
  uint16_t all_jobs;
  uint16_t zero[3];

  TERCET_DEVICE_HOST const Job* job_list() const { return reinterpret_cast<const Job*>(this + 1); }
  TERCET_DEVICE_HOST const Outputs* output_list() const {
    return reinterpret_cast<const Outputs*>(job_list() + all_jobs);
  }
};
static_assert(sizeof(Share) % 16 == 0 && sizeof(Job) == 16 && sizeof(Outputs) == 8);

/// Memory that a phase reads and no phase writes: on its way before the phase begins.
struct Hint {
  const void* data;
  int64_t bytes;
};

/// Keys and values that the phase after this one reads, of `rows` rows of the step; 0: it does not attend.
struct KeysAhead {
  CacheView cache;
  const int32_t* pages;
  int32_t layer, rows;
};

constexpr int kPhaseHints = 2;
constexpr int kPhaseSources = 2;
constexpr int kPhaseWorks = 3;

struct alignas(16) Phase {
  Source sources[kPhaseSources];
  Work works[kPhaseWorks];
  Hint hints[kPhaseHints];
  KeysAhead keys;
  const uint8_t* next_shares;  // of the phase that follows: of block b at b·next_share_bytes
  int32_t next_share_bytes;    // a multiple of 16
  int32_t source_count, work_count;
  int32_t products;  // it has some
  int32_t late;      // and weights that cannot be asked for before it begins
  int32_t zero;
};

struct ProgramParams {
  const Phase* phases;
  const uint8_t* shares;  // of the first phase
  uint64_t* arrived;      // of the barrier; counts on from launch to launch
  RowPlaces places;       // of `rows` rows that attend, 0 where none does
  int32_t rows;
  int32_t share_bytes;
  int32_t count;
  int32_t zero;
};

/// Where the parts of a rounded row of k numbers lie in shared memory, in bytes: two planes, then units.
struct SharedRowPlaces {
  int second_plane, units;

  TERCET_DEVICE_HOST explicit SharedRowPlaces(int k) : second_plane(k + kPad), units(2 * (k + kPad)) {}
  static constexpr int kPad = 64;  // so that planes lie in different banks
};
TERCET_DEVICE_HOST inline int program_row_bytes(int k) {
  return (SharedRowPlaces(k).units + k / kBlock * 8 + 15) / 16 * 16;
}

/// On all `processors`, a block each.
void run_program(Launcher& launcher, const ProgramParams& params, int processors);

}  // namespace tercet::cuda
