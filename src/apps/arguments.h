// From a command's arguments to its options, through CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/command.h"
#include "base/error.h"

namespace tercet {

/// A command's options, empty but for --help, and its help in our layout. `name` is what a person types
/// ("tercet chat"); `examples` are lines of shell.
class CommandLine : public CLI::App {
 public:
  CommandLine(std::string name, std::string_view description, std::string examples);
};

/// Turns "32k" into "32768" (numbers.h) and refuses what is not a whole number of [low, high]. For
/// CLI::Option::transform.
CLI::Validator whole_number(int64_t low, int64_t high);
/// Refuses what is not a number of [low, high], or of (low, high] where `above_low`.
CLI::Validator real_number(double low, double high, bool above_low = false);
/// Refuses what is none of the names, with the nearest of them.
CLI::Validator one_of(std::vector<std::string> names);

/// Fills the options that `app` declares. Accepts more spellings than CLI11: one dash before a long name
/// (-tp, -pp), underscores within one (--max_model_len). false: help was asked for, and nothing is filled in.
/// Errors name the option; for an unknown one, the nearest that exists.
Result<bool> fill_options(CLI::App& app, Arguments arguments);

/// fill_options for a command named by app.get_name(). nullopt: go on. Otherwise the command ends with this
/// exit code: 0 when its help was printed, 2 when a usage error was.
std::optional<int> parse_arguments(CLI::App& app, Arguments arguments);

}  // namespace tercet
