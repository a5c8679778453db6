#include "backend/cuda/cuda_ops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>

#include "backend/cuda/cuda_step.h"
#include "backend/cuda/evaluation.h"
#include "backend/cuda/kernels/attention_mma.h"
#include "backend/cuda/kernels/rows.h"
#include "backend/cuda/kernels/write_kv.h"
#include "backend/cuda/packing.h"
#include "backend/cuda/products.h"
#include "backend/cuda/runtime/status.h"
#include "backend/cuda/select/attention.h"
#include "backend/cuda/select/generation.h"
#include "base/check.h"
#include "base/log.h"
#include "ops/exact_math.h"
#include "ops/leaves.h"

namespace tercet {
namespace {

using namespace cuda;  // NOLINT: what this file wires

CudaStep& own(Step& step) { return static_cast<CudaStep&>(step); }
const PackedLinear& own(const Linear& linear) { return static_cast<const PackedLinear&>(linear); }
const PackedTable& own(const Table& table) { return static_cast<const PackedTable&>(table); }
const PackedExperts& own(const Experts& experts) { return static_cast<const PackedExperts&>(experts); }
CudaCache& own(KvCache& cache) { return static_cast<CudaCache&>(cache); }
const CudaCache& own(const KvCache& cache) { return static_cast<const CudaCache&>(cache); }

class CudaOps final : public Ops {
 public:
  CudaOps(const CudaOptions& options, const CudaDevice& device)
      : options_(options),
        device_(traits_of(device, options.plain, options.common)),
        launcher_(stream_.get(), !options.plain, device_.overlaps()),
        input_(held_),
        packer_(held_, options.threads, device_.overlaps()),
        products_(launcher_, held_, device_),
        evaluation_(launcher_, held_),
        angles_(launcher_, held_),
        partials_(launcher_, held_),
        queries_(launcher_, held_),
        query_powers_(launcher_, held_) {
    launcher_.set_before([this] { input_.flush(stream_.get()); });
    launcher_.set_collected([this] { products_.flush(); });
  }

  ~CudaOps() override { wait(); }

