#include "weights/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace tercet {
namespace {

constexpr size_t kMaxRank = 8;
constexpr std::string_view kMetadata = "__metadata__";

/// Reads the header event by event: a header of 100 MB needs no tree in memory, and what is repeated or out
/// of place is seen where it stands.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<HeaderEntry> entries;
  std::string error;

  bool start_object(std::size_t) override {
    if (place_ == Place::file) {
      place_ = Place::tensors;
    } else if (place_ == Place::tensors && name_ == kMetadata) {
      place_ = Place::metadata;
    } else if (place_ == Place::tensors) {
      entries.emplace_back().info.name = name_;
      has_dtype_ = has_shape_ = has_offsets_ = false;
      place_ = Place::entry;
    } else {
      return misplaced("an object");
    }
    return true;
  }

  bool key(string_t& key) override {
    if (place_ == Place::tensors) name_ = key;
    if (place_ == Place::entry) field_ = key;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::entry) {
      if (!has_dtype_) return bad("dtype is missing");
      if (!has_shape_) return bad("shape is missing");
      if (!has_offsets_) return bad("data_offsets is missing");
    }
    place_ = place_ == Place::tensors ? Place::file : Place::tensors;
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) return true;
    if (place_ != Place::entry || field_ != "dtype") return misplaced("a string");
    if (has_dtype_) return bad("dtype is given twice");
    const std::optional<DType> dtype = dtype_from_name(value);
    if (!dtype) return bad(fmt::format("unknown dtype \"{}\"", value));
    entries.back().info.dtype = *dtype;
    return has_dtype_ = true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::entry) return misplaced("an array");
    if (field_ == "shape") {
      if (has_shape_) return bad("shape is given twice");
      place_ = Place::shape;
      return has_shape_ = true;
    }
    if (field_ == "data_offsets") {
      if (has_offsets_) return bad("data_offsets is given twice");
      place_ = Place::offsets;
      offsets_ = 0;
      return has_offsets_ = true;
    }
    return misplaced("an array");
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) {
      return bad(fmt::format("data_offsets: expected 2 numbers, found {}", offsets_));
    }
    place_ = Place::entry;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return bad(fmt::format("shape: extent {} is out of range", value));
      }
      std::vector<int64_t>& shape = entries.back().info.shape;
      if (shape.size() == kMaxRank) return bad(fmt::format("shape has more than {} extents", kMaxRank));
      shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::offsets) {
      (offsets_ == 0 ? entries.back().begin : entries.back().end) = value;
      ++offsets_;
      return true;
    }
    return misplaced("a number");
  }

  bool number_integer(number_integer_t value) override {
    return misplaced(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return misplaced(fmt::format("the number {}", text));
  }
  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool binary(binary_t&) override { return misplaced("binary data"); }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& exception) override {
    error = fmt::format("header is not valid JSON: {}", exception.what());
    return false;
  }

 private:
  enum class Place { file, tensors, metadata, entry, shape, offsets };

  bool bad(std::string_view what) {
    error = fmt::format("tensor \"{}\": {}", name_, what);
    return false;
  }

  bool misplaced(std::string_view what) {
    switch (place_) {
      case Place::file:
        error = fmt::format("header: expected an object, found {}", what);
        return false;
      case Place::tensors:
        return bad(fmt::format("expected an object, found {}", what));
      case Place::metadata:
        error = fmt::format("header: expected strings in {}, found {}", kMetadata, what);
        return false;
      case Place::entry:
        return bad(fmt::format(
            "expected dtype (a string), shape and data_offsets (arrays), found {} as \"{}\"", what, field_));
      case Place::shape:
      case Place::offsets:
        return bad(fmt::format("{}: expected whole numbers, found {}", field_, what));
    }
    return false;
  }

  Place place_ = Place::file;
  std::string name_, field_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

}  // namespace

Result<std::vector<HeaderEntry>> parse_safetensors_header(std::string_view json) {
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json, &reader)) return fail("{}", reader.error);
  return std::move(reader.entries);
}

}  // namespace tercet
