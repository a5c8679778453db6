#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "backend/cpu/attention.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/logits.h"
#include "backend/cpu/products.h"
#include "backend/cpu/self_check.h"
#include "backend/reference/product.h"
#include "base/check.h"
#include "base/log.h"

namespace tercet {
namespace {

using cpu::Cache;
using cpu::CpuStep;
using cpu::PackedExperts;
using cpu::PackedLinear;

float* row_of(Rows x, int64_t r) { return x.data + r * x.cols; }

struct CpuTable final : Table {
  MatrixData data;
};

CpuStep& own(Step& step) { return static_cast<CpuStep&>(step); }
const PackedLinear& own(const Linear& linear) { return static_cast<const PackedLinear&>(linear); }
const CpuTable& own(const Table& table) { return static_cast<const CpuTable&>(table); }
const PackedExperts& own(const Experts& experts) { return static_cast<const PackedExperts&>(experts); }
Cache& own(KvCache& cache) { return static_cast<Cache&>(cache); }
const Cache& own(const KvCache& cache) { return static_cast<const Cache&>(cache); }

/// The arithmetic keeps subnormals; a thread that flushes them would give other bits.
void check_subnormals() {
  volatile float smallest_normal = 0x1p-126F;
  TERCET_CHECK(smallest_normal * 0.5F != 0.0F);
}

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, const cpu::Kernels& kernels)
      : pool_(threads),
        machine_{kernels, pool_},
        products_(machine_),
        experts_(machine_),
        attention_(machine_) {}

  Buffer allocate(int64_t bytes) override {
    held_ += bytes;
    void* data = ::operator new (static_cast<size_t>(bytes), std::align_val_t{64});
    std::memset(data, 0xff, static_cast<size_t>(bytes));  // NaN: what nobody wrote, nobody may read
    return Buffer(data, [this, bytes](void* p) {
      held_ -= bytes;
      ::operator delete (p, std::align_val_t{64});
    });
  }
  void upload(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void download(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  int64_t allocated() const override {
    const auto router = static_cast<int64_t>((logits_.size() + scores_.size()) * sizeof(float));
    return held_ + products_.bytes() + experts_.bytes() + attention_.bytes() + router;
  }

  std::unique_ptr<Linear> pack_linear(std::span<const MatrixData> parts) override {
    auto linear = std::make_unique<PackedLinear>();
    linear->memory = cpu::pack_matrices(machine_, parts, linear->parts);
    linear->k = parts.front().k;
    for (const cpu::PackedMatrix& part : linear->parts) {
      TERCET_CHECK_EQ(part.k, linear->k);
      linear->n += part.n;
      linear->bytes += part.bytes();
    }
    held_ += linear->bytes;
    return linear;
  }

  std::unique_ptr<Table> pack_table(const MatrixData& data) override {
    auto table = std::make_unique<CpuTable>();
    table->data = reference::owned_copy(data);
    table->vocabulary = data.n;
    table->hidden = data.k;
    table->bytes = data.n * (data.value_row_bytes() + 2 * data.scale_row_bytes());
    held_ += table->bytes;
    return table;
  }

  std::unique_ptr<Experts> pack_experts(std::span<const MatrixData> gate, std::span<const MatrixData> up,
                                        std::span<const MatrixData> down) override {
    auto experts = std::make_unique<PackedExperts>();
    experts->gate_memory = cpu::pack_matrices(machine_, gate, experts->gate);
    experts->up_memory = cpu::pack_matrices(machine_, up, experts->up);
    experts->down_memory = cpu::pack_matrices(machine_, down, experts->down);
    for (const auto* matrices : {&experts->gate, &experts->up, &experts->down}) {
      for (const cpu::PackedMatrix& matrix : *matrices) experts->bytes += matrix.bytes();
    }
    experts->count = static_cast<int64_t>(gate.size());
    experts->hidden = gate.front().k;
    experts->inter = gate.front().n;
    experts->down_k = down.front().k;
    experts->out = down.front().n;
    held_ += experts->bytes;
    return experts;
  }

  std::unique_ptr<KvCache> make_cache(int32_t layers, int32_t heads, int32_t pages) override {
    auto cache = std::make_unique<Cache>(layers, heads, pages);
    held_ += cache->bytes;
    return cache;
  }

  std::unique_ptr<Step> begin(const Batch& batch) override {
    check_subnormals();
    return std::make_unique<CpuStep>(batch);
  }

  void copy_pages(KvCache& cache, std::span<const PageCopy> copies) override {
    for (const PageCopy& copy : copies) own(cache).copy_page(copy);
  }

  std::vector<uint8_t> failed(Step& step) override { return own(step).flags; }

  void embed(Step&, std::span<const int32_t> tokens, const Table& table, Rows x) override {
    TERCET_CHECK_EQ(x.cols, table.hidden);
    machine_.run(x.rows, 16 * x.cols, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const int32_t token = tokens[static_cast<size_t>(r)];
        TERCET_CHECK(token >= 0 && token < table.vocabulary);
        reference::table_row(own(table).data, token, row_of(x, r));
      }
    });
  }

