#include "apps/bench_machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/philox.h"
#include "base/threads.h"

namespace tercet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

uint64_t sum_of(const uint64_t* words, int64_t count) {
  constexpr int64_t kAhead = 384;  // words; so that a thread always has misses on their way
  uint64_t sums[64] = {};
  for (int64_t i = 0; i + 64 <= count; i += 64) {
    for (int64_t line = 0; line < 64; line += 8) __builtin_prefetch(words + i + line + kAhead);
    for (int64_t j = 0; j < 64; ++j) sums[j] += words[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

int64_t buffer_bytes() {
  int64_t cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  return std::clamp<int64_t>(4 * cache, int64_t{1} << 30, int64_t{4} << 30);
}

/// Random 4-bit weights [n, k] with scales and biases near 0.01.
struct RandomWeights {
  std::vector<std::byte> values, scales;
  MatrixData data;

  RandomWeights(int64_t n, int64_t k) {
    data.n = n;
    data.k = k;
    data.bits = 4;
    for (int64_t i = 0; i < n * data.value_row_bytes(); ++i) {
      values.push_back(static_cast<std::byte>(philox4x32(1, {static_cast<uint32_t>(i), 0, 0, 0})[0] & 255U));
    }
    const uint16_t near_hundredth = float_to_bf16(0.01F);
    scales.resize(static_cast<size_t>(n * data.scale_row_bytes()));
    for (size_t i = 0; i < scales.size(); i += 2) std::memcpy(&scales[i], &near_hundredth, 2);
    data.values = values.data();
    data.scales = data.biases = scales.data();
  }
};

}  // namespace

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t value = line.find(": ");
    if (value != std::string::npos) return line.substr(value + 2);
  }
  return "unknown processor";
}

double read_bandwidth(int threads) {
  constexpr int kPasses = 7;
  constexpr int64_t kPiece = int64_t{4} << 20;
  const int64_t bytes = buffer_bytes();
  void* const memory =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TERCET_CHECK(memory != MAP_FAILED);
  madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  ThreadPool pool(threads);
  const int64_t pieces = bytes / kPiece;
  std::vector<uint64_t> sums(static_cast<size_t>(pieces));
  auto* const data = static_cast<std::byte*>(memory);
  // Written once: pages that nobody wrote are all the same one, in the caches.
  pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    std::memset(data + begin * kPiece, 1, static_cast<size_t>((end - begin) * kPiece));
  });
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
      const auto* words = reinterpret_cast<const uint64_t*>(data + begin * kPiece);
      sums[static_cast<size_t>(begin)] = sum_of(words, (end - begin) * kPiece / 8);
    });
    best = std::max(best, static_cast<double>(bytes) / seconds_since(start));
  }
  for (const uint64_t sum : sums) TERCET_CHECK_NE(sum, uint64_t{0});  // else nobody needs the loop
  munmap(memory, static_cast<size_t>(bytes));
  return best;
}

namespace {

/// Products a second of rows [rows, k] with weights [n, k]: the best of several runs in a third of a second.
double multiply_rate(Ops& ops, int64_t rows, int64_t n, int64_t k) {
  constexpr double kSeconds = 0.3;
  const RandomWeights weights(n, k);
  const std::unique_ptr<Linear> linear = ops.pack_linear({&weights.data, 1});
  std::vector<float> values(static_cast<size_t>(rows * k));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(philox4x32(2, {static_cast<uint32_t>(i), 0, 0, 0})[0]) * 0x1p-32F;
  }
  const auto bytes = static_cast<int64_t>(sizeof(float));
  const Buffer x = ops.allocate(rows * k * bytes);
  const Buffer y = ops.allocate(rows * n * bytes);
  ops.upload(x.get(), values.data(), rows * k * bytes);
  Batch batch;
  batch.tokens.resize(static_cast<size_t>(rows));
  batch.sequences.push_back({.first_row = 0, .rows = static_cast<int32_t>(rows), .position = 0, .pages = {}});
  batch.sequences.back().pages.resize(static_cast<size_t>(rows / kPageTokens));
  const std::unique_ptr<Step> step = ops.begin(batch);
  double best = 0;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    ops.linear(*step, {static_cast<float*>(x.get()), rows, k}, *linear,
               {static_cast<float*>(y.get()), rows, n});
    ops.failed(*step);  // waits for the work
    best = std::max(best, static_cast<double>(rows * n * k) / seconds_since(start));
  } while (seconds_since(begin) < kSeconds);
  return best;
}

}  // namespace

double multiply_rate(Ops& ops) {
  constexpr double kFast = 2e12;  // a quarter of a millisecond for the small product
  const double rate = multiply_rate(ops, 512, 1024, 1024);
  return rate < kFast ? rate : multiply_rate(ops, 4096, 8192, 4096);
}

}  // namespace tercet
