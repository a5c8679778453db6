// Keys and values in the cache, and attention over them (docs/exactness.md, rules 6 to 8).
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/products.h"
#include "backend/reference/rope.h"

namespace tercet::cpu {

/// A head's page is contiguous, in KeyBlock's order: [layer][page][head].
struct Cache final : KvCache {
  std::vector<int16_t, LargePages<int16_t>> keys, values;
  std::vector<int8_t> key_exponents, value_exponents;

  Cache(int32_t layer_count, int32_t head_count, int32_t page_count);
  size_t slot(int32_t layer, int32_t page, int32_t head) const {
    return static_cast<size_t>((int64_t{layer} * pages + page) * heads + head) * kPageTokens;
  }
  KeyBlock block(int32_t layer, int32_t page, int32_t head) const {
    const size_t at = slot(layer, page, head);
    return {keys.data() + at * kHeadSize, values.data() + at * kHeadSize, key_exponents.data() + at,
            value_exponents.data() + at, nullptr};
  }
  void copy_page(const PageCopy& copy);
};

struct CpuStep final : Step {
  std::vector<int32_t> position;  // [rows]
  std::vector<int32_t> sequence;  // [rows]: index into batch.sequences
  std::vector<uint8_t> flags;     // [rows]; written by mark()
  std::vector<float> angles;      // [rows][cos of 64, sin of 64], made by the first layer

  explicit CpuStep(const Batch& rows_of_step);
  /// Sets a row's failure flag; any thread may.
  void mark(int64_t row);
  int32_t page(int64_t row, int32_t block) const {
    const SequenceRows& rows = batch.sequences[static_cast<size_t>(sequence[static_cast<size_t>(row)])];
    return rows.pages[static_cast<size_t>(block)];
  }
};

class Attention {
 public:
  explicit Attention(const Machine& machine) : machine_(machine) {}

  void write(CpuStep& step, Rows qkv, Vector q_norm, Vector k_norm, float eps, RopeParams rope, Cache& cache,
             int32_t layer) const;
  void attend(CpuStep& step, Rows qkv, const Cache& cache, int32_t layer, Rows out);

  /// Scratch memory held.
  int64_t bytes() const;

 private:
  void round_queries(CpuStep& step, Rows qkv, int64_t row, int64_t kv_head);
  /// One row's query heads of one KV head, over spans [first, last) of its keys. `after`: the keys that are
  /// likely to be read next.
  void attend_spans(const CpuStep& step, const Cache& cache, int32_t layer, int64_t row, int64_t kv_head,
                    int32_t first, int32_t last, const int16_t* after, Partial* rows, Partial* span) const;
  void attend_in_waves(const CpuStep& step, const Cache& cache, int32_t layer, Rows out, int32_t spans);
  void finish(const Partial* rows, int64_t row, int64_t kv_head, Rows out) const;

  const Machine& machine_;
  int64_t heads_ = 0;
  int64_t sharing_ = 0;               // query heads that read one KV head
  std::vector<int16_t> queries_;      // [rows, heads, 128]
  std::vector<float> query_size_;     // [rows, heads]: 2^E
  std::vector<Partial> partials_;     // of a wave: [row, kv head, span, sharing], or [thread, 2, sharing]
  std::vector<Partial> row_results_;  // of a wave: [row, kv head, sharing]
};

}  // namespace tercet::cpu
