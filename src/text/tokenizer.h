// Text to token ids and back, as Hugging Face's tokenizers does it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

struct TercetTokenizer;

namespace tercet {

/// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin;
  size_t end;
};

/// A byte-level BPE tokenizer. Immutable: threads may share it.
///
/// Control tokens are the added tokens of tokenizer.json. Text never becomes one by spelling it:
/// encode_text() knows none, and encode_prompt() takes them only where the caller vouches for the spelling.
/// (An added token of letters, digits and white space alone is no control token, since nothing could tell its
/// spelling from prose; it is never produced.)
class Tokenizer {
 public:
  /// Reads tokenizer.json in `model_dir`. Fails on a file that is missing, is no tokenizer, or is not
  /// byte-level BPE.
  static Result<Tokenizer> load(const std::filesystem::path& model_dir);

  /// The largest id plus one.
  int32_t vocabulary_size() const { return static_cast<int32_t>(flags_.size()); }
  /// The bytes a token stands for; empty for an id that no token has, negative ones included.
  std::string_view token_bytes(int32_t id) const;
  bool is_control(int32_t id) const { return flag(id, kControl); }
  /// Added tokens that tokenizer.json calls special: decoding can leave them out.
  bool is_special(int32_t id) const { return flag(id, kSpecial); }
  /// The control token of this spelling.
  std::optional<int32_t> control(std::string_view spelling) const;
  /// Every control token's id, ascending.
  std::vector<int32_t> controls() const;
  /// The characters (UTF-8, each once) that give control tokens away: those of their spellings that are
  /// neither ASCII letters, digits, `_`, nor white space. Every control token has one.
  const std::string& control_marks() const { return marks_; }
  /// The file, for messages.
  const std::string& origin() const { return origin_; }

  /// The ids of `text`, all of them text. Bytes that are not UTF-8 become U+FFFD. Fails only where the
  /// regular expressions of the pre-tokeniser give up.
  Result<std::vector<int32_t>> encode_text(std::string_view text) const;

  /// The ids of a prompt whose `foreign` spans (ascending, disjoint) came from messages: the longest control
  /// token at each place is taken, left to right, unless it overlaps a foreign span; what lies between is
  /// text.
  Result<std::vector<int32_t>> encode_prompt(std::string_view text, std::span<const TextSpan> foreign) const;

  /// The Rust side's object, for others that stand on it.
  const TercetTokenizer* bridge() const { return bridge_.get(); }

  /// As Hugging Face's decode: the tokens' bytes as UTF-8, what is none becoming U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

 private:
  static constexpr uint8_t kExists = 1, kControl = 2, kSpecial = 4;  // as in tercet_bridge.h
  struct Free {
    void operator()(const TercetTokenizer* tokenizer) const;
  };

  Tokenizer() = default;
  bool flag(int32_t id, uint8_t bit) const {
    return id >= 0 && id < vocabulary_size() && (flags_[static_cast<size_t>(id)] & bit) != 0;
  }
  Result<void> read_vocabulary();
  void read_controls();
  std::optional<int32_t> control_at(std::string_view text, size_t at, size_t limit) const;
  Result<void> append_text(std::string_view text, std::vector<int32_t>& ids) const;

  std::unique_ptr<const TercetTokenizer, Free> bridge_;
  std::string origin_;
  std::string bytes_;            // of all tokens, by id
  std::vector<uint32_t> begin_;  // [id] to [id + 1] in bytes_
  std::vector<uint8_t> flags_;   // [id]
  std::unordered_map<std::string, int32_t> controls_;
  std::vector<size_t> control_lengths_;  // distinct, longest first
  std::string marks_;
};

/// Decodes token by token. The pieces together are what decode() gives; none has half a character.
class Detokenizer {
 public:
  /// `tokenizer` must outlive this.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(&tokenizer), skip_(skip_special) {}

  /// The text that is certain now; often one token's, sometimes none.
  std::string add(int32_t id);
  /// The stream ends: U+FFFD for an unfinished character.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_;
  Utf8Decoder utf8_;
};

}  // namespace tercet
