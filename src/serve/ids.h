// Names that nobody can guess and nothing else has.
#pragma once

#include <string>
#include <string_view>

namespace tercet {

/// The prefix and 24 random hexadecimal digits.
std::string random_id(std::string_view prefix);

}  // namespace tercet
