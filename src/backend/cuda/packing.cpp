#include "backend/cuda/packing.h"

#include <algorithm>

#include "backend/cuda/kernels/rows.h"
#include "backend/cuda/runtime/status.h"
#include "base/check.h"
#include "ops/leaves.h"

namespace tercet::cuda {
namespace {

constexpr int64_t kAlign = Staging::kAlign;

int64_t list_bytes(size_t count) { return static_cast<int64_t>(count * sizeof(PackParams)); }

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// What a matrix becomes, without memory.
Weights form_of(const MatrixData& data) {
  TERCET_CHECK_EQ(data.k % data.group, 0);
  TERCET_CHECK_LE(data.k / data.group, kMaxGroups);
  Weights out;
  out.n = static_cast<int32_t>(data.n);
  out.k = static_cast<int32_t>(data.k);
  out.group = data.group;
  out.planes = !data.affine() ? 0 : data.bits > 4 ? 2 : 1;
  out.wide = data.affine() && data.dtype != DType::bf16 ? 1 : 0;
  out.leaves = static_cast<int32_t>(leaf_count(data.k / data.group));
  return out;
}

bool same_form(const Weights& a, const Weights& b) {
  return a.k == b.k && a.group == b.group && a.planes == b.planes && a.wide == b.wide;
}

bool owned(std::span<const MatrixData> list) {
  return std::all_of(list.begin(), list.end(), [](const MatrixData& data) { return data.owner != nullptr; });
}

int64_t tiles_of(const Weights& w) { return (w.n + kTile - 1) / kTile; }

int64_t value_bytes(const Weights& w) {
  if (w.planes == 0) return int64_t{w.n} * w.k * 2;
  return tiles_of(w) * w.blocks() * w.planes * kBlockBytes;
}

int64_t scale_bytes(const Weights& w) {
  if (w.planes == 0) return int64_t{w.n} * w.groups();
  return tiles_of(w) * w.groups() * kTile * (w.wide != 0 ? 8 : 4);
}

/// Gives matrices their places one after another: all values, then all scales.
class Places {
 public:
  void add(std::span<Weights> matrices) {
    for (const Weights& w : matrices) bytes_ += rounded(value_bytes(w)) + rounded(scale_bytes(w));
    bytes_ += 2 * kAlign;
  }
  int64_t bytes() const { return bytes_; }
  void start(uint8_t* memory) { next_ = memory; }
  void assign(std::span<Weights> matrices) {
    for (Weights& w : matrices) take(w.values, value_bytes(w));
    align();
    for (Weights& w : matrices) take(w.scales, scale_bytes(w));
    align();
  }

 private:
  void take(const uint8_t*& place, int64_t bytes) {
    place = next_;
    next_ += rounded(bytes);
  }
  /// As kernels read them; affine matrices are whole multiples already, so that tiles go on across matrices.
  static int64_t rounded(int64_t bytes) { return (bytes + 15) / 16 * 16; }
  void align() { next_ = reinterpret_cast<uint8_t*>(aligned(reinterpret_cast<int64_t>(next_))); }

  int64_t bytes_ = 0;
  uint8_t* next_ = nullptr;
};

}  // namespace

int32_t dtype_code(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0;
    case DType::f16:
      return 1;
    default:
      TERCET_CHECK(dtype == DType::f32);
      return 2;
  }
}

Packer::Packer(int64_t& held, int threads, bool overlap)
    : held_(held),
      launcher_(stream_.get(), false, overlap),
      wide_(launcher_, held),
      units_(launcher_, held),
      failed_(launcher_, held),
      staging_(launcher_, held, threads) {}

const int32_t* Packer::start(std::shared_ptr<DeviceBytes> memory) {
  memory_ = std::move(memory);
  wild_ = flags_.next();
  return wild_;
}

void Packer::end(bool owned) {
  pack_gathered();
  memory_ = nullptr;
  if (!owned) finish();
}

void Packer::pack_gathered() {
  if (gathered_.empty()) return;
  const auto list = std::make_shared<std::vector<PackParams>>(std::move(gathered_));
  gathered_.clear();
  const uint8_t* const on_device = staging_.add(list->data(), list_bytes(list->size()));
  staging_.keep(list);
  staging_.keep(memory_);
  staging_.send([this, list, on_device] {
    pack_affine(launcher_, *list, reinterpret_cast<const PackParams*>(on_device));
  });
}

