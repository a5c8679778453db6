#include <exception>
#include <string>
#include <vector>

#include "apps/command.h"

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = tercet::run_command(tercet::commands(), arguments, tercet::Console::detect());
  // A full disk must not look like success.
  if (const auto rest = tercet::print_piece(""); !rest) {
    tercet::print_error(rest.error().message);
    return 1;
  }
  return code;
} catch (const std::exception& error) {  // no memory, at most
  tercet::print_error(error.what());
  return 1;
}