  Buffer allocate(int64_t bytes) override {
    use_device();
    auto memory = std::make_shared<DeviceBytes>(bytes, held_);
    if (bytes > 0) {  // NaN: what nobody wrote, nobody may read
      check(cudaMemsetAsync(memory->get(), 0xff, static_cast<size_t>(bytes), stream_.get()));
    }
    forget();
    return Buffer(memory->get(), [this, memory](void*) {
      wait();
      *memory = {};
    });
  }
  void upload(void* device, const void* host, int64_t bytes) override {
    use_device();
    products_.settle();
    launcher_.flush();
    forget();
    // Returns when `host` may go. On the stream: the bytes may arrive later, and kernels must not read
    // before.
    check(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_.get()));
  }
  void download(void* host, const void* device, int64_t bytes) override {
    wait();
    check(cudaMemcpy(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
  }
  int64_t allocated() const override { return held_; }
  bool on_host() const override { return false; }
  void wait() override {
    use_device();
    packer_.finish();
    products_.settle();
    launcher_.wait();
  }

  bool mark() override {
    launcher_.mark();
    return true;
  }
  std::vector<Lap> laps() override {
    wait();
    return launcher_.laps();
  }

  std::unique_ptr<Linear> pack_linear(std::span<const MatrixData> parts) override {
    use_device();
    return packed(packer_.linear(parts));
  }
  std::unique_ptr<Table> pack_table(const MatrixData& data) override {
    use_device();
    return packed(packer_.table(data));
  }
  std::unique_ptr<Experts> pack_experts(std::span<const MatrixData> gate, std::span<const MatrixData> up,
                                        std::span<const MatrixData> down) override {
    use_device();
    return packed(packer_.experts(gate, up, down));
  }

  std::unique_ptr<KvCache> make_cache(int32_t layers, int32_t heads, int32_t pages) override {
    use_device();
    auto cache = std::make_unique<CudaCache>();
    cache->layers = layers;
    cache->heads = heads;
    cache->pages = pages;
    cache->bytes = kv_cache_bytes(layers, heads, pages);
    cache->memory = DeviceBytes(cache->bytes, held_);
    // Zeros: attention multiplies what nobody wrote by weights of 0.
    check(cudaMemsetAsync(cache->memory.get(), 0, static_cast<size_t>(cache->bytes), stream_.get()));
    const int64_t slots = int64_t{layers} * heads * pages * kPageTokens;
    CacheView& view = cache->view;
    view.pages = pages;
    view.heads = heads;
    view.keys = reinterpret_cast<uint16_t*>(cache->memory.get());
    view.values = view.keys + slots * kHeadSize;
    view.key_exponents = reinterpret_cast<int8_t*>(view.values + slots * kHeadSize);
    view.value_exponents = view.key_exponents + slots;
    return cache;
  }

  std::unique_ptr<Step> begin(const Batch& batch) override {
    use_device();
    wait();
    if (live_steps_ == 0) input_.reset();
    forget();
    angles_of_ = nullptr;
    auto step = std::make_unique<CudaStep>();
    step->live = &live_steps_;
    ++live_steps_;
    step->batch = batch;
    place_rows(*step);
    return step;
  }

  void copy_pages(KvCache& cache, std::span<const PageCopy> copies) override {
    for (const PageCopy& copy : copies) {
      copy_page(launcher_, {own(cache).view, cache.layers, copy.from, copy.to, 0});
    }
  }

  std::vector<uint8_t> failed(Step& step) override {
    std::vector<uint8_t> flags(static_cast<size_t>(step.batch.rows()));
    download(flags.data(), own(step).failed, static_cast<int64_t>(flags.size()));
    return flags;
  }

  void embed(Step&, std::span<const int32_t> tokens, const Table& table, Rows x) override {
    TERCET_CHECK_EQ(x.cols, table.hidden);
    embed_rows(tokens, own(table), x, x.cols);
  }

  void norm(Step&, Rows x, Vector weight, float eps, Rows h) override {
    TERCET_CHECK_EQ(x.cols, weight.size);
    products_.norm(x, {}, weight, eps, h);
  }

  void add_norm(Step&, Rows x, Rows z, Vector weight, float eps, Rows h) override {
    if (weight.data != nullptr) TERCET_CHECK_EQ(x.cols, weight.size);
    products_.norm(x, z, weight, eps, h);
  }

  void linear(Step& step, Rows h, const Linear& weights, Rows y) override {
    TERCET_CHECK_EQ(h.rows, y.rows);
    check_product(h, weights, y.cols);
    rounded_queries_ = nullptr;
    products_.linear(own(step).failed, h, nullptr, own(weights), y);
  }

  void linear_of(Step& step, Rows h, std::span<const int32_t> rows, const Linear& weights, Rows y) override {
    TERCET_CHECK_EQ(static_cast<int64_t>(rows.size()), y.rows);
    check_product(h, weights, y.cols);
    if (rows.empty()) return;
    const int32_t* ids = input_.put(rows.data(), y.rows);
    products_.linear(own(step).failed, h, ids, own(weights), y);
  }

  void write_kv(Step& step, Rows qkv, Vector q_norm, Vector k_norm, float eps, RopeParams rope,
                KvCache& cache, int32_t layer) override {
    CudaStep& s = own(step);
    const LeafSumParams leaves = products_.take_leaves(qkv);
    products_.settle();
    if (angles_of_ != &s) make_angles(s, rope);
    WriteKvParams p{};
    p.qkv = qkv.data;
    p.q_norm = q_norm.data;
    p.k_norm = k_norm.data;
    p.angles = angles_.get<Angle>(int64_t{s.batch.rows()} * 64);
    p.failed = s.failed;
    p.places = s.places;
    p.cache = own(cache).view;
    p.ld = qkv.cols;
    p.rows = static_cast<int32_t>(qkv.rows);
    p.heads = static_cast<int32_t>(qkv.cols / kHeadSize) - 2 * cache.heads;
    p.layer = layer;
    p.eps = eps;
    if (options_.plain) {
      cuda::write_kv(launcher_, p);
    } else if (const WriteKvAndQueriesParams both{p, queries_of(p.rows, p.heads)};
               leaves.leaves > 0 || !products_.program().write_kv(both)) {
      write_kv_and_queries(launcher_, {both, leaves.parts, leaves.leaf_stride, leaves.leaves, 0});
    }
    products_.written(qkv);
    rounded_queries_ = options_.plain ? nullptr : qkv.data;
  }

  void attention(Step& step, Rows qkv, const KvCache& cache, int32_t layer, Rows out) override {
    products_.settle();
    CudaStep& s = own(step);
    AttentionParams p{};
    p.qkv = qkv.data;
    p.out = out.data;
    p.failed = s.failed;
    p.places = s.places;
    p.cache = own(cache).view;
    p.ld = qkv.cols;
    p.ld_out = out.cols;
    p.rows = static_cast<int32_t>(qkv.rows);
    p.heads = static_cast<int32_t>(out.cols / kHeadSize);
    p.layer = layer;
    products_.written(out);
    if (choose_attention(device_, p.heads, cache.heads, p.rows).kernel == AttentionKernel::plain) {
      cuda::attention(launcher_, p);
    } else if (rounded_queries_ != p.qkv ||
               !products_.program().attention(p, queries_of(p.rows, p.heads), s.last_position, s.single())) {
      if (attend(s, p)) products_.hold_rounded(out);
    }
  }

  void gate_up(Step& step, Rows h, const Linear& weights, Rows a) override {
    check_product(h, weights, 2 * a.cols);
    products_.gate_up(own(step).failed, h, own(weights), a);
  }

  void route(Step& step, Rows h, const Linear& router, Vector bias, RouterParams params,
             Routes routes) override {
    TERCET_CHECK_EQ(own(router).parts.size(), size_t{1});
    check_product(h, router, router.n);
    products_.route(own(step).failed, h, own(router), bias, params, routes);
  }

  void experts_gate_up(Step& step, Rows h, const Routes& routes, const Experts& experts, Rows a) override {
    TERCET_CHECK_EQ(a.cols, experts.inter);
    TERCET_CHECK_EQ(h.cols, experts.hidden);
    products_.experts_gate_up(own(step).failed, h, routes, own(experts), a);
  }

  void experts_down(Step& step, Rows a, const Routes& routes, const Experts& experts, Rows shared,
                    Rows z) override {
    TERCET_CHECK_EQ(z.cols, experts.out);
    TERCET_CHECK_EQ(a.cols, experts.down_k);
    products_.experts_down(own(step).failed, a, routes, own(experts), shared, z);
  }

  void mtp_input(Step&, std::span<const int32_t> next, const Table& table, Rows hidden, Vector enorm,
                 Vector hnorm, float eps, Rows out) override {
    TERCET_CHECK_EQ(out.cols, 2 * table.hidden);
    embed_rows(next, own(table), {out.data, out.rows, table.hidden}, out.cols);
    products_.norm_into(out.data, out.cols, out.rows, enorm, eps, out.data, out.cols);
    products_.norm_into(hidden.data, hidden.cols, out.rows, hnorm, eps, out.data + table.hidden, out.cols);
    products_.written(out);
  }

  std::vector<RowResult> evaluate(Step& step, Rows logits, std::span<const RowOutput> outputs) override {
    TERCET_CHECK_EQ(logits.rows, static_cast<int64_t>(outputs.size()));
    products_.settle();
    return evaluation_.run(input_, own(step).failed, logits, outputs);
  }

 private:
  static void check_product(Rows h, const Linear& weights, int64_t outputs) {
    TERCET_CHECK_EQ(h.cols, weights.k);
    TERCET_CHECK_EQ(outputs, weights.n);
  }

  void use_device() const { check(cudaSetDevice(options_.device)); }

  /// What is being packed is ready when the next step begins.
  template <class T>
  std::unique_ptr<T> packed(std::unique_ptr<T> weights) {
    if (live_steps_ > 0) packer_.finish();
    return weights;
  }

  /// What was rounded ahead: the memory that it stands for may have changed.
  void forget() {
    products_.forget();
    rounded_queries_ = nullptr;
  }

  void place_rows(CudaStep& step) {
    const auto rows = static_cast<size_t>(step.batch.rows());
    std::vector<int32_t> position(rows, -1), first_page(rows, 0), pages;
    for (const SequenceRows& sequence : step.batch.sequences) {
      TERCET_CHECK_LE(sequence.position + sequence.rows,
                      static_cast<int64_t>(sequence.pages.size()) * kPageTokens);
      for (int32_t i = 0; i < sequence.rows; ++i) {
        const auto row = static_cast<size_t>(sequence.first_row + i);
        TERCET_CHECK_LT(row, rows);
        position[row] = sequence.position + i;
        first_page[row] = static_cast<int32_t>(pages.size());
        step.last_position = std::max(step.last_position, position[row]);
      }
      pages.insert(pages.end(), sequence.pages.begin(), sequence.pages.end());
    }
    for (const int32_t p : position) TERCET_CHECK_GE(p, 0);
    const std::vector<uint8_t> zeros(rows, 0);
    step.failed = input_.put(zeros.data(), step.batch.rows());
    step.places.position = input_.put(position.data(), step.batch.rows());
    step.places.first_page = input_.put(first_page.data(), step.batch.rows());
    step.places.pages = input_.put(pages.data(), static_cast<int64_t>(pages.size()));
  }

  /// All layers of a step share them.
  void make_angles(const CudaStep& step, RopeParams rope) {
    if (theta_ != rope.theta) {
      for (size_t i = 0; i < frequencies_.size(); ++i) {
        frequencies_[i] = rope_frequency(rope.theta, static_cast<int>(i));
      }
      theta_ = rope.theta;
    }
    AngleParams p{};
    p.position = step.places.position;
    p.frequencies = input_.put(frequencies_.data(), 64);
    p.angles = angles_.get<Angle>(int64_t{step.batch.rows()} * 64);
    p.rows = step.batch.rows();
    rope_angles(launcher_, p);
    angles_of_ = &step;
  }

  void embed_rows(std::span<const int32_t> tokens, const PackedTable& table, Rows x, int64_t ldx) {
    products_.settle();
    for (const int32_t token : tokens) TERCET_CHECK(token >= 0 && token < table.vocabulary);
    EmbedParams p{};
    p.values = table.values;
    p.scales = table.scales;
    p.biases = table.biases;
    p.tokens = input_.put(tokens.data(), x.rows);
    p.x = x.data;
    p.ldx = ldx;
    p.row_bytes = table.form.value_row_bytes();
    p.rows = static_cast<int32_t>(x.rows);
    p.k = static_cast<int32_t>(x.cols);
    p.bits = table.form.bits;
    p.group = table.form.group;
    p.dtype = dtype_code(table.form.dtype);
    cuda::embed(launcher_, p);
    products_.written(x);
  }

  /// Whether the result lies rounded in products_ too.
  bool attend(CudaStep& step, const AttentionParams& p) {
    CudaStep::Attention& a = step.attention;
    const int32_t sharing = p.heads / p.cache.heads;
    if (a.sharing != sharing) a = plan_attention(step, sharing, p.cache.heads);
    const TileParams tiles{p, a.tiles, a.tile_count, 0};
    if (a.tile_count > 0) a.mma ? attention_mma(launcher_, tiles) : attention_tiles(launcher_, tiles);
    AttentionParams alone = p;
    alone.rows = a.alone_count;
    return alone.rows > 0 && attend_by_blocks(step, alone, a);
  }

  CudaStep::Attention plan_attention(const CudaStep& step, int32_t sharing, int32_t kv_heads) {
    CudaStep::Attention out;
    out.sharing = sharing;
    std::vector<AttentionTile> tiles;
    std::vector<int32_t> last;  // position of each tile
    std::vector<int32_t> alone;
    std::vector<int32_t> positions;  // of rows that attend alone
    std::vector<bool> begins;        // a sequence
    for (const SequenceRows& sequence : step.batch.sequences) {
      const AttentionKernel kernel =
          choose_attention(device_, sharing * kv_heads, kv_heads, sequence.rows).kernel;
      if (kernel == AttentionKernel::alone) {
        for (int32_t i = 0; i < sequence.rows; ++i) {
          alone.push_back(sequence.first_row + i);
          positions.push_back(sequence.position + i);
          begins.push_back(i == 0);
        }
        continue;
      }
      out.mma = kernel == AttentionKernel::mma;  // of all tiles of a device
      const int32_t most = out.mma ? mma_tile_rows(sharing) : tile_rows(sharing);
      for (int32_t i = 0; i < sequence.rows; i += most) {
        tiles.push_back({sequence.first_row + i, std::min(most, sequence.rows - i)});
        last.push_back(sequence.position + i);
      }
    }
    out.alone_count = static_cast<int32_t>(alone.size());
    out.parts = plan_parts(step, sharing * kv_heads, positions, begins);
    if (tiles.empty()) return out;
    std::vector<size_t> order(tiles.size());  // the longest first: blocks end together
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return last[a] > last[b]; });
    std::vector<AttentionTile> sorted;
    for (const size_t i : order) sorted.push_back(tiles[i]);
    out.tile_count = static_cast<int32_t>(tiles.size());
    out.tiles = input_.put(sorted.data(), out.tile_count);
    if (!alone.empty()) out.alone = input_.put(alone.data(), out.alone_count);
    return out;
  }

