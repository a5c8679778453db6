// The control tokens of Hy3's wire format, found in a vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"

namespace tercet {

enum class Tag : uint8_t {
  think,
  end_think,
  tool_calls,
  end_tool_calls,
  tool_call,
  end_tool_call,
  end_of_tool_call,  // another closer of a call, which many vocabularies lack
  tool_sep,
  arg_key,
  end_arg_key,
  arg_value,
  end_arg_value,
  tool_responses,
  end_tool_responses,
  tool_response,
  end_tool_response,
  begin_of_sentence,
  user,
  assistant,
  eos,
  reasoning_mode,
};
inline constexpr size_t kTagCount = 21;

/// Immutable after reading.
class Tags {
 public:
  /// The suffix is the one under which the vocabulary has most tags (the longer one of two with equally
  /// many). Fails with a list of the tags that are missing.
  static Result<Tags> read(const Tokenizer& tokenizer);

  /// ":opensource", or nothing.
  const std::string& suffix() const { return suffix_; }
  /// -1 for end_of_tool_call where the vocabulary lacks it.
  int32_t id(Tag tag) const { return ids_[static_cast<size_t>(tag)]; }
  std::optional<Tag> tag(int32_t id) const;

  /// "tool_call" and "/tool_call", "｜hy_User｜" …
  static std::string_view bare_name(Tag tag);
  static std::optional<Tag> by_bare_name(std::string_view name);

 private:
  std::string suffix_;
  std::array<int32_t, kTagCount> ids_ = {};
};

/// Whether the answer to this prompt begins inside a thought: its last think tag after the last assistant
/// token opens one.
bool ends_in_thought(std::span<const int32_t> prompt, const Tags& tags);

}  // namespace tercet
