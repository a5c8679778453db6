#include "apps/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "apps/nearest.h"
#include "apps/version.h"

namespace tercet {
namespace {

std::string help_text(std::span<const Command> commands) {
  std::string text =
      "tercet: Hy3 language models, with the same bits on every machine\n\n"
      "Usage: tercet COMMAND [OPTIONS]\n\nCommands:\n";
  for (const Command& command : commands) text += fmt::format("  {:<16}{}\n", command.name, command.summary);
  text +=
      "\n`tercet COMMAND --help` explains a command's options, with examples. `tercet --version` prints the "
      "versions\n"
      "of the program, its arithmetic and its compiler.\n";
  return text;
}

/// How many of the arguments name the command: 2, 1, or 0 where they don't.
size_t words_that_name(const Command& command, Arguments arguments) {
  if (!arguments.empty() && arguments[0] == command.name) return 1;
  return arguments.size() > 1 && arguments[0] + " " + arguments[1] == command.name ? 2 : 0;
}

int unknown_command(std::span<const Command> commands, Arguments arguments) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.emplace_back(command.name);
  std::string suggestion = nearest(arguments[0], names);
  if (arguments.size() > 1 && suggestion.empty())
    suggestion = nearest(arguments[0] + " " + arguments[1], names);
  const bool option = arguments[0].starts_with('-');
  print_error(fmt::format("{} '{}'{} (tercet --help lists the commands)",
                          option ? "expected a command before" : "unknown command", arguments[0],
                          suggestion.empty() ? "" : fmt::format("; did you mean {}?", suggestion)));
  return 2;
}

}  // namespace

int run_command(std::span<const Command> commands, Arguments arguments, const Console& console) {
  if (arguments.empty()) {
    tell(help_text(commands));
    return 2;
  }
  if (arguments[0] == "--version") {
    fmt::print("{}", version_text());
    return 0;
  }
  if (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    if (arguments.size() == 1) {
      fmt::print("{}", help_text(commands));
      return 0;
    }
    std::vector<std::string> asked(arguments.begin() + 1, arguments.end());
    asked.emplace_back("--help");
    return run_command(commands, asked, console);
  }
  // Two words before one, so that "score compare" is not "score" with an argument.
  for (const size_t words : {2, 1}) {
    for (const Command& command : commands) {
      if (words_that_name(command, arguments) != words) continue;
      const Result<int> code = command.body(arguments.subspan(words), console);
      if (code) return *code;
      print_error(code.error().message);
      return 1;
    }
  }
  return unknown_command(commands, arguments);
}

void print_error(std::string_view message) {
  std::string line(message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  tell(fmt::format("tercet: error: {}\n", line));
}

}  // namespace tercet
