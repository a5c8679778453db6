// Numbers as people type them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tercet {

/// A whole number, or a decimal fraction with a suffix that makes it one. k, M, G, T (also Ki, KiB, …) stand
/// for powers of 1024, kB, MB, GB, TB for powers of 1000, B for 1; upper and lower case alike: 32k = 32768,
/// 1.5M = 1572864, 8GiB, 500MB.
Result<int64_t> parse_whole(std::string_view text);

/// A finite decimal number: 0.7, -1, 1e-3.
Result<double> parse_real(std::string_view text);

/// As people write sizes: "1.5 GiB".
std::string readable(int64_t bytes);

}  // namespace tercet
