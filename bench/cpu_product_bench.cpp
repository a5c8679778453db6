// How near the CPU's products come to the floor that memory sets: packed 4-bit weights streamed for one row,
// against the read bandwidth measured in the same run, and the multiply rate for many rows.
//
//   cpu_product_bench [MEGABYTES] [RUNS]
//
// MEGABYTES (default 1024) of weights are passed RUNS (default 5) times in segments of some 16 MB; each
// figure is that of the best segment, since other work on the machine can only make one slower. Inside the
// timed part: one loop over a segment's tiles on the pool's threads. Outside: packing, rounding of the rows.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/cpu/level.h"
#include "backend/cpu/products.h"
#include "backend/reference/hard_rows.h"
#include "base/threads.h"

namespace tercet::cpu {
namespace {

constexpr int64_t kK = 2048;

/// Seconds of the fastest f(first tile, tile count), a segment each.
template <class Function>
double best_segment(int64_t tiles, int64_t segment, int runs, Function f) {
  double best = 1e9;
  for (int run = 0; run < runs; ++run) {
    for (int64_t first = 0; first + segment <= tiles; first += segment) {
      const auto start = std::chrono::steady_clock::now();
      f(first, segment);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  }
  return best;
}

/// Sums 64-bit words, asking for them ahead as the products do.
uint64_t read_all(const uint64_t* p, int64_t words) {
  uint64_t sum[64] = {};
  for (int64_t i = 0; i + 64 <= words; i += 64) {
    for (int64_t line = 0; line < 64; line += 8) __builtin_prefetch(p + i + line + 384);
    for (int64_t j = 0; j < 64; ++j) sum[j] += p[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t s : sum) total += s;
  return total;
}

MatrixData random_matrix(int64_t n, std::vector<std::byte>& memory) {
  MatrixData data;
  data.n = n;
  data.k = kK;
  data.bits = 4;
  memory.resize(static_cast<size_t>(n * (data.value_row_bytes() + 2 * data.scale_row_bytes())));
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>((i * 2654435761U) >> 13);
  const auto values = static_cast<size_t>(n * data.value_row_bytes());
  for (size_t i = values; i + 1 < memory.size(); i += 2) {  // scales and biases near 0.01
    memory[i + 1] = std::byte{0x3c};
  }
  data.values = memory.data();
  data.scales = memory.data() + values;
  data.biases = data.scales + n * data.scale_row_bytes();
  return data;
}

/// Prints the rate of products with `rows` rows, as a share of `bandwidth` too.
void measure_rows(const Machine& machine, const PackedMatrix& w, int64_t segment, int64_t rows, int runs,
                  double bandwidth) {
  RoundedRows x;
  x.reset(rows, w.layout);
  std::vector<float> row(kK);
  for (int64_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < row.size(); ++i) row[i] = reference::uniform(r, static_cast<uint32_t>(i));
    x.round(machine.kernels, row.data(), r, nullptr);
  }
  // Many rows multiply for long: shorter segments of fewer weights, which the rows' work hides anyway.
  const int64_t part = std::max<int64_t>(32, segment / rows);
  const int64_t tiles = rows < 64 ? w.tiles() : std::min(w.tiles(), 64 * part);
  const double seconds = best_segment(tiles, part, runs, [&](int64_t first, int64_t count) {
    machine.pool.parallel_for(count, 16, [&](int64_t begin, int64_t end, int) {
      BlockOfRows block;
      for_blocks(first + begin, first + end, w.tile_bytes(), rows,
                 [&](int64_t t, int64_t last, int64_t r, int64_t in_block) {
                   for (int64_t i = 0; i < in_block; ++i) block.set(i, x, r + i);
                   for (; t < last; ++t) machine.kernels.product(w.layout, w.tile(t), block.rows, in_block);
                 });
    });
  });
  const double bytes = static_cast<double>(part * w.tile_bytes()) * 1e-9 / seconds;
  const double products = static_cast<double>(rows * part * kTile * kK) * 1e-9 / seconds;
  std::printf(" | %lld: %.1f GB/s (%.0f %%), %.0f G/s", static_cast<long long>(rows), bytes,
              100.0 * bytes / bandwidth, products);
}

void measure(int threads, int64_t megabytes, int runs) {
  SpinningPool pool(threads);
  const int64_t n = (megabytes << 20) / (kK * 9 / 16) / kTile * kTile;
  std::vector<std::byte> memory;
  const MatrixData data = random_matrix(n, memory);
  std::vector<PackedMatrix> packed;
  const Machine packer{kernels_of(CpuLevel::portable), pool};
  const PackedBytes bytes = pack_matrices(packer, {&data, 1}, packed);
  const PackedMatrix& w = packed.front();
  memory = {};

  const int64_t segment = std::min(w.tiles(), (int64_t{16} << 20) / w.tile_bytes());
  const double gigabytes = static_cast<double>(segment * w.tile_bytes()) * 1e-9;
  std::vector<uint64_t> sums(static_cast<size_t>(w.tiles()));
  const double read = best_segment(w.tiles(), segment, runs, [&](int64_t first, int64_t count) {
    pool.parallel_for(count, 32, [&](int64_t begin, int64_t end, int) {
      const auto* from = reinterpret_cast<const uint64_t*>(w.tile(first + begin));
      sums[static_cast<size_t>(first + begin)] = read_all(from, (end - begin) * w.tile_bytes() / 8);
    });
  });
  std::printf("%d thread%s, %.2f GB: read %.1f GB/s\n", threads, threads == 1 ? "" : "s",
              static_cast<double>(w.bytes()) * 1e-9, gigabytes / read);
  for (const CpuLevel level : available_levels()) {
    if (level == CpuLevel::portable) continue;
    std::printf("  %-12s", kernels_of(level).name);
    for (const int64_t rows : {1, 2, 4, 8, 64})
      measure_rows({kernels_of(level), pool}, w, segment, rows, runs, gigabytes / read);
    std::printf("\n");
  }
}

}  // namespace
}  // namespace tercet::cpu

int main(int argc, char** argv) {
  const int64_t megabytes = argc > 1 ? std::atoll(argv[1]) : 1024;
  const int runs = argc > 2 ? std::atoi(argv[2]) : 7;
  for (int threads = 1; threads <= tercet::available_threads(); threads *= 2) {
    tercet::cpu::measure(threads, megabytes, runs);
  }
}
