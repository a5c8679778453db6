// POST /v1/chat/completions.
#pragma once

#include <memory>

#include "serve/http.h"
#include "serve/service.h"

namespace tercet {

void answer_chat_completions(const Service& service, const HttpRequest& request,
                             const std::shared_ptr<Exchange>& exchange);

}  // namespace tercet
