// Compiles any tools and formats and follows the grammar by chance: it must not crash, hang or find itself
// without a token that may come next.
//
// Input: a chat request as JSON up to a zero byte (or to the end); then a byte a token, which chooses one of
// those that are allowed.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/answer_constraint.h"

namespace tercet {
namespace {

struct Model {
  Tokenizer tokenizer = Tokenizer::load(TERCET_SOURCE_DIR "/models/hy3-tiny").value();
  Tags tags = Tags::read(tokenizer).value();
  int32_t eos = tags.id(Tag::eos);
  AnswerGrammars grammars =
      AnswerGrammars::create(tokenizer, tags, {&eos, 1}, tokenizer.vocabulary_size()).value();
};

const Model& model() {
  static const Model model;
  return model;
}

/// The allowed token that `choice` names, counted from `choice` · 16 on, or −1.
int32_t choose(const std::vector<uint32_t>& mask, unsigned char choice) {
  const int32_t size = model().tokenizer.vocabulary_size();
  for (int32_t i = 0; i < size; ++i) {
    const int32_t token = (i + 16 * choice) % size;
    if (mask.empty() || ((mask[static_cast<size_t>(token) / 32] >> (token % 32)) & 1U) != 0) return token;
  }
  return -1;
}

void run(std::string_view input) {
  const size_t zero = std::min(input.find('\0'), input.size());
  const Result<Json> request = parse_json(input.substr(0, zero));
  if (!request || !request->is_object()) return;
  const Result<AnswerForm> form = AnswerForm::read(*request);
  if (!form) return;
  Result<AnswerConstraint> constraint = model().grammars.compile(*form, false);
  if (!constraint) {
    TERCET_CHECK(!constraint.error().message.empty());
    return;
  }
  for (const char choice : input.substr(std::min(zero + 1, input.size()))) {
    const auto mask = constraint->mask();
    if (!mask) return;  // too ambiguous a grammar
    const int32_t token = choose(*mask, static_cast<unsigned char>(choice));
    TERCET_CHECK(token >= 0);
    TERCET_CHECK(constraint->accept(token).has_value());
    if (token == model().eos) return;
  }
}

}  // namespace
}  // namespace tercet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tercet::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