  static int32_t spans_of(int32_t position) { return position / (kPageTokens * kSpanBlocks) + 1; }
  /// That a row's partial results have room for.
  static int32_t most_spans(const CudaStep& step) {
    return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(spans_of(step.last_position))));
  }

  /// `positions`: of the rows that attend alone; `begins`: whether a row is the first of its sequence.
  std::vector<CudaStep::Attention::Part> plan_parts(const CudaStep& step, int32_t heads,
                                                    const std::vector<int32_t>& positions,
                                                    const std::vector<bool>& begins) {
    constexpr int64_t kMostFloats = int64_t{16} << 20;
    const int64_t row_floats = int64_t{heads} * most_spans(step) * kPartial;
    const auto at_a_time = static_cast<size_t>(std::max<int64_t>(kMostFloats / row_floats, 1));
    std::vector<CudaStep::Attention::Part> parts;
    for (size_t first = 0; first < positions.size(); first += at_a_time) {
      const size_t end = std::min(first + at_a_time, positions.size());
      std::vector<SpanRows> groups;
      int32_t spans = 0;
      for (size_t i = first; i < end;) {
        size_t next = i + 1;
        while (next < end && !begins[next]) ++next;
        groups.push_back({static_cast<int32_t>(i - first), spans});
        spans += static_cast<int32_t>(next - i) * spans_of(positions[next - 1]);
        i = next;
      }
      groups.push_back({static_cast<int32_t>(end - first), spans});
      const auto count = static_cast<int32_t>(groups.size());
      parts.push_back({static_cast<int32_t>(first), static_cast<int32_t>(end - first),
                       input_.put(groups.data(), count), count - 1});
    }
    return parts;
  }

  Queries queries_of(int64_t rows, int64_t heads) {
    return {queries_.get<uint16_t>(rows * heads * kHead), query_powers_.get<float>(rows * heads)};
  }

  /// Whether the result lies rounded in products_ too.
  bool attend_by_blocks(const CudaStep& step, const AttentionParams& p, const CudaStep::Attention& plan) {
    const int64_t all_rows = step.batch.rows();
    const Queries queries = queries_of(all_rows, p.heads);
    if (rounded_queries_ != p.qkv) {
      round_queries(launcher_, {p.qkv, queries, p.ld, static_cast<int32_t>(all_rows), p.heads});
    }
    const int64_t spans = most_spans(step);
    const int64_t leaves = leaf_count(p.ld_out / kBlock);
    const FoldKernel fold = choose_fold(device_, p.rows == all_rows, p.rows, p.ld_out, leaves).kernel;
    Rounded rounded{};
    if (fold == FoldKernel::rounding) rounded = products_.room_for({p.out, all_rows, p.ld_out});
    for (const CudaStep::Attention::Part& rows : plan.parts) {
      BlocksParams part{};
      part.rows = p;
      part.rows.rows = rows.rows;
      part.queries = queries;
      part.partials = partials_.get<float>(rows.rows * p.heads * spans * kPartial);
      part.sizes = reinterpret_cast<float2*>(part.partials + rows.rows * p.heads * spans * kHead);
      part.list = plan.alone == nullptr ? nullptr : plan.alone + rows.first;
      part.groups = rows.groups;
      part.first = rows.first;
      part.group_count = rows.group_count;
      part.spans = static_cast<int32_t>(spans);
      part.leaves = static_cast<int32_t>(leaves);
      part.processors = device_.processors;
      part.rounded = rounded;
      attention_blocks(launcher_, part);
    }
    return fold == FoldKernel::rounding;
  }

  const CudaOptions options_;
  const DeviceTraits device_;
  const Stream stream_;  // first of all that queues work on it
  int64_t held_ = 0;
  int64_t live_steps_ = 0;
  Launcher launcher_;
  StepInput input_;
  Packer packer_;
  Products products_;
  Evaluation evaluation_;
  Scratch angles_, partials_, queries_, query_powers_;
  const float* rounded_queries_ = nullptr;  // the rows whose queries are those
  const Step* angles_of_ = nullptr;
  std::optional<double> theta_;  // of the frequencies, which take as long as the rest of a step's preparation
  std::array<float, 64> frequencies_{};
};

}  // namespace

Result<std::unique_ptr<Ops>> make_cuda_ops(const CudaOptions& options) {
  TERCET_TRY(const CudaDevice device, cuda_device(options.device));
  const auto make = [&](const CudaOptions& given) {
    check(cudaSetDevice(given.device));
    return std::make_unique<CudaOps>(given, device);
  };
  if (options.plain || options.untried) return make(options);
  CudaOptions plain = options;
  plain.plain = true;
  const Choice<KernelSet> set = choose_kernels(traits_of(device), options.verified);
  if (set.kernel == KernelSet::plain) {
    log_warn("{}, compute capability {}.{}: running the plain kernels, which are slow: {}", device.name,
             device.major, device.minor, set.why);
    return make(plain);
  }
  std::unique_ptr<CudaOps> fast = make(options);
  std::unique_ptr<CudaOps> fallback = make(plain);
  const std::vector<std::string> failing = failing_cuda_kernels(*fallback, *fast);
  if (failing.empty()) return fast;
  log_warn("{} gives other bits with the fast kernels in {}: running the plain ones, which are slow",
           device.name, fmt::join(failing, ", "));
  return fallback;
}

}  // namespace tercet
