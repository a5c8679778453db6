// Counts of measured times in buckets, as Prometheus has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tercet {

/// Seconds. Not thread-safe.
class Histogram {
 public:
  static constexpr std::array kBounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                      0.5,   1.0,    2.5,   5.0,  10.0,  25.0, 50.0, 100.0};

  void add(double seconds) {
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    ++counts_[bucket];
    ++count_;
    sum_ += seconds;
  }

  /// How many were at most kBounds[bucket].
  uint64_t up_to(size_t bucket) const {
    uint64_t total = 0;
    for (size_t i = 0; i <= bucket; ++i) total += counts_[i];
    return total;
  }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::array<uint64_t, kBounds.size() + 1> counts_{};  // the last: above all bounds
  uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace tercet
