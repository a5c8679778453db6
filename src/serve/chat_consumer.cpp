#include "serve/chat_consumer.h"

#include <algorithm>

namespace tercet {

ChatPart::ChatPart(const ServedModel& model, const ChatRequest& request)
    : reader(model.tokenizer, model.tags, request.tools, request.in_thought, request.params.stop) {}

std::string_view ChatPart::finish_reason() const {
  if (reason == FinishReason::length) return "length";
  return answer.calls.empty() ? "stop" : "tool_calls";
}

ChatConsumer::ChatConsumer(const Service& service, ChatRequest request, std::shared_ptr<Exchange> exchange)
    : service_(service),
      request_(std::move(request)),
      exchange_(std::move(exchange)),
      tally_(static_cast<size_t>(request_.choices), static_cast<size_t>(request_.choices)) {
  for (int32_t i = 0; i < request_.choices; ++i) parts_.emplace_back(service_.model, request_);
}

void ChatConsumer::begin(const std::vector<Submitted>& submitted) { seed_ = submitted.front().seed; }

bool ChatConsumer::add(Update& update) {
  ChatPart& part = parts_[update.part];
  Event& event = update.event;
  if (!event.token && !event.finish && event.prompt_done > progress_) {
    progress_ = event.prompt_done;
    on_progress(progress_);
  }
  std::vector<AnswerEvent> events;
  const bool stops = event.finish && event.finish->reason == FinishReason::stop;
  if (event.token && !part.reader.stopped()) {
    tally_.add(update);
    part.last_token = event.token->token;
    if (!stops) {
      events = part.reader.add(part.last_token);
      if (request_.logprobs) part.tokens.push_back(std::move(*event.token));
    }
  }
  if (event.finish) {
    part.ended = true;
    part.reason = part.reader.stopped() ? FinishReason::stop : event.finish->reason;
    tally_.add_finish(update, part.reader.reasoning_tokens());
    for (AnswerEvent& last : part.reader.end(stops ? AnswerEnd::stop : AnswerEnd::length)) {
      events.push_back(std::move(last));
    }
  }
  part.answer.add(events);
  on_events(update.part, events);
  if (event.finish) on_part_end(update.part);
  return !part.reader.stopped();
}

Json ChatConsumer::stop_reason(const ChatPart& part) const {
  if (part.reader.stopped()) return part.reader.stop();
  const auto& tokens = request_.params.stop_tokens;
  const bool asked = std::find(tokens.begin(), tokens.end(), part.last_token) != tokens.end();
  return part.reason == FinishReason::stop && asked ? Json(part.last_token) : Json();
}

}  // namespace tercet
