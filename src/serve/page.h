// The chat page: page.html, built in.
#pragma once

#include <string_view>

namespace tercet {

extern const std::string_view kPage;

}  // namespace tercet
