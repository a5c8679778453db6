// Errors that a caller, a file or the environment can cause are values with context. (Broken invariants
// of our own stop the program: check.h.)
#pragma once

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace tercet {

/// One error for a person to read: what is wrong, where, what was expected and what was found.
struct Error {
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;

/// `return fail("{}: expected {} tensors, found {}", path, want, have);`
template <class... Args>
tl::unexpected<Error> fail(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace tercet

#define TERCET_CONCAT_(a, b) a##b
#define TERCET_CONCAT(a, b) TERCET_CONCAT_(a, b)
#define TERCET_TRY_(tmp, declaration, expression)          \
  auto tmp = (expression);                                 \
  if (!tmp) return tl::unexpected(std::move(tmp).error()); \
  declaration = std::move(*tmp)

/// `TERCET_TRY(auto file, open(path));` binds the value or returns the error to the caller.
#define TERCET_TRY(declaration, expression) \
  TERCET_TRY_(TERCET_CONCAT(try_, __LINE__), declaration, expression)

/// The same for Result<void>.
#define TERCET_TRY_VOID(expression) \
  if (auto status = (expression); !status) return tl::unexpected(std::move(status).error())
