// POST /v1/responses: OpenAI's protocol of items, without a store.
#pragma once

#include <memory>

#include "serve/http.h"
#include "serve/service.h"

namespace tercet {

void answer_responses(const Service& service, const HttpRequest& request,
                      const std::shared_ptr<Exchange>& exchange);

}  // namespace tercet
