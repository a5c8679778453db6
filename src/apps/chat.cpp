#include "apps/chat.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <optional>

#include "apps/arguments.h"
#include "apps/conversation.h"
#include "text/read_file.h"

namespace tercet {
namespace {

struct ChatArguments {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system, effort, prompt, file, tools;
};

constexpr const char* kCommands =
    "  /reset          forget the conversation\n"
    "  /system TEXT    set the system message (empty: none) and forget the conversation\n"
    "  /effort LEVEL   how long to think: none, low, high\n"
    "  /stats          tokens and rates of the last answer, state of the cache\n"
    "  /help           this list\n"
    "  /exit           leave (so does Ctrl-D)\n"
    "A line that ends in \\ goes on in the next. Ctrl-C stops the answer.\n";

/// Prints an answer as it comes: its text on standard output, its thought on standard error, calls a line
/// each.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(const Console& console) : console_(console) {}

  Result<void> print(const AnswerEvent& event) {
    switch (event.kind) {
      case AnswerEvent::Kind::reasoning:
        return thought(event.text);
      case AnswerEvent::Kind::content:
        return text(event.text);
      case AnswerEvent::Kind::call_begin:
        return text(fmt::format("{}{}(", at_line_start_ ? "" : "\n", event.text));
      case AnswerEvent::Kind::arguments:
        return text(event.text);
      case AnswerEvent::Kind::call_end:
        return text(")\n");
    }
    return {};
  }
  Result<void> end() {
    end_thought();
    return at_line_start_ ? Result<void>() : text("\n");
  }

 private:
  Result<void> thought(const std::string& text) {
    tell(styled(text, Style::dim, console_.colours && console_.error_is_terminal));
    in_thought_ = true;
    return {};
  }
  void end_thought() {
    if (in_thought_) tell("\n");
    in_thought_ = false;
  }
  Result<void> text(const std::string& text) {
    end_thought();
    if (!text.empty()) at_line_start_ = text.back() == '\n';
    return print_piece(text);
  }

  const Console& console_;
  bool at_line_start_ = true;
  bool in_thought_ = false;
};

class Chat {
 public:
  Chat(Session& session, SamplingParams params, Interrupts& interrupts, const Console& console)
      : session_(session), params_(std::move(params)), interrupts_(interrupts), console_(console) {}

  void set_tools(Json tools) { tools_ = std::move(tools); }

  Result<void> set_effort(const std::string& effort) {
    const std::string before = std::exchange(effort_, effort);
    const Json probe{{"role", "user"}, {"content", ""}};
    const TextModel& text = session_.text();
    const auto prompt = text.chat_template.render(request(Json::array({probe})), text.tokenizer, 0);
    if (!prompt) {
      effort_ = before;
      return tl::unexpected(prompt.error());
    }
    return {};
  }

  void set_system(const std::string& system) {
    system_ = system;
    reset();
  }

  void reset() {
    messages_ = Json::array();
    waiting_calls_ = 0;
  }

  /// A message of the user, or the result of a call that waits for one. False: an interrupt ended the answer.
  Result<void> say(const std::string& line) {
    if (waiting_calls_ > 0) {
      const Json& calls = messages_[last_answer_]["tool_calls"];
      const Json& call = calls[calls.size() - waiting_calls_];
      messages_.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", line}});
      if (--waiting_calls_ > 0) return {};
    } else {
      messages_.push_back({{"role", "user"}, {"content", line}});
    }
    AnswerPrinter printer(console_);
    const auto reply = answer_chat(
        session_, request(messages_), params_, 0,
        [&](const AnswerEvent& event) { return printer.print(event); }, [](const TokenInfo&) {}, &interrupts_,
        console_);
    Result<void> ended = printer.end();
    if (!reply) {
      messages_.erase(messages_.size() - 1);  // so that the next message can do better
      return tl::unexpected(reply.error());
    }
    last_answer_ = messages_.size();
    waiting_calls_ = reply->answer.calls.size();
    messages_.push_back(message_of(reply->answer));
    last_ = reply->outcome;
    if (reply->outcome.finish.reason == FinishReason::length)
      note("the answer was cut: no room for more tokens");
    return ended;
  }

  /// The name of the function whose result is the next line; empty where a message is.
  std::string awaits() const {
    if (waiting_calls_ == 0) return "";
    const Json& calls = messages_[last_answer_]["tool_calls"];
    return calls[calls.size() - waiting_calls_]["function"]["name"].get<std::string>();
  }

  void print_stats() const {
    if (!last_) return note("no answer yet");
    const Finish& f = last_->finish;
    note(fmt::format(
        "prompt {} tokens ({} from the cache) at {:.0f} a second, answer {} tokens at {:.1f} a second",
        f.prompt_tokens, f.cached_tokens, last_->prompt_rate(), f.answer_tokens, last_->answer_rate()));
    const EngineStats stats = session_.engine().stats();
    note(fmt::format(
        "context {} tokens; cache {} pages of 64: {} free, {} cached, {} in use; seed of the last answer {}",
        session_.engine().context(), stats.pages, stats.pages_free, stats.pages_cached, stats.pages_active,
        last_->seed));
  }

  void note(const std::string& text) const {
    tell(styled(text, Style::dim, console_.colours && console_.error_is_terminal) + "\n");
  }

