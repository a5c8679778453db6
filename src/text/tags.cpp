#include "text/tags.h"

#include <algorithm>
#include <map>

namespace tercet {
namespace {

constexpr std::array<std::string_view, kTagCount> kBareNames = {"think",
                                                                "/think",
                                                                "tool_calls",
                                                                "/tool_calls",
                                                                "tool_call",
                                                                "/tool_call",
                                                                "end_of_tool_call",
                                                                "tool_sep",
                                                                "arg_key",
                                                                "/arg_key",
                                                                "arg_value",
                                                                "/arg_value",
                                                                "tool_responses",
                                                                "/tool_responses",
                                                                "tool_response",
                                                                "/tool_response",
                                                                "｜hy_begin_of_sentence｜",
                                                                "｜hy_User｜",
                                                                "｜hy_Assistant｜",
                                                                "｜hy_eos｜",
                                                                "｜reasoning_mode｜"};

/// A bare name around the place of the suffix: "<think" and ">", "<｜hy_User" and "｜>".
struct Spelling {
  std::string head, tail;
};

Spelling spelling_of(std::string_view bare) {
  const std::string_view bar = bare.ends_with("｜") ? "｜" : "";
  return {fmt::format("<{}", bare.substr(0, bare.size() - bar.size())), fmt::format("{}>", bar)};
}

/// The suffix in `token` if it spells this tag.
std::optional<std::string_view> suffix_in(std::string_view token, const Spelling& tag) {
  if (!token.starts_with(tag.head) || !token.ends_with(tag.tail)) return std::nullopt;
  if (token.size() < tag.head.size() + tag.tail.size()) return std::nullopt;
  const auto suffix = token.substr(tag.head.size(), token.size() - tag.head.size() - tag.tail.size());
  if (!suffix.empty() && !suffix.starts_with(':')) return std::nullopt;
  return suffix;
}

std::string likeliest_suffix(const Tokenizer& tokenizer) {
  std::array<Spelling, kTagCount> spellings;
  std::transform(kBareNames.begin(), kBareNames.end(), spellings.begin(), spelling_of);
  std::map<std::string, int> votes;
  for (const int32_t id : tokenizer.controls()) {
    for (const Spelling& spelling : spellings) {
      if (const auto suffix = suffix_in(tokenizer.token_bytes(id), spelling)) ++votes[std::string(*suffix)];
    }
  }
  std::string best;
  int most = 0;
  for (const auto& [suffix, count] : votes) {
    if (count < most) continue;
    best = suffix;
    most = count;
  }
  return best;
}

}  // namespace

Result<Tags> Tags::read(const Tokenizer& tokenizer) {
  Tags tags;
  tags.suffix_ = likeliest_suffix(tokenizer);
  std::string missing;
  for (size_t i = 0; i < kTagCount; ++i) {
    const Spelling parts = spelling_of(kBareNames[i]);
    const std::string spelling = parts.head + tags.suffix_ + parts.tail;
    const auto id = tokenizer.control(spelling);
    tags.ids_[i] = id.value_or(-1);
    if (id || static_cast<Tag>(i) == Tag::end_of_tool_call) continue;
    missing += (missing.empty() ? "" : ", ") + spelling;
  }
  if (!missing.empty()) return fail("{}: the added tokens lack {}", tokenizer.origin(), missing);
  return tags;
}

std::optional<Tag> Tags::tag(int32_t id) const {
  for (size_t i = 0; i < kTagCount; ++i) {
    if (id >= 0 && ids_[i] == id) return static_cast<Tag>(i);
  }
  return std::nullopt;
}

std::string_view Tags::bare_name(Tag tag) { return kBareNames[static_cast<size_t>(tag)]; }

std::optional<Tag> Tags::by_bare_name(std::string_view name) {
  for (size_t i = 0; i < kTagCount; ++i) {
    if (kBareNames[i] == name) return static_cast<Tag>(i);
  }
  return std::nullopt;
}

bool ends_in_thought(std::span<const int32_t> prompt, const Tags& tags) {
  for (size_t i = prompt.size(); i-- > 0;) {
    const int32_t id = prompt[i];
    if (id == tags.id(Tag::think)) return true;
    if (id == tags.id(Tag::end_think) || id == tags.id(Tag::assistant)) return false;
  }
  return false;
}

}  // namespace tercet
