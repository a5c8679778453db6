// A checkpoint's chat template: from an OpenAI-shaped request to the prompt's text and tokens.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/json.h"
#include "text/tokenizer.h"

struct TercetTemplate;

namespace tercet {

struct Prompt {
  std::string text;  // what transformers' apply_chat_template renders, byte for byte
  std::vector<int32_t> tokens;
};

/// A Jinja template in the environment of transformers. Immutable: threads may share it.
///
/// Only the template writes control tokens. A prompt is rendered as it is, and again with the characters that
/// control tokens are spelled with (Tokenizer::control_marks()) replaced by stand-ins wherever a string of
/// the request has them. Lengths, slices, strips and joins work alike on both, and so the second text tells
/// which brackets, bars, slashes and colons of the first came from the request; a control token needs all of
/// its own from the template. Where the template looks for such a character in a message ("'</think>' in
/// m.content"), the two differ otherwise, too; then a third rendering compares the strings as they are and
/// traces them through the engine's automatic escaping. (bridge/src/provenance.rs and tracing.rs have the
/// details.)
///
/// Limits. A prompt that can be traced in neither way is refused; the published templates have none. What
/// tracing loses sight of becomes text, never the other way round. A template that would put a word of a
/// message between a `<` and a `>` of its own could be made to write a tag whose name is letters only, which
/// a vocabulary without suffix has (`<think>`). Numbers with a spelling of their own (1.50, 1e3) print,
/// compare and serialise, but templates cannot calculate with them.
class ChatTemplate {
 public:
  /// chat_template.jinja in `model_dir`, or else `chat_template` of tokenizer_config.json (a string, or a
  /// list of named ones, of which "default" is taken); that file's special tokens are the template's
  /// variables. Fails where there is no template or it does not compile.
  static Result<ChatTemplate> load(const std::filesystem::path& model_dir);

  /// The prompt for a request (see template_variables() for what is read and refused). `now` is what
  /// strftime_now shows. Fails on a bad request, and with the template's own words where it refuses one.
  Result<Prompt> render(const Json& request, const Tokenizer& tokenizer, std::time_t now) const;

 private:
  struct Free {
    void operator()(TercetTemplate* chat_template) const;
  };

  std::unique_ptr<TercetTemplate, Free> bridge_;
  Json special_tokens_ = Json::object();  // bos_token: "<…>" …
};

}  // namespace tercet
