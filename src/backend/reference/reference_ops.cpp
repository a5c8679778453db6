#include "backend/reference/reference_ops.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "backend/reference/attention.h"
#include "backend/reference/draw.h"
#include "backend/reference/norm.h"
#include "backend/reference/product.h"
#include "backend/reference/rope.h"
#include "backend/reference/router.h"
#include "base/check.h"
#include "base/threads.h"
#include "ops/exact_math.h"

namespace tercet {
namespace {

using reference::KeyBlock;
using reference::Matrix;
using reference::RoundedHead;
using reference::RoundedRows;

std::span<float> row_of(Rows x, int64_t r) { return {x.data + r * x.cols, static_cast<size_t>(x.cols)}; }

std::span<const float> span_of(Vector v) { return {v.data, static_cast<size_t>(v.size)}; }

struct ReferenceLinear final : Linear {
  std::vector<Matrix> parts;  // stacked along n
};

struct ReferenceTable final : Table {
  MatrixData data;
};

struct ReferenceExperts final : Experts {
  std::vector<Matrix> gate, up, down;  // [count]
};

/// A head's block of 64 positions is contiguous: [layer][page][head][64][128].
struct ReferenceCache final : KvCache {
  std::vector<int16_t> keys, values;
  std::vector<int8_t> key_exponents, value_exponents;

  size_t slot(int32_t layer, int32_t page, int32_t head) const {
    return static_cast<size_t>((int64_t{layer} * pages + page) * heads + head) * kPageTokens;
  }
  KeyBlock block(int32_t layer, int32_t page, int32_t head) const {
    const size_t at = slot(layer, page, head);
    return {keys.data() + at * kHeadSize, key_exponents.data() + at, values.data() + at * kHeadSize,
            value_exponents.data() + at};
  }
};

struct ReferenceStep final : Step {
  std::vector<int32_t> position;  // [rows]
  std::vector<int32_t> sequence;  // [rows]: index into batch.sequences
  std::vector<uint8_t> failed;    // [rows]; a row is written by one thread at a time
};

ReferenceStep& own(Step& step) { return static_cast<ReferenceStep&>(step); }
const ReferenceLinear& own(const Linear& linear) { return static_cast<const ReferenceLinear&>(linear); }
const ReferenceTable& own(const Table& table) { return static_cast<const ReferenceTable&>(table); }
const ReferenceExperts& own(const Experts& experts) { return static_cast<const ReferenceExperts&>(experts); }
ReferenceCache& own(KvCache& cache) { return static_cast<ReferenceCache&>(cache); }
const ReferenceCache& own(const KvCache& cache) { return static_cast<const ReferenceCache&>(cache); }

/// Outputs a thread takes at a time: enough to be worth a hand-over.
constexpr int64_t kOutputGrain = 16;

class ReferenceOps final : public Ops {
 public:
  explicit ReferenceOps(int threads) : pool_(threads) {}

