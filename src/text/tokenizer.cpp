#include "text/tokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "text/bridge.h"
#include "text/read_file.h"

namespace tercet {
namespace {

bool is_mark(char c) {
  const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  const bool space = c == ' ' || (c >= '\t' && c <= '\r');
  return !word && !space;
}

size_t character_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// Adds the marks in `spelling` (UTF-8) that `marks` lacks; whether there was any.
bool collect_marks(std::string_view spelling, std::string& marks) {
  bool any = false;
  for (size_t at = 0; at < spelling.size(); at += character_length(spelling[at])) {
    if (!is_mark(spelling[at])) continue;
    any = true;
    const std::string_view mark = spelling.substr(at, character_length(spelling[at]));
    if (marks.find(mark) == std::string::npos) marks += mark;
  }
  return any;
}

}  // namespace

void Tokenizer::Free::operator()(const TercetTokenizer* tokenizer) const { tercet_tokenizer_free(tokenizer); }

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "tokenizer.json";
  TERCET_TRY(const std::string json, read_file(path));
  Tokenizer tokenizer;
  tokenizer.origin_ = path.string();
  const TercetTokenizer* bridge = nullptr;
  bridge::Buffer error;
  if (!tercet_tokenizer_new(bridge::bytes(json), json.size(), &bridge, error.out())) {
    return fail("{}: {}", path.string(), error.text());
  }
  tokenizer.bridge_.reset(bridge);
  TERCET_TRY_VOID(tokenizer.read_vocabulary());
  tokenizer.read_controls();
  return tokenizer;
}

Result<void> Tokenizer::read_vocabulary() {
  bridge::Buffer table, error;
  if (!tercet_tokenizer_vocabulary(bridge_.get(), table.out(), error.out())) {
    return fail("{}: {}", origin_, error.text());
  }
  std::string_view rest = table.text();
  while (!rest.empty()) {
    uint32_t length = 0;
    std::memcpy(&length, rest.data() + 1, sizeof length);
    flags_.push_back(static_cast<uint8_t>(rest[0]));
    begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    bytes_ += rest.substr(5, length);
    rest.remove_prefix(5 + length);
  }
  begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  return {};
}

void Tokenizer::read_controls() {
  for (int32_t id = 0; id < vocabulary_size(); ++id) {
    if (!is_control(id)) continue;
    const std::string_view spelling = token_bytes(id);
    if (!collect_marks(spelling, marks_)) {
      flags_[static_cast<size_t>(id)] &= static_cast<uint8_t>(~kControl);
      continue;
    }
    controls_.emplace(spelling, id);
    control_lengths_.push_back(spelling.size());
  }
  std::sort(control_lengths_.begin(), control_lengths_.end(), std::greater<>());
  control_lengths_.erase(std::unique(control_lengths_.begin(), control_lengths_.end()),
                         control_lengths_.end());
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (!flag(id, kExists)) return {};
  const auto i = static_cast<size_t>(id);
  return std::string_view(bytes_).substr(begin_[i], begin_[i + 1] - begin_[i]);
}

std::optional<int32_t> Tokenizer::control(std::string_view spelling) const {
  const auto found = controls_.find(std::string(spelling));
  if (found == controls_.end()) return std::nullopt;
  return found->second;
}

std::vector<int32_t> Tokenizer::controls() const {
  std::vector<int32_t> ids;
  for (const auto& [spelling, id] : controls_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

Result<void> Tokenizer::append_text(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return {};
  bridge::Buffer words, error;
  if (!tercet_tokenizer_encode(bridge_.get(), bridge::bytes(text), text.size(), words.out(), error.out())) {
    return fail("a text of {} bytes cannot be tokenised: {}", text.size(), error.text());
  }
  for (const uint32_t id : words.words()) ids.push_back(static_cast<int32_t>(id));
  return {};
}

Result<std::vector<int32_t>> Tokenizer::encode_text(std::string_view text) const {
  std::vector<int32_t> ids;
  TERCET_TRY_VOID(append_text(text, ids));
  return ids;
}

/// The longest control token that begins at `at` and ends by `limit`.
std::optional<int32_t> Tokenizer::control_at(std::string_view text, size_t at, size_t limit) const {
  for (const size_t length : control_lengths_) {
    if (length > limit - at) continue;
    if (const auto id = control(text.substr(at, length))) return id;
  }
  return std::nullopt;
}

Result<std::vector<int32_t>> Tokenizer::encode_prompt(std::string_view text,
                                                      std::span<const TextSpan> foreign) const {
  std::vector<bool> begins(256);
  for (const auto& [spelling, id] : controls_) begins[static_cast<unsigned char>(spelling[0])] = true;
  std::vector<int32_t> ids;
  size_t done = 0;  // everything before is encoded
  size_t next = 0;  // the first foreign span that ends after `at`
  for (size_t at = 0; at < text.size();) {
    while (next < foreign.size() && foreign[next].end <= at) ++next;
    const size_t limit = next < foreign.size() ? foreign[next].begin : text.size();
    if (limit <= at) {
      at = foreign[next].end;
      continue;
    }
    const bool possible = begins[static_cast<unsigned char>(text[at])];
    const std::optional<int32_t> id = possible ? control_at(text, at, limit) : std::nullopt;
    if (!id) {
      ++at;
      continue;
    }
    TERCET_TRY_VOID(append_text(text.substr(done, at - done), ids));
    ids.push_back(*id);
    at += token_bytes(*id).size();
    done = at;
  }
  TERCET_TRY_VOID(append_text(text.substr(done), ids));
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.add(id);
  return text + detokenizer.finish();
}

std::string Detokenizer::add(int32_t id) {
  std::string text;
  if (!skip_ || !tokenizer_->is_special(id)) utf8_.add(tokenizer_->token_bytes(id), text);
  return text;
}

std::string Detokenizer::finish() {
  std::string text;
  utf8_.finish(text);
  return text;
}

}  // namespace tercet
