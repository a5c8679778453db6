// The endpoints beside those that generate: the model, its tokens, its log-probabilities, its state.
#pragma once

#include <memory>

#include "serve/http.h"
#include "serve/service.h"

namespace tercet {

void answer_models(const Service& service, const HttpRequest& request,
                   const std::shared_ptr<Exchange>& exchange);
/// GET /v1/models/NAME
void answer_model(const Service& service, const HttpRequest& request,
                  const std::shared_ptr<Exchange>& exchange);
void answer_props(const Service& service, const HttpRequest& request,
                  const std::shared_ptr<Exchange>& exchange);
void answer_tokenize(const Service& service, const HttpRequest& request,
                     const std::shared_ptr<Exchange>& exchange);
/// vLLM's GET /tokenizer_info, as far as evaluations need it.
void answer_tokenizer_info(const Service& service, const HttpRequest& request,
                           const std::shared_ptr<Exchange>& exchange);
void answer_detokenize(const Service& service, const HttpRequest& request,
                       const std::shared_ptr<Exchange>& exchange);
void answer_apply_template(const Service& service, const HttpRequest& request,
                           const std::shared_ptr<Exchange>& exchange);
/// How far uploaded log-probabilities of given tokens are from the model's.
void answer_kl(const Service& service, const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);

}  // namespace tercet