void Packer::fill(const Weights& to, int64_t first, const MatrixData& data) {
  if (!data.affine()) return fill_floats(to, first, data);
  const int64_t row_bytes = data.value_row_bytes() + 2 * data.scale_row_bytes();
  const int64_t most = (Staging::kBytes - 4 * kAlign) / row_bytes / kTile * kTile;
  TERCET_CHECK_GE(most, 1);
  for (int64_t row = 0; row < data.n; row += most) {
    const MatrixData some = data.rows(row, std::min(most, data.n - row));
    const int64_t values = some.n * some.value_row_bytes();
    const int64_t scales = some.n * some.scale_row_bytes();
    const int64_t bytes = aligned(values) + 2 * aligned(scales);
    if (bytes + aligned(list_bytes(gathered_.size() + 1)) > staging_.left()) {
      pack_gathered();
      staging_.make_room(bytes + aligned(list_bytes(1)));
    }
    PackParams p{};
    p.values = staging_.add(some.values, values);
    p.scales = staging_.add(some.scales, scales);
    p.biases = staging_.add(some.biases, scales);
    staging_.keep(some.owner);
    p.wild = wild_;
    p.to = to;
    p.row_bytes = some.value_row_bytes();
    p.n = static_cast<int32_t>(some.n);
    p.first = static_cast<int32_t>(first + row);
    p.bits = some.bits;
    p.dtype = dtype_code(some.dtype);
    gathered_.push_back(p);
  }
}

void Packer::fill_floats(const Weights& to, int64_t first, const MatrixData& data) {
  const int64_t row_bytes = data.k * dtype_size(data.dtype);
  const int64_t most = Staging::kBytes / row_bytes;
  TERCET_CHECK_GE(most, 1);
  pack_gathered();
  staging_.make_room(std::min(most, data.n) * row_bytes);
  if (const int64_t floats = std::min(most, data.n) * data.k; floats > most_floats_) {
    finish();  // they grow while nobody uses them
    most_floats_ = floats;
  }
  auto* const wide = wide_.get<float>(most_floats_);
  auto* const units = units_.get<UnitSum>(most_floats_ / data.group);
  auto* const failed = failed_.get<uint8_t>(most_floats_ / data.group);
  for (int64_t row = 0; row < data.n; row += most) {
    const MatrixData some = data.rows(row, std::min(most, data.n - row));
    const int64_t count = some.n * some.k;
    const uint8_t* const staging = staging_.add(some.values, some.n * row_bytes);
    staging_.keep(some.owner);
    staging_.keep(memory_);
    RoundParams p{};
    p.x = wide;
    p.failed = failed;  // values that are not finite are the loader's to refuse
    p.weights = to;
    p.weights.leaves = 1;  // "F at least the row's largest minus 16": the whole row counts as one leaf
    const int64_t at = first + row;
    p.rounded.numbers = reinterpret_cast<int16_t*>(const_cast<uint8_t*>(to.values)) + at * to.k;
    p.rounded.units = units;
    p.ldx = p.k = to.k;
    p.rows = static_cast<int32_t>(some.n);
    p.x_div = p.flag_div = 1;
    p.units_per_row = to.groups();
    auto* const to_exponents = reinterpret_cast<int8_t*>(const_cast<uint8_t*>(to.scales)) + at * to.groups();
    staging_.send([this, p, staging, wide, count, to_exponents, dtype = dtype_code(some.dtype)] {
      widen(launcher_, {staging, wide, count, dtype});
      round_rows(launcher_, p);
      exponents(launcher_, {p.rounded.units, to_exponents, int64_t{p.rows} * p.units_per_row});
    });
  }
}

const Weights* Packer::upload(const std::shared_ptr<DeviceBytes>& memory, int64_t at,
                              std::vector<Weights> list) {
  const auto owned = std::make_shared<const std::vector<Weights>>(std::move(list));
  staging_.copy(memory, at, owned->data(), static_cast<int64_t>(owned->size() * sizeof(Weights)), owned);
  return reinterpret_cast<const Weights*>(memory->get() + at);
}

