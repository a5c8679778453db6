// Invariants of our own code. A check that fails is a bug: the program stops with the place and both
// operands, in every build type. What a caller or a file can cause is an Error (error.h), never a check.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace tercet::detail {

template <class A, class B>
[[noreturn]] void check_failed(const char* file, int line, const char* text, const A& a, const B& b) {
  fmt::print(stderr, "{}:{}: check failed: {} ({} against {})\n", file, line, text, a, b);
  std::abort();
}

[[noreturn]] inline void check_failed(const char* file, int line, const char* text) {
  fmt::print(stderr, "{}:{}: check failed: {}\n", file, line, text);
  std::abort();
}

}  // namespace tercet::detail

#define TERCET_CHECK(condition) \
  ((condition) ? void() : ::tercet::detail::check_failed(__FILE__, __LINE__, #condition))

#define TERCET_CHECK_OP_(a, op, b)                                                               \
  do {                                                                                           \
    const auto check_a_ = (a);                                                                   \
    const auto check_b_ = (b);                                                                   \
    if (!(check_a_ op check_b_))                                                                 \
      ::tercet::detail::check_failed(__FILE__, __LINE__, #a " " #op " " #b, check_a_, check_b_); \
  } while (false)

#define TERCET_CHECK_EQ(a, b) TERCET_CHECK_OP_(a, ==, b)
#define TERCET_CHECK_NE(a, b) TERCET_CHECK_OP_(a, !=, b)
#define TERCET_CHECK_LT(a, b) TERCET_CHECK_OP_(a, <, b)
#define TERCET_CHECK_LE(a, b) TERCET_CHECK_OP_(a, <=, b)
#define TERCET_CHECK_GE(a, b) TERCET_CHECK_OP_(a, >=, b)
