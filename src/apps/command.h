// The commands of the program, and how one is found.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "apps/console.h"
#include "base/error.h"

namespace tercet {

/// What follows the command's name on the command line.
using Arguments = std::span<const std::string>;

/// The exit code, or what went wrong (printed by the caller; exit code 1).
using CommandBody = Result<int> (*)(Arguments arguments, const Console& console);

struct Command {
  std::string_view name;  // one word, or two ("verify text")
  std::string_view summary;
  CommandBody body;
};

/// Those of this program, in the order of its help.
std::span<const Command> commands();

/// Runs the command that the arguments name with the rest of them, or prints help or version. Returns the
/// exit code: 0, 1 after an error, 2 after a usage error; errors are printed.
int run_command(std::span<const Command> commands, Arguments arguments, const Console& console);

/// Prints `tercet: error: …` on standard error: one line.
void print_error(std::string_view message);

}  // namespace tercet