  void norm(Step&, Rows x, Vector weight, float eps, Rows h) override {
    TERCET_CHECK_EQ(x.cols, weight.size);
    machine_.run(x.rows, 4 * x.cols, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        machine_.kernels.rms_norm(row_of(x, r), weight.data, x.cols, eps, row_of(h, r));
      }
    });
  }

  void add_norm(Step&, Rows x, Rows z, Vector weight, float eps, Rows h) override {
    if (weight.data != nullptr) TERCET_CHECK_EQ(x.cols, weight.size);
    machine_.run(x.rows, 8 * x.cols, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        machine_.kernels.add(row_of(x, r), row_of(z, r), x.cols);
        if (weight.data == nullptr) continue;
        machine_.kernels.rms_norm(row_of(x, r), weight.data, x.cols, eps, row_of(h, r));
      }
    });
  }

  void linear(Step& step, Rows h, const Linear& weights, Rows y) override {
    TERCET_CHECK_EQ(h.rows, y.rows);
    TERCET_CHECK_EQ(h.cols, weights.k);
    products_.multiply(
        own(weights), y, [&](int64_t r) { return row_of(h, r); }, marker(step));
  }

  void linear_of(Step& step, Rows h, std::span<const int32_t> rows, const Linear& weights, Rows y) override {
    TERCET_CHECK_EQ(static_cast<int64_t>(rows.size()), y.rows);
    TERCET_CHECK_EQ(h.cols, weights.k);
    const auto row = [&](int64_t i) { return row_of(h, rows[static_cast<size_t>(i)]); };
    products_.multiply(own(weights), y, row,
                       [&](int64_t i) { own(step).mark(rows[static_cast<size_t>(i)]); });
  }

  void write_kv(Step& step, Rows qkv, Vector q_norm, Vector k_norm, float eps, RopeParams rope,
                KvCache& cache, int32_t layer) override {
    attention_.write(own(step), qkv, q_norm, k_norm, eps, rope, own(cache), layer);
  }

  void attention(Step& step, Rows qkv, const KvCache& cache, int32_t layer, Rows out) override {
    attention_.attend(own(step), qkv, own(cache), layer, out);
  }

  void gate_up(Step& step, Rows h, const Linear& weights, Rows a) override {
    TERCET_CHECK_EQ(h.cols, weights.k);
    products_.gate_up(own(weights), h, a, marker(step));
  }

  void route(Step& step, Rows h, const Linear& router, Vector bias, RouterParams params,
             Routes routes) override {
    TERCET_CHECK_EQ(own(router).parts.size(), size_t{1});
    TERCET_CHECK_EQ(h.cols, router.k);
    const auto experts = static_cast<size_t>(router.n);
    const auto threads = static_cast<size_t>(pool_.threads());
    if (logits_.size() < static_cast<size_t>(h.rows) * experts) {
      logits_.resize(static_cast<size_t>(h.rows) * experts);
    }
    if (scores_.size() < 2 * threads * experts) scores_.resize(2 * threads * experts);
    products_.both_parts(own(router).parts.front(), h, logits_.data(), marker(step));
    machine_.run(h.rows, 8 * router.n * params.chosen, [&](int64_t begin, int64_t end, int thread) {
      const std::span score = std::span(scores_).subspan(2 * static_cast<size_t>(thread) * experts);
      for (int64_t r = begin; r < end; ++r) {
        const std::span row = std::span(logits_).subspan(static_cast<size_t>(r) * experts, experts);
        for (float& logit : row) {
          if (!not_finite(logit)) continue;
          own(step).mark(r);
          logit = 0.0F;  // so that the choice stays defined
        }
        const auto chosen = static_cast<size_t>(routes.chosen);
        cpu::choose_experts(machine_.kernels, row, {bias.data, experts}, params, score.first(experts),
                            score.subspan(experts, experts), {routes.experts + r * routes.chosen, chosen},
                            {routes.weights + r * routes.chosen, chosen});
      }
    });
  }

  void experts_gate_up(Step& step, Rows h, const Routes& routes, const Experts& experts, Rows a) override {
    experts_.gate_up(own(experts), h, routes, a, marker(step));
  }

  void experts_down(Step& step, Rows a, const Routes& routes, const Experts& experts, Rows shared,
                    Rows z) override {
    experts_.down(own(experts), a, routes, shared, z, marker(step));
  }

  void mtp_input(Step&, std::span<const int32_t> next, const Table& table, Rows hidden, Vector enorm,
                 Vector hnorm, float eps, Rows out) override {
    const int64_t size = table.hidden;
    TERCET_CHECK_EQ(out.cols, 2 * size);
    machine_.run(out.rows, 32 * size, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        float* row = row_of(out, r);
        reference::table_row(own(table).data, next[static_cast<size_t>(r)], row);
        machine_.kernels.rms_norm(row, enorm.data, size, eps, row);
        machine_.kernels.rms_norm(row_of(hidden, r), hnorm.data, size, eps, row + size);
      }
    });
  }

  std::vector<RowResult> evaluate(Step& step, Rows logits, std::span<const RowOutput> outputs) override {
    TERCET_CHECK_EQ(logits.rows, static_cast<int64_t>(outputs.size()));
    std::vector<RowResult> results(outputs.size());
    pool_.parallel_for(logits.rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const RowOutput& output = outputs[static_cast<size_t>(i)];
        RowResult& result = results[static_cast<size_t>(i)];
        if (own(step).flags[static_cast<size_t>(output.row)] != 0) {
          result.failed = true;
        } else {
          const std::span row(row_of(logits, i), static_cast<size_t>(logits.cols));
          result = cpu::evaluate(machine_.kernels, row, output);
        }
      }
    });
    return results;
  }

 private:
  static cpu::FailedRow marker(Step& step) {
    return [&step](int64_t row) { own(step).mark(row); };
  }

  cpu::SpinningPool pool_;
  const cpu::Machine machine_;
  cpu::Products products_;
  cpu::ExpertProducts experts_;
  cpu::Attention attention_;
  std::vector<float> logits_;  // of a router: [rows, experts]
  std::vector<float> scores_;  // [threads, 2, experts]
  int64_t held_ = 0;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(int threads, std::optional<CpuLevel> level) {
  const std::vector<CpuLevel> available = cpu::available_levels();
  if (level) {
    TERCET_CHECK(std::find(available.begin(), available.end(), *level) != available.end());
    return std::make_unique<CpuOps>(threads, cpu::kernels_of(*level));
  }
  for (auto best = available.rbegin(); best != available.rend(); ++best) {
    const cpu::Kernels& kernels = cpu::kernels_of(*best);
    const std::vector<std::string> failing = cpu::failing_kernels(kernels);
    if (failing.empty()) return std::make_unique<CpuOps>(threads, kernels);
    log_warn("this processor's {} gives other bits than the reference in {}: not used", kernels.name,
             fmt::join(failing, ", "));
  }
  fmt::print(stderr, "no kernels give the reference's bits on this processor\n");
  std::abort();
}

}  // namespace tercet
