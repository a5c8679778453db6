#include "backend/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "ops/exact_math.h"

namespace tercet::cpu {
namespace {

constexpr int32_t kBlocksInSpan = 4;
constexpr int64_t kBlockBytes = 2 * kPageTokens * kHeadSize * 2;
/// Spans whose results are held at a time when few rows' spans are shared out among the threads.
constexpr int32_t kSpansInWave = 64;

void store_key(const int16_t* n, int32_t slot, int16_t* block) {
  int16_t* to = block + slot / 16 * 2048 + slot % 16 * 2;
  for (int64_t pair = 0; pair < 64; ++pair) std::memcpy(to + 32 * pair, n + 2 * pair, 4);
}

void store_value(const int16_t* n, int32_t slot, int16_t* block) {
  int16_t* to = block + slot / 2 * 32 + slot % 2;
  for (int64_t d = 0; d < kHeadSize; ++d) to[d / 16 * 1024 + d % 16 * 2] = n[d];
}

int32_t spans_of(int32_t position) { return position / (kBlocksInSpan * kPageTokens) + 1; }

}  // namespace

Cache::Cache(int32_t layer_count, int32_t head_count, int32_t page_count) {
  layers = layer_count;
  heads = head_count;
  pages = page_count;
  bytes = kv_cache_bytes(layers, heads, pages);
  const size_t slots = slot(layers, 0, 0);
  keys.resize(slots * kHeadSize);
  values.resize(slots * kHeadSize);
  key_exponents.resize(slots);
  value_exponents.resize(slots);
}

void Cache::copy_page(const PageCopy& copy) {
  const size_t slots = slot(0, 1, 0);  // of a page, all heads
  for (int32_t layer = 0; layer < layers; ++layer) {
    const size_t from = slot(layer, copy.from, 0);
    const size_t to = slot(layer, copy.to, 0);
    std::copy_n(keys.data() + from * kHeadSize, slots * kHeadSize, keys.data() + to * kHeadSize);
    std::copy_n(values.data() + from * kHeadSize, slots * kHeadSize, values.data() + to * kHeadSize);
    std::copy_n(key_exponents.data() + from, slots, key_exponents.data() + to);
    std::copy_n(value_exponents.data() + from, slots, value_exponents.data() + to);
  }
}

CpuStep::CpuStep(const Batch& rows_of_step) {
  batch = rows_of_step;
  const auto rows = static_cast<size_t>(batch.rows());
  position.assign(rows, -1);
  sequence.assign(rows, -1);
  flags.assign(rows, 0);
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceRows& part = batch.sequences[s];
    TERCET_CHECK_LE(part.position + part.rows, static_cast<int64_t>(part.pages.size()) * kPageTokens);
    for (int32_t i = 0; i < part.rows; ++i) {
      const auto row = static_cast<size_t>(part.first_row + i);
      TERCET_CHECK_LT(row, rows);
      position[row] = part.position + i;
      sequence[row] = static_cast<int32_t>(s);
    }
  }
  for (const int32_t s : sequence) TERCET_CHECK_GE(s, 0);
}

void CpuStep::mark(int64_t row) {
  std::atomic_ref(flags[static_cast<size_t>(row)]).store(1, std::memory_order_relaxed);
}

