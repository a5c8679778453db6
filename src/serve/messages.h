// POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol.
#pragma once

#include <memory>

#include "serve/http.h"
#include "serve/service.h"

namespace tercet {

void answer_messages(const Service& service, const HttpRequest& request,
                     const std::shared_ptr<Exchange>& exchange);
void answer_count_tokens(const Service& service, const HttpRequest& request,
                         const std::shared_ptr<Exchange>& exchange);

}  // namespace tercet