  Buffer allocate(int64_t bytes) override {
    allocated_ += bytes;
    void* data = ::operator new (static_cast<size_t>(bytes), std::align_val_t{64});
    std::memset(data, 0xff, static_cast<size_t>(bytes));  // NaN: what nobody wrote, nobody may read
    return Buffer(data, [this, bytes](void* p) {
      allocated_ -= bytes;
      ::operator delete (p, std::align_val_t{64});
    });
  }
  void upload(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void download(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  int64_t allocated() const override { return allocated_; }

  std::unique_ptr<Linear> pack_linear(std::span<const MatrixData> parts) override {
    auto linear = std::make_unique<ReferenceLinear>();
    for (const MatrixData& part : parts) {
      linear->parts.push_back(reference::pack(part));
      linear->n += part.n;
      linear->bytes += linear->parts.back().bytes();
    }
    linear->k = parts.front().k;
    allocated_ += linear->bytes;
    return linear;
  }

  std::unique_ptr<Table> pack_table(const MatrixData& data) override {
    auto table = std::make_unique<ReferenceTable>();
    table->data = reference::owned_copy(data);
    table->vocabulary = data.n;
    table->hidden = data.k;
    table->bytes = data.n * (data.value_row_bytes() + 2 * data.scale_row_bytes());
    allocated_ += table->bytes;
    return table;
  }

  std::unique_ptr<Experts> pack_experts(std::span<const MatrixData> gate, std::span<const MatrixData> up,
                                        std::span<const MatrixData> down) override {
    auto experts = std::make_unique<ReferenceExperts>();
    const auto pack_all = [&](std::span<const MatrixData> from, std::vector<Matrix>& to) {
      to.resize(from.size());
      pool_.parallel_for(static_cast<int64_t>(from.size()), 1, [&](int64_t e, int64_t) {
        to[static_cast<size_t>(e)] = reference::pack(from[static_cast<size_t>(e)]);
      });
      for (const Matrix& matrix : to) experts->bytes += matrix.bytes();
    };
    pack_all(gate, experts->gate);
    pack_all(up, experts->up);
    pack_all(down, experts->down);
    experts->count = static_cast<int64_t>(gate.size());
    experts->hidden = gate.front().k;
    experts->inter = gate.front().n;
    experts->down_k = down.front().k;
    experts->out = down.front().n;
    allocated_ += experts->bytes;
    return experts;
  }

  std::unique_ptr<KvCache> make_cache(int32_t layers, int32_t heads, int32_t pages) override {
    auto cache = std::make_unique<ReferenceCache>();
    cache->layers = layers;
    cache->heads = heads;
    cache->pages = pages;
    cache->bytes = kv_cache_bytes(layers, heads, pages);
    const size_t slots = cache->slot(layers, 0, 0);
    cache->keys.resize(slots * kHeadSize);
    cache->values.resize(slots * kHeadSize);
    cache->key_exponents.resize(slots);
    cache->value_exponents.resize(slots);
    allocated_ += cache->bytes;
    return cache;
  }

  std::unique_ptr<Step> begin(const Batch& batch) override {
    auto step = std::make_unique<ReferenceStep>();
    step->batch = batch;
    const auto rows = static_cast<size_t>(batch.rows());
    step->position.assign(rows, -1);
    step->sequence.assign(rows, -1);
    step->failed.assign(rows, 0);
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      const SequenceRows& sequence = batch.sequences[s];
      TERCET_CHECK_LE(sequence.position + sequence.rows,
                      static_cast<int64_t>(sequence.pages.size()) * kPageTokens);
      for (int32_t i = 0; i < sequence.rows; ++i) {
        const auto row = static_cast<size_t>(sequence.first_row + i);
        TERCET_CHECK_LT(row, rows);
        step->position[row] = sequence.position + i;
        step->sequence[row] = static_cast<int32_t>(s);
      }
    }
    for (const int32_t sequence : step->sequence) TERCET_CHECK_GE(sequence, 0);
    return step;
  }

  void copy_pages(KvCache& cache, std::span<const PageCopy> copies) override {
    ReferenceCache& c = own(cache);
    const size_t slots = c.slot(0, 1, 0);  // of a page, all heads
    for (const PageCopy& copy : copies) {
      for (int32_t layer = 0; layer < c.layers; ++layer) {
        const size_t from = c.slot(layer, copy.from, 0);
        const size_t to = c.slot(layer, copy.to, 0);
        std::copy_n(c.keys.data() + from * kHeadSize, slots * kHeadSize, c.keys.data() + to * kHeadSize);
        std::copy_n(c.values.data() + from * kHeadSize, slots * kHeadSize, c.values.data() + to * kHeadSize);
        std::copy_n(c.key_exponents.data() + from, slots, c.key_exponents.data() + to);
        std::copy_n(c.value_exponents.data() + from, slots, c.value_exponents.data() + to);
      }
    }
  }

  std::vector<uint8_t> failed(Step& step) override { return own(step).failed; }

  void embed(Step&, std::span<const int32_t> tokens, const Table& table, Rows x) override {
    TERCET_CHECK_EQ(x.cols, table.hidden);
    for (int64_t r = 0; r < x.rows; ++r) {
      const int32_t token = tokens[static_cast<size_t>(r)];
      TERCET_CHECK(token >= 0 && token < table.vocabulary);
      reference::table_row(own(table).data, token, row_of(x, r).data());
    }
  }

  void norm(Step&, Rows x, Vector weight, float eps, Rows h) override {
    TERCET_CHECK_EQ(x.cols, weight.size);
    pool_.parallel_for(x.rows, 1, [&](int64_t r, int64_t) {
      reference::rms_norm(row_of(x, r), span_of(weight), eps, row_of(h, r));
    });
  }

  void add_norm(Step& step, Rows x, Rows z, Vector weight, float eps, Rows h) override {
    for (int64_t i = 0; i < x.rows * x.cols; ++i) x.data[i] = x.data[i] + z.data[i];
    if (weight.data != nullptr) norm(step, x, weight, eps, h);
  }

  void linear(Step& step, Rows h, const Linear& weights, Rows y) override {
    TERCET_CHECK_EQ(h.rows, y.rows);
    product(step, h, {}, own(weights), y);
  }

  void linear_of(Step& step, Rows h, std::span<const int32_t> rows, const Linear& weights, Rows y) override {
    TERCET_CHECK_EQ(static_cast<int64_t>(rows.size()), y.rows);
    if (!rows.empty()) product(step, h, rows, own(weights), y);
  }

  void write_kv(Step& step, Rows qkv, Vector q_norm, Vector k_norm, float eps, RopeParams rope,
                KvCache& cache, int32_t layer) override {
    ReferenceStep& s = own(step);
    ReferenceCache& c = own(cache);
    const int64_t heads = qkv.cols / kHeadSize - 2 * c.heads;
    const reference::RopeFrequencies frequencies = reference::rope_frequencies(rope.theta);
    pool_.parallel_for(qkv.rows, 1, [&](int64_t r, int64_t) {
      const auto row = static_cast<size_t>(r);
      const int32_t position = s.position[row];
      const auto angles = reference::rope_angles(frequencies, position);
      const auto& pages = s.batch.sequences[static_cast<size_t>(s.sequence[row])].pages;
      const int32_t page = pages[static_cast<size_t>(position / kPageTokens)];
      const auto head_at = [&](int64_t head) {
        return row_of(qkv, r).subspan(static_cast<size_t>(head) * kHeadSize, kHeadSize);
      };
      bool finite = true;
      RoundedHead rounded;
      for (int64_t head = 0; head < heads + c.heads; ++head) {
        const std::span<float> x = head_at(head);
        reference::rms_norm(x, span_of(head < heads ? q_norm : k_norm), eps, x);
        reference::rope(x, angles);
        if (head < heads) continue;  // attention rounds q where it needs it as whole numbers
        finite &= reference::round_by_norm(x, rounded);
        const size_t at = c.slot(layer, page, static_cast<int32_t>(head - heads)) +
                          static_cast<size_t>(position % kPageTokens);
        std::copy_n(rounded.n, kHeadSize, c.keys.data() + at * kHeadSize);
        c.key_exponents[at] = rounded.exponent;
      }
      for (int32_t head = 0; head < c.heads; ++head) {
        finite &= reference::round_by_largest(head_at(heads + c.heads + head), rounded);
        const size_t at = c.slot(layer, page, head) + static_cast<size_t>(position % kPageTokens);
        std::copy_n(rounded.n, kHeadSize, c.values.data() + at * kHeadSize);
        c.value_exponents[at] = rounded.exponent;
      }
      if (!finite) s.failed[row] = 1;
    });
  }

  void attention(Step& step, Rows qkv, const KvCache& cache, int32_t layer, Rows out) override {
    ReferenceStep& s = own(step);
    const ReferenceCache& c = own(cache);
    const int64_t heads = out.cols / kHeadSize;
    const int64_t sharing = heads / c.heads;  // query heads that read one KV head
    pool_.parallel_for(qkv.rows, 1, [&](int64_t r, int64_t) {
      const auto row = static_cast<size_t>(r);
      const auto& pages = s.batch.sequences[static_cast<size_t>(s.sequence[row])].pages;
      for (int64_t head = 0; head < heads; ++head) {
        RoundedHead q;
        const auto offset = static_cast<size_t>(head) * kHeadSize;
        if (!reference::round_by_norm(row_of(qkv, r).subspan(offset, kHeadSize), q)) s.failed[row] = 1;
        const auto block = [&](int32_t b) {
          return c.block(layer, pages[static_cast<size_t>(b)], static_cast<int32_t>(head / sharing));
        };
        reference::attend(q, s.position[row], block, row_of(out, r).data() + offset);
      }
    });
  }

  void gate_up(Step& step, Rows h, const Linear& weights, Rows a) override {
    TERCET_CHECK_EQ(weights.n, 2 * a.cols);
    std::vector<float> both(static_cast<size_t>(a.rows * 2 * a.cols));
    product(step, h, {}, own(weights), {both.data(), a.rows, 2 * a.cols});
    for (int64_t r = 0; r < a.rows; ++r) {
      const float* gate = both.data() + r * 2 * a.cols;
      for (int64_t i = 0; i < a.cols; ++i)
        row_of(a, r)[static_cast<size_t>(i)] = swiglu(gate[i], gate[a.cols + i]);
    }
  }

  void route(Step& step, Rows h, const Linear& router, Vector bias, RouterParams params,
             Routes routes) override {
    TERCET_CHECK_EQ(own(router).parts.size(), size_t{1});
    const Matrix& w = own(router).parts.front();
    RoundedRows whole = reference::make_rounded(h.rows, h.cols, w.group);
    RoundedRows rest = whole;
    std::vector<float> left(static_cast<size_t>(h.cols));
    for (int64_t r = 0; r < h.rows; ++r) {
      const bool finite = reference::round_row(row_of(h, r), w.form(), whole, r, left) &&
                          reference::round_row(left, w.form(), rest, r, {});
      if (!finite) own(step).failed[static_cast<size_t>(r)] = 1;
    }
    std::vector<float> first(static_cast<size_t>(h.rows * w.n));
    std::vector<float> second(first.size());
    pool_.parallel_for(w.n, kOutputGrain, [&](int64_t begin, int64_t end) {
      reference::product(whole, w, begin, end, first.data(), w.n);
      reference::product(rest, w, begin, end, second.data(), w.n);
    });
    for (size_t i = 0; i < first.size(); ++i) {
      first[i] = first[i] + second[i];
      if (!not_finite(first[i])) continue;
      own(step).failed[i / static_cast<size_t>(w.n)] = 1;
      first[i] = 0.0F;  // so that the choice stays defined
    }
    const auto chosen = static_cast<size_t>(routes.chosen);
    for (int64_t r = 0; r < h.rows; ++r) {
      reference::choose_experts({first.data() + r * w.n, static_cast<size_t>(w.n)}, span_of(bias), params,
                                {routes.experts + r * routes.chosen, chosen},
                                {routes.weights + r * routes.chosen, chosen});
    }
  }

  void experts_gate_up(Step& step, Rows h, const Routes& routes, const Experts& experts, Rows a) override {
    const ReferenceExperts& e = own(experts);
    TERCET_CHECK_EQ(a.cols, e.inter);
    pool_.parallel_for(h.rows, 1, [&](int64_t r, int64_t) {
      const Rows row{h.data + r * h.cols, 1, h.cols};
      std::vector<float> gate(static_cast<size_t>(e.inter));
      std::vector<float> up(gate.size());
      for (int64_t j = 0; j < routes.chosen; ++j) {
        const auto expert = static_cast<size_t>(routes.experts[r * routes.chosen + j]);
        row_product(step, r, row, e.gate[expert], gate.data());
        row_product(step, r, row, e.up[expert], up.data());
        for (size_t i = 0; i < gate.size(); ++i) row_of(a, r * routes.chosen + j)[i] = swiglu(gate[i], up[i]);
      }
    });
  }

  void experts_down(Step& step, Rows a, const Routes& routes, const Experts& experts, Rows shared,
                    Rows z) override {
    const ReferenceExperts& e = own(experts);
    TERCET_CHECK_EQ(z.cols, e.out);
    pool_.parallel_for(z.rows, 1, [&](int64_t r, int64_t) {
      std::vector<float> y(static_cast<size_t>(e.out));
      const std::span<float> sum = row_of(z, r);
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (int64_t j = 0; j < routes.chosen; ++j) {
        const int64_t at = r * routes.chosen + j;
        const auto expert = static_cast<size_t>(routes.experts[at]);
        row_product(step, r, {a.data + at * a.cols, 1, a.cols}, e.down[expert], y.data());
        for (size_t i = 0; i < y.size(); ++i) sum[i] = fma_(routes.weights[at], y[i], sum[i]);
      }
      if (shared.data == nullptr) return;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + row_of(shared, r)[i];
    });
  }

  void mtp_input(Step&, std::span<const int32_t> next, const Table& table, Rows hidden, Vector enorm,
                 Vector hnorm, float eps, Rows out) override {
    const auto size = static_cast<size_t>(table.hidden);
    TERCET_CHECK_EQ(out.cols, 2 * table.hidden);
    for (int64_t r = 0; r < out.rows; ++r) {
      const std::span<float> row = row_of(out, r);
      reference::table_row(own(table).data, next[static_cast<size_t>(r)], row.data());
      reference::rms_norm(row.first(size), span_of(enorm), eps, row.first(size));
      reference::rms_norm(row_of(hidden, r), span_of(hnorm), eps, row.last(size));
    }
  }

  std::vector<RowResult> evaluate(Step& step, Rows logits, std::span<const RowOutput> outputs) override {
    TERCET_CHECK_EQ(logits.rows, static_cast<int64_t>(outputs.size()));
    std::vector<RowResult> results(outputs.size());
    pool_.parallel_for(logits.rows, 1, [&](int64_t i, int64_t) {
      const RowOutput& output = outputs[static_cast<size_t>(i)];
      RowResult& result = results[static_cast<size_t>(i)];
      if (own(step).failed[static_cast<size_t>(output.row)] != 0) {
        result.failed = true;
      } else {
        result = reference::evaluate(row_of(logits, i), output);
      }
    });
    return results;
  }

 private:
  /// Rounds the rows once for each group size among the parts, then multiplies; `ids` are the rows of h that
  /// are wanted (empty: all).
  void product(Step& step, Rows h, std::span<const int32_t> ids, const ReferenceLinear& weights, Rows y) {
    TERCET_CHECK_EQ(h.cols, weights.k);
    TERCET_CHECK_EQ(y.cols, weights.n);
    RoundedRows x;
    int64_t first = 0;
    for (size_t p = 0; p < weights.parts.size(); ++p) {
      const Matrix& w = weights.parts[p];
      const bool same =
          p > 0 && w.group == weights.parts[p - 1].group && w.form() == weights.parts[p - 1].form();
      if (!same) x = round_rows(step, h, ids, y.rows, w);
      pool_.parallel_for(w.n, kOutputGrain, [&](int64_t begin, int64_t end) {
        reference::product(x, w, begin, end, y.data + first, y.cols);
      });
      first += w.n;
    }
  }

  RoundedRows round_rows(Step& step, Rows h, std::span<const int32_t> ids, int64_t rows, const Matrix& w) {
    RoundedRows x = reference::make_rounded(rows, h.cols, w.group);
    pool_.parallel_for(rows, 1, [&](int64_t i, int64_t) {
      const int64_t r = ids.empty() ? i : ids[static_cast<size_t>(i)];
      if (!reference::round_row(row_of(h, r), w.form(), x, i, {}))
        own(step).failed[static_cast<size_t>(r)] = 1;
    });
    return x;
  }

  /// One row by one expert, within a thread that owns step row r.
  static void row_product(Step& step, int64_t r, Rows row, const Matrix& w, float* y) {
    RoundedRows x = reference::make_rounded(1, row.cols, w.group);
    if (!reference::round_row(row_of(row, 0), w.form(), x, 0, {}))
      own(step).failed[static_cast<size_t>(r)] = 1;
    reference::product(x, w, 0, w.n, y, w.n);
  }

  ThreadPool pool_;
  int64_t allocated_ = 0;
};

}  // namespace

std::unique_ptr<Ops> make_reference_ops(int threads) { return std::make_unique<ReferenceOps>(threads); }

}  // namespace tercet