void Attention::write(CpuStep& step, Rows qkv, Vector q_norm, Vector k_norm, float eps, RopeParams rope,
                      Cache& cache, int32_t layer) const {
  const Kernels& kernels = machine_.kernels;
  const int64_t heads = qkv.cols / kHeadSize - 2 * cache.heads;
  const bool make_angles = step.angles.empty();
  if (make_angles) step.angles.resize(static_cast<size_t>(qkv.rows) * 128);
  const reference::RopeFrequencies frequencies =
      make_angles ? reference::rope_frequencies(rope.theta) : reference::RopeFrequencies{};
  machine_.run(qkv.rows, 16 * qkv.cols, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int32_t position = step.position[static_cast<size_t>(r)];
      float* angles = step.angles.data() + r * 128;
      if (make_angles) {
        const auto made = reference::rope_angles(frequencies, position);
        for (size_t i = 0; i < 64; ++i) {
          angles[i] = made[i].cos;
          angles[64 + i] = made[i].sin;
        }
      }
      const int32_t page = step.page(r, position / kPageTokens);
      const int32_t slot = position % kPageTokens;
      bool finite = true;
      int16_t numbers[kHeadSize];
      for (int64_t head = 0; head < heads + cache.heads; ++head) {
        float* x = qkv.data + r * qkv.cols + head * kHeadSize;
        kernels.rms_norm(x, (head < heads ? q_norm : k_norm).data, kHeadSize, eps, x);
        kernels.rope(x, angles, angles + 64);
        if (head < heads) continue;  // attention rounds q where it needs it as whole numbers
        const size_t at = cache.slot(layer, page, static_cast<int32_t>(head - heads));
        finite &= kernels.round_head(x, true, numbers, &cache.key_exponents[at + static_cast<size_t>(slot)]);
        store_key(numbers, slot, cache.keys.data() + at * kHeadSize);
      }
      for (int32_t head = 0; head < cache.heads; ++head) {
        const float* x = qkv.data + r * qkv.cols + (heads + cache.heads + head) * kHeadSize;
        const size_t at = cache.slot(layer, page, head);
        finite &=
            kernels.round_head(x, false, numbers, &cache.value_exponents[at + static_cast<size_t>(slot)]);
        store_value(numbers, slot, cache.values.data() + at * kHeadSize);
      }
      if (!finite) step.mark(r);
    }
  });
}

/// A row's query heads of one KV head, as whole numbers.
void Attention::round_queries(CpuStep& step, Rows qkv, int64_t row, int64_t kv_head) {
  for (int64_t head = kv_head * sharing_; head < (kv_head + 1) * sharing_; ++head) {
    const int64_t at = row * heads_ + head;
    int8_t exponent = 0;
    const float* x = qkv.data + row * qkv.cols + head * kHeadSize;
    if (!machine_.kernels.round_head(x, true, queries_.data() + at * kHeadSize, &exponent)) step.mark(row);
    query_size_[static_cast<size_t>(at)] = power_of_two(exponent);
  }
}

void Attention::attend_spans(const CpuStep& step, const Cache& cache, int32_t layer, int64_t row,
                             int64_t kv_head, int32_t first, int32_t last, const int16_t* after,
                             Partial* rows, Partial* span) const {
  const int32_t position = step.position[static_cast<size_t>(row)];
  const int32_t blocks = position / kPageTokens + 1;
  const int64_t query = row * heads_ + kv_head * sharing_;
  KeyBlock block = cache.block(layer, step.page(row, first * kBlocksInSpan), static_cast<int32_t>(kv_head));
  for (int32_t s = first; s < last; ++s) {
    Partial* to = rows != nullptr && s == first ? rows : span;
    for (int64_t h = 0; h < sharing_; ++h) to[h].empty = true;
    for (int32_t b = s * kBlocksInSpan; b < std::min((s + 1) * kBlocksInSpan, blocks); ++b) {
      KeyBlock next = {nullptr, nullptr, nullptr, nullptr, nullptr};
      if (b + 1 < blocks) next = cache.block(layer, step.page(row, b + 1), static_cast<int32_t>(kv_head));
      block.next_keys = b + 1 < blocks ? next.keys : after;
      const int visible = std::min(kPageTokens, position + 1 - b * kPageTokens);
      machine_.kernels.attend_block(queries_.data() + query * kHeadSize, query_size_.data() + query,
                                    static_cast<int>(sharing_), block, visible, to);
      block = next;
    }
    if (rows == nullptr) {
      span += sharing_;
    } else if (to != rows) {
      for (int64_t h = 0; h < sharing_; ++h) machine_.kernels.fold(&rows[h], &to[h]);
    }
  }
}

void Attention::finish(const Partial* rows, int64_t row, int64_t kv_head, Rows out) const {
  for (int64_t h = 0; h < sharing_; ++h) {
    float* to = out.data + row * out.cols + (kv_head * sharing_ + h) * kHeadSize;
    machine_.kernels.divide(rows[h].o, rows[h].l, kHeadSize, to);
  }
}