std::unique_ptr<PackedLinear> Packer::linear(std::span<const MatrixData> parts) {
  auto out = std::make_unique<PackedLinear>();
  out->k = parts.front().k;
  std::vector<Weights> merged;
  std::vector<size_t> owner;    // of each part
  std::vector<int64_t> offset;  // of each part in its owner
  for (const MatrixData& part : parts) {
    TERCET_CHECK_EQ(part.k, out->k);
    const Weights form = form_of(part);
    const bool joins = !merged.empty() && same_form(merged.back(), form) &&
                       (form.planes == 0 || merged.back().n % kTile == 0);
    if (!joins) {
      out->parts.push_back({{}, out->n});
      merged.push_back(form);
      merged.back().n = 0;
    }
    owner.push_back(merged.size() - 1);
    offset.push_back(merged.back().n);
    merged.back().n += form.n;
    out->n += part.n;
  }
  Places places;
  places.add(merged);
  out->memory = std::make_shared<DeviceBytes>(places.bytes(), held_);
  out->bytes = out->memory->size();
  places.start(out->memory->get());
  places.assign(merged);
  for (size_t i = 0; i < merged.size(); ++i) out->parts[i].weights = merged[i];
  out->wild = start(out->memory);
  for (size_t i = 0; i < parts.size(); ++i) fill(merged[owner[i]], offset[i], parts[i]);
  end(owned(parts));
  return out;
}

std::unique_ptr<PackedTable> Packer::table(const MatrixData& data) {
  auto out = std::make_unique<PackedTable>();
  const int64_t values = data.n * data.value_row_bytes();
  const int64_t scales = data.n * data.scale_row_bytes();
  out->vocabulary = data.n;
  out->hidden = data.k;
  out->bytes = values + 2 * scales;
  out->memory = std::make_shared<DeviceBytes>(aligned(values) + 2 * aligned(scales), held_);
  out->values = out->memory->get();
  staging_.copy(out->memory, 0, data.values, values, data.owner);
  if (data.affine()) {
    out->scales = out->values + aligned(values);
    out->biases = out->scales + aligned(scales);
    staging_.copy(out->memory, aligned(values), data.scales, scales, data.owner);
    staging_.copy(out->memory, aligned(values) + aligned(scales), data.biases, scales, data.owner);
  }
  out->form = data;
  out->form.owner = nullptr;
  end(data.owner != nullptr);
  return out;
}

std::unique_ptr<PackedExperts> Packer::experts(std::span<const MatrixData> gate,
                                               std::span<const MatrixData> up,
                                               std::span<const MatrixData> down) {
  auto out = std::make_unique<PackedExperts>();
  const size_t count = gate.size();
  out->count = static_cast<int64_t>(count);
  out->hidden = gate.front().k;
  out->inter = gate.front().n;
  out->down_k = down.front().k;
  out->out = down.front().n;
  std::vector<Weights> inner, outer;  // gate and up in turn; down
  for (size_t e = 0; e < count; ++e) {
    inner.push_back(form_of(gate[e]));
    inner.push_back(form_of(up[e]));
    outer.push_back(form_of(down[e]));
  }
  out->least_group = std::min(out->hidden, out->down_k);
  out->alike = out->inter % kTile == 0;
  for (const auto* list : {&inner, &outer}) {
    for (const Weights& w : *list) {
      out->alike = out->alike && same_form(w, list->front());
      out->least_group = std::min<int64_t>(out->least_group, w.group);
    }
  }
  Places places;
  places.add(inner);
  places.add(outer);
  const auto weights_bytes = static_cast<int64_t>(count * sizeof(Weights));
  const int64_t lists = 3 * aligned(weights_bytes);
  out->memory = std::make_shared<DeviceBytes>(lists + places.bytes(), held_);
  out->bytes = out->memory->size();
  places.start(out->memory->get() + lists);
  places.assign(inner);
  places.assign(outer);

  std::vector<Weights> gates, ups;
  for (size_t e = 0; e < count; ++e) {
    gates.push_back(inner[2 * e]);
    ups.push_back(inner[2 * e + 1]);
  }
  out->gate = upload(out->memory, 0, gates);
  out->up = upload(out->memory, aligned(weights_bytes), ups);
  out->down = upload(out->memory, 2 * aligned(weights_bytes), outer);
  if (out->alike) {
    AlikeExperts& same = out->same;
    same.gate_up = inner.front();
    same.gate_up.n *= 2;
    same.down = outer.front();
    same.gate_up_values = 2 * value_bytes(inner.front());
    same.gate_up_scales = 2 * scale_bytes(inner.front());
    same.down_values = value_bytes(outer.front());
    same.down_scales = scale_bytes(outer.front());
  }
  out->wild = start(out->memory);
  for (size_t e = 0; e < count; ++e) {
    fill(gates[e], 0, gate[e]);
    fill(ups[e], 0, up[e]);
    fill(outer[e], 0, down[e]);
  }
  end(owned(gate) && owned(up) && owned(down));
  return out;
}

}  // namespace tercet::cuda
