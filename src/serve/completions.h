// POST /v1/completions: text that goes on where a prompt ends.
#pragma once

#include <memory>

#include "serve/http.h"
#include "serve/service.h"

namespace tercet {

void answer_completions(const Service& service, const HttpRequest& request,
                        const std::shared_ptr<Exchange>& exchange);

}  // namespace tercet