void Attention::attend(CpuStep& step, Rows qkv, const Cache& cache, int32_t layer, Rows out) {
  heads_ = out.cols / kHeadSize;
  sharing_ = heads_ / cache.heads;
  const auto queries = static_cast<size_t>(qkv.rows * heads_);
  if (query_size_.size() < queries) {
    queries_.resize(queries * kHeadSize);
    query_size_.resize(queries);
  }
  const int32_t furthest = *std::max_element(step.position.begin(), step.position.end());
  const int64_t items = qkv.rows * cache.heads;
  const int threads = machine_.pool.threads();
  if (threads > 1 && items < 2 * threads && items % threads != 0 && spans_of(furthest) > 1) {
    for (int64_t i = 0; i < items; ++i) round_queries(step, qkv, i / cache.heads, i % cache.heads);
    attend_in_waves(step, cache, layer, out, spans_of(furthest));
    return;
  }
  const int64_t bytes = (furthest / kPageTokens + 1) * kBlockBytes;
  partials_.resize(std::max(partials_.size(), static_cast<size_t>(2 * sharing_ * threads)));
  machine_.run(items, bytes, [&](int64_t begin, int64_t end, int thread) {
    Partial* const result = partials_.data() + 2 * sharing_ * thread;
    for (int64_t i = begin; i < end; ++i) {  // by KV head, so that its keys stay near while rows meet them
      const int64_t row = i % qkv.rows;
      const int64_t kv_head = i / qkv.rows;
      const int64_t after = std::min(i + 1, items - 1);
      const KeyBlock likely =
          cache.block(layer, step.page(after % qkv.rows, 0), static_cast<int32_t>(after / qkv.rows));
      round_queries(step, qkv, row, kv_head);
      const int32_t spans = spans_of(step.position[static_cast<size_t>(row)]);
      attend_spans(step, cache, layer, row, kv_head, 0, spans, likely.keys, result, result + sharing_);
      finish(result, row, kv_head, out);
    }
  });
}

/// For few rows: the spans of a wave are shared out among the threads, then folded in order.
void Attention::attend_in_waves(const CpuStep& step, const Cache& cache, int32_t layer, Rows out,
                                int32_t spans) {
  const int64_t items = out.rows * cache.heads;
  partials_.resize(static_cast<size_t>(items * kSpansInWave * sharing_));
  row_results_.resize(static_cast<size_t>(items * sharing_));
  for (Partial& result : row_results_) result.empty = true;
  for (int32_t first = 0; first < spans; first += kSpansInWave) {
    const int32_t last = std::min(first + kSpansInWave, spans);
    const auto own_last = [&](int64_t item) {
      return std::min(last, spans_of(step.position[static_cast<size_t>(item / cache.heads)]));
    };
    machine_.run(items * (last - first), kBlocksInSpan * kBlockBytes, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t item = i / (last - first);
        const auto s = static_cast<int32_t>(first + i % (last - first));
        Partial* to = partials_.data() + (item * kSpansInWave + s - first) * sharing_;
        if (s >= own_last(item)) continue;
        const int16_t* own =
            cache.block(layer, step.page(item / cache.heads, 0), static_cast<int32_t>(item % cache.heads))
                .keys;
        attend_spans(step, cache, layer, item / cache.heads, item % cache.heads, s, s + 1, own, nullptr, to);
      }
    });
    for (int64_t item = 0; item < items; ++item) {
      for (int32_t s = first; s < own_last(item); ++s) {
        const Partial* from = partials_.data() + (item * kSpansInWave + s - first) * sharing_;
        for (int64_t h = 0; h < sharing_; ++h) {
          machine_.kernels.fold(&row_results_[static_cast<size_t>(item * sharing_ + h)], &from[h]);
        }
      }
    }
  }
  for (int64_t item = 0; item < items; ++item) {
    finish(row_results_.data() + item * sharing_, item / cache.heads, item % cache.heads, out);
  }
}

int64_t Attention::bytes() const {
  return static_cast<int64_t>(queries_.size() * sizeof(int16_t) + query_size_.size() * sizeof(float) +
                              (partials_.size() + row_results_.size()) * sizeof(Partial));
}

}  // namespace tercet::cpu
