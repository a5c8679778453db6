#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "apps/command.h"

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = tercet::run_command(tercet::commands(), arguments, tercet::Console::detect());
  // A full disk must not look like success.
  if (std::fflush(stdout) != 0) {
    tercet::print_error("cannot write to standard output");
    return 1;
  }
  return code;
} catch (const std::exception& error) {  // no memory, at most
  tercet::print_error(error.what());
  return 1;
}
