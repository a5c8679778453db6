#include "text/chat_template.h"

#include "base/check.h"
#include "text/bridge.h"
#include "text/messages.h"
#include "text/read_file.h"

namespace tercet {
namespace {

/// Writes values in the form that bridge/src/value.rs reads.
class ContextWriter {
 public:
  /// Strings are from the checkpoint ('s') or from the request ('m').
  explicit ContextWriter(std::string& out) : out_(out) {}

  void count(char kind, size_t count) {
    out_ += kind;
    length(count);
  }
  void text(char kind, std::string_view text) {
    count(kind, text.size());
    out_ += text;
  }
  void member(const std::string& key, const Json& item, char strings) {
    text(strings, key);
    value(item, strings);
  }
  void value(const Json& value, char strings) {
    if (is_number(value)) {
      text('#', number_spelling(value));
    } else if (value.is_string()) {
      text(strings, value.get_ref<const std::string&>());
    } else if (value.is_array()) {
      count('[', value.size());
      for (const Json& item : value) this->value(item, strings);
    } else if (value.is_object()) {
      count('{', value.size());
      for (const auto& [key, item] : value.get_ref<const Json::object_t&>()) member(key, item, strings);
    } else {
      out_ += value.is_null() ? 'n' : value.get<bool>() ? 't' : 'f';
    }
  }

 private:
  void length(size_t size) {
    TERCET_CHECK_LE(size, size_t{UINT32_MAX});
    const auto word = static_cast<uint32_t>(size);
    out_.append(reinterpret_cast<const char*>(&word), sizeof word);
  }

  std::string& out_;
};

Result<std::string> named_template(const Json& config, const std::string& path) {
  const Json* value = find_member(config, "chat_template");
  if (value == nullptr)
    return fail("{}: no chat_template.jinja beside it, and no `chat_template` in it", path);
  if (value->is_array()) {
    for (const Json& entry : *value) {
      const Json* name = find_member(entry, "name");
      if (name != nullptr && *name == "default") value = find_member(entry, "template");
      if (value == nullptr || value->is_string()) break;
    }
  }
  if (value == nullptr || !value->is_string()) {
    return fail("{}: `chat_template` is neither a string nor a list with a `default`", path);
  }
  return value->get<std::string>();
}

/// bos_token and its like, whether plain strings or added tokens with their `content`.
Json special_tokens_of(const Json& config) {
  Json tokens = Json::object();
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const Json* token = find_member(config, name);
    if (token != nullptr && token->is_object()) token = find_member(*token, "content");
    if (token != nullptr && token->is_string()) tokens[name] = *token;
  }
  return tokens;
}

std::vector<TextSpan> to_spans(const std::vector<uint32_t>& words) {
  std::vector<TextSpan> spans;
  for (size_t i = 0; i + 1 < words.size(); i += 2) spans.push_back({words[i], words[i + 1]});
  return spans;
}

}  // namespace

void ChatTemplate::Free::operator()(TercetTemplate* chat_template) const {
  tercet_template_free(chat_template);
}

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& model_dir) {
  const std::filesystem::path config_path = model_dir / "tokenizer_config.json";
  Json config = Json::object();
  if (std::filesystem::exists(config_path)) {
    TERCET_TRY(const std::string text, read_file(config_path));
    Result<Json> parsed = parse_json(text);
    if (!parsed) return fail("{}: {}", config_path.string(), parsed.error().message);
    config = std::move(*parsed);
  }
  std::filesystem::path path = model_dir / "chat_template.jinja";
  std::string source;
  if (std::filesystem::exists(path)) {
    TERCET_TRY(source, read_file(path));
  } else {
    path = config_path;
    TERCET_TRY(source, named_template(config, path.string()));
  }
  ChatTemplate chat_template;
  TercetTemplate* bridge = nullptr;
  bridge::Buffer error;
  if (!tercet_template_new(bridge::bytes(source), source.size(), &bridge, error.out())) {
    return fail("{}: {}", path.string(), error.text());
  }
  chat_template.bridge_.reset(bridge);
  chat_template.special_tokens_ = special_tokens_of(config);
  return chat_template;
}

Result<Prompt> ChatTemplate::render(const Json& request, const Tokenizer& tokenizer, std::time_t now) const {
  TERCET_TRY(const Json variables, template_variables(request));
  size_t own = 0;
  for (const auto& [name, token] : special_tokens_.items()) own += variables.contains(name) ? 0 : 1;

  std::string context;
  ContextWriter writer(context);
  writer.count('{', variables.size() + own);
  for (const auto& [name, value] : variables.items()) writer.member(name, value, 'm');
  for (const auto& [name, token] : special_tokens_.items()) {
    if (!variables.contains(name)) writer.member(name, token, 's');
  }

  const std::string& marks = tokenizer.control_marks();
  bridge::Buffer text, spans, error;
  if (!tercet_template_render(bridge_.get(), bridge::bytes(context), context.size(), bridge::bytes(marks),
                              marks.size(), now, text.out(), spans.out(), error.out())) {
    return fail("{}", error.text());
  }
  Prompt prompt;
  prompt.text = text.text();
  TERCET_TRY(prompt.tokens, tokenizer.encode_prompt(prompt.text, to_spans(spans.words())));
  return prompt;
}

}  // namespace tercet
