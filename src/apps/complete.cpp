#include "apps/complete.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "apps/arguments.h"
#include "apps/conversation.h"
#include "sampling/stop_matcher.h"
#include "text/read_file.h"

namespace tercet {
namespace {

struct CompleteArguments {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt, file;
  int32_t logprobs = -1;  // −1: not wanted
  bool json = false, chat = false;
};

/// What was drawn, for --logprobs and --json.
class TokenLog {
 public:
  explicit TokenLog(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(const TokenInfo& info) { tokens_.push_back(info); }

  /// A line a token: log-probability, id, text, then the most probable ones.
  void print() const {
    for (const TokenInfo& info : tokens_) {
      fmt::print("{:10.6f} {:7} {}", info.logprob, info.token, quoted(info.token));
      for (const TokenLogprob& top : info.top) fmt::print("  {} {:.6f}", quoted(top.token), top.logprob);
      fmt::print("\n");
    }
  }

  Json to_json(bool logprobs) const {
    Json list = Json::array();
    for (const TokenInfo& info : tokens_) {
      if (!logprobs) {
        list.push_back(info.token);
        continue;
      }
      Json top = Json::array();
      for (const TokenLogprob& other : info.top) top.push_back(entry(other.token, other.logprob));
      Json one = entry(info.token, info.logprob);
      one["top_logprobs"] = top;
      list.push_back(one);
    }
    return list;
  }

 private:
  std::string text_of(int32_t token) const { return tokenizer_.decode({&token, 1}, false); }
  std::string quoted(int32_t token) const { return to_json_text(Json(text_of(token))); }
  Json entry(int32_t token, float logprob) const {
    // The shortest text that reads back as this float.
    return {{"token", text_of(token)}, {"id", token}, {"logprob", std::stod(fmt::format("{}", logprob))}};
  }

  const Tokenizer& tokenizer_;
  std::vector<TokenInfo> tokens_;
};

std::string_view reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      break;
  }
  return "error";
}

void print_json(Json body, const Outcome& outcome, const TokenLog& log, int32_t logprobs) {
  const Finish& f = outcome.finish;
  body["finish_reason"] = reason_name(f.reason);
  body[logprobs >= 0 ? "logprobs" : "tokens"] = log.to_json(logprobs >= 0);
  body["usage"] = {{"prompt_tokens", f.prompt_tokens},
                   {"cached_tokens", f.cached_tokens},
                   {"completion_tokens", f.answer_tokens}};
  body["seed"] = outcome.seed;
  body["timings"] = {{"prompt_seconds", outcome.prompt_seconds}, {"answer_seconds", outcome.answer_seconds}};
  fmt::print("{}\n", body.dump(2, ' ', false, Json::error_handler_t::replace));
}

/// Plain text goes on: no template. Control tokens may be spelled in it.
Result<int> complete_text(Session& session, const CompleteArguments& arguments, const SamplingParams& params,
                          Interrupts& interrupts, const Console& console) {
  const Tokenizer& tokenizer = session.text().tokenizer;
  Request request;
  TERCET_TRY(request.prompt, tokenizer.encode_prompt(arguments.prompt, {}));
  request.params = params;
  TokenLog log(tokenizer);
  Detokenizer detokenizer(tokenizer, true);
  StopMatcher stops(params.stop);
  std::string text;
  const bool stream = !arguments.json && arguments.logprobs < 0;
  Result<void> printed;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (stream && printed) printed = print_piece(piece);
  };
  const auto token = [&](const TokenInfo& info) {
    log.add(info);
    emit(stops.add(detokenizer.add(info.token), false));
    return printed && !stops.stopped();
  };
  TERCET_TRY(const Outcome outcome, session.run(std::move(request), token, &interrupts, console));
  if (!stops.stopped()) emit(stops.add(detokenizer.finish(), true));
  TERCET_TRY_VOID(printed);
  if (arguments.json) {
    print_json({{"text", text}}, outcome, log, arguments.logprobs);
  } else if (arguments.logprobs >= 0) {
    log.print();
  } else {
    TERCET_TRY_VOID(print_piece("\n"));
  }
  return outcome.finish.reason == FinishReason::cancelled ? 130 : 0;
}

Result<int> complete_chat(Session& session, const CompleteArguments& arguments, const SamplingParams& params,
                          Interrupts& interrupts, const Console& console) {
  TERCET_TRY(const Json request, parse_json(arguments.prompt));
  TokenLog log(session.text().tokenizer);
  const bool stream = !arguments.json && arguments.logprobs < 0;
  const auto sink = [&](const AnswerEvent& event) {
    const bool shown = stream && event.kind == AnswerEvent::Kind::content;
    return shown ? print_piece(event.text) : Result<void>();
  };
  TERCET_TRY(const Reply reply, answer_chat(
                                    session, request, params, params.top_logprobs, sink,
                                    [&](const TokenInfo& info) { log.add(info); }, &interrupts, console));
  if (arguments.json) {
    print_json({{"message", message_of(reply.answer)}}, reply.outcome, log, arguments.logprobs);
  } else if (arguments.logprobs >= 0) {
    log.print();
  } else {
    for (const Answer::Call& call : reply.answer.calls) fmt::print("\n{}({})", call.name, call.arguments);
    TERCET_TRY_VOID(print_piece("\n"));
  }
  return reply.outcome.finish.reason == FinishReason::cancelled ? 130 : 0;
}

}  // namespace

Result<int> run_complete(Arguments given, const Console& console) {
  CompleteArguments arguments;
  CommandLine app(
      "tercet complete",
      "Text that goes on where the prompt ends, without a template. With --chat the prompt is a chat "
      "request as JSON ({\"messages\": …, \"tools\": …, \"reasoning_effort\": …}) and the answer is "
      "taken apart. Without -p or -f the prompt is standard input.",
      "tercet complete path/to/model --temp 0 -n 20 -p 'A river is'\n"
      "tercet complete models/hy3-tiny --chat --json -f request.json");
  add_model_options(app, arguments.model);
  add_sampling_options(app, arguments.sampling);
  CLI::Option* const prompt = app.add_option("-p,--prompt", arguments.prompt, "The prompt");
  prompt->option_text("TEXT");
  app.add_option("-f,--file", arguments.file, "The prompt is in this file")
      ->option_text("FILE")
      ->excludes(prompt);
  app.add_option("--logprobs,--n-probs", arguments.logprobs,
                 "Print the log-probability of each token, and of the N most probable ones")
      ->transform(whole_number(0, kMaxTopLogprobs))
      ->option_text("N");
  app.add_flag("--chat", arguments.chat, "The prompt is a chat request");
  app.add_flag("--json", arguments.json, "Print one JSON object: text or message, tokens, usage, timings");
  if (const auto code = parse_arguments(app, given)) return *code;

  if (!arguments.file.empty()) {
    TERCET_TRY(arguments.prompt, read_file(arguments.file));
  } else if (arguments.prompt.empty()) {
    arguments.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  TERCET_TRY(Session session, Session::open(arguments.model, console));
  TERCET_TRY(SamplingParams params, session.text().sampling(arguments.sampling));
  params.top_logprobs = std::max(arguments.logprobs, 0);
  Interrupts interrupts;
  return arguments.chat ? complete_chat(session, arguments, params, interrupts, console)
                        : complete_text(session, arguments, params, interrupts, console);
}

}  // namespace tercet