 private:
  Json request(const Json& messages) const {
    Json all = Json::array();
    if (!system_.empty()) all.push_back({{"role", "system"}, {"content", system_}});
    for (const Json& message : messages) all.push_back(message);
    Json out{{"messages", all}};
    if (!tools_.is_null()) out["tools"] = tools_;
    if (!effort_.empty()) out["reasoning_effort"] = effort_;
    return out;
  }

  Session& session_;
  SamplingParams params_;
  Interrupts& interrupts_;
  const Console& console_;
  Json messages_ = Json::array();
  Json tools_;
  std::string system_, effort_;
  size_t last_answer_ = 0;    // index in messages_
  size_t waiting_calls_ = 0;  // of the last answer: those whose results have not come
  std::optional<Outcome> last_;
};

/// The next line of standard input, continued after a backslash; nothing at its end or at Ctrl-C.
std::optional<std::string> read_line(const Console& console, const std::string& prompt) {
  std::string text, line;
  const bool ask = console.input_is_terminal && console.error_is_terminal;
  if (ask) tell(prompt);
  while (std::getline(std::cin, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.back() != '\\') return text + line;
    line.back() = '\n';
    text += line;
    if (ask) tell("… ");
  }
  if (!text.empty()) return text;
  return std::nullopt;
}

/// False where the line is no command, or an error of the command.
Result<bool> run_command_line(Chat& chat, const std::string& line) {
  if (line.empty() || line[0] != '/') return false;
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (name == "/reset") {
    chat.reset();
  } else if (name == "/system") {
    chat.set_system(rest);
  } else if (name == "/effort") {
    TERCET_TRY_VOID(chat.set_effort(rest));
  } else if (name == "/stats") {
    chat.print_stats();
  } else if (name == "/help") {
    tell(kCommands);
  } else {
    return fail("unknown command {}; /help lists them", name);
  }
  return true;
}

/// Until the input ends. A line that fails ends a conversation that nobody watches.
Result<int> converse(Chat& chat, Interrupts& interrupts, const Console& console) {
  const bool colours = console.colours && console.error_is_terminal;
  for (;;) {
    const std::string call = chat.awaits();
    const std::string prompt = call.empty() ? "> " : fmt::format("result of {}> ", call);
    const auto line = read_line(console, styled(prompt, Style::bold, colours));
    if (!line || *line == "/exit" || *line == "/quit") break;
    if (line->empty() && call.empty()) continue;
    Result<void> done;
    const auto command = run_command_line(chat, *line);
    if (!command) done = tl::unexpected(command.error());
    if (command && !*command) done = chat.say(*line);
    interrupts.clear();
    if (done) continue;
    if (!console.input_is_terminal) return tl::unexpected(done.error());
    print_error(done.error().message);
  }
  if (console.input_is_terminal) tell("\n");
  return interrupts.requested() ? 130 : 0;
}

Result<Json> read_tools(const std::string& path) {
  TERCET_TRY(const std::string text, read_file(path));
  const auto tools = parse_json(text);
  if (!tools) return fail("{}: {}", path, tools.error().message);
  if (!tools->is_array()) return fail("{}: expected a JSON list of tools, found {}", path, type_name(*tools));
  return *tools;
}

}  // namespace

Result<int> run_chat(Arguments given, const Console& console) {
  ChatArguments arguments;
  CommandLine app(
      "tercet chat",
      "A conversation with a model. On a terminal it asks for messages; otherwise it answers each line of "
      "standard input. Answers go to standard output, thoughts and everything else to standard error.",
      "tercet chat models/hy3-tiny\n"
      "tercet chat models/hy3-tiny --temp 0 --effort low -p 'What is 27 + 58?'\n"
      "echo 'Define river.' | tercet chat models/hy3-tiny --temp 0");
  add_model_options(app, arguments.model);
  add_sampling_options(app, arguments.sampling);
  app.add_option("--sys,--system,--system-prompt", arguments.system, "The system message")
      ->option_text("TEXT");
  app.add_option("--effort,--reasoning-effort", arguments.effort,
                 "How long to think: none, low, high; minimal is low, medium and more are high")
      ->option_text("LEVEL");
  CLI::Option* const prompt = app.add_option("-p,--prompt", arguments.prompt, "Answer this message and end");
  prompt->option_text("TEXT");
  app.add_option("-f,--file", arguments.file, "Answer the message in this file and end")
      ->option_text("FILE")
      ->excludes(prompt);
  app.add_option(
         "--tools", arguments.tools,
         "Tools that the model may call: a JSON list as in OpenAI's requests. The lines after a call are its "
         "results")
      ->option_text("FILE");
  if (const auto code = parse_arguments(app, given)) return *code;

  Json tools;
  if (!arguments.tools.empty()) {
    TERCET_TRY(tools, read_tools(arguments.tools));
  }
  if (!arguments.file.empty()) {
    TERCET_TRY(arguments.prompt, read_file(arguments.file));
  }
  TERCET_TRY(Session session, Session::open(arguments.model, console));
  TERCET_TRY(const SamplingParams params, session.text().sampling(arguments.sampling));
  Interrupts interrupts;
  Chat chat(session, params, interrupts, console);
  chat.set_tools(tools);
  chat.set_system(arguments.system);
  if (!arguments.effort.empty()) TERCET_TRY_VOID(chat.set_effort(arguments.effort));
  if (!arguments.prompt.empty()) {
    TERCET_TRY_VOID(chat.say(arguments.prompt));
    return interrupts.requested() ? 130 : 0;
  }
  if (console.input_is_terminal) chat.note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves");
  return converse(chat, interrupts, console);
}

}  // namespace tercet
