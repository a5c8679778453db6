// A chat answer in the making: tokens to thought, text and calls, for any protocol to spell.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "serve/answer_reader.h"
#include "serve/chat_request.h"
#include "serve/generation.h"

namespace tercet {

/// One of the choices.
struct ChatPart {
  ChatPart(const ServedModel& model, const ChatRequest& request);

  AnswerReader reader;
  Answer answer;                  // so far; of its calls, those that ended
  std::vector<TokenInfo> tokens;  // drawn and not yet told (see told()), where log-probabilities are wanted
  bool ended = false;
  FinishReason reason = FinishReason::stop;  // stop or length
  int32_t last_token = -1;

  /// "stop", "length" or "tool_calls".
  std::string_view finish_reason() const;
};

/// A protocol overrides what it has to say at once, or waits for end() and takes the parts as a whole.
class ChatConsumer : public AnswerConsumer {
 public:
  ChatConsumer(const Service& service, ChatRequest request, std::shared_ptr<Exchange> exchange);

  void begin(const std::vector<Submitted>& submitted) override;
  bool add(Update& update) final;

 protected:
  /// Tokens of the prompt that are read: the longest of all parts. Before anything of an answer.
  virtual void on_progress(int32_t /*done*/) {}
  /// What a part's next tokens mean; `events` may be empty.
  virtual void on_events(size_t /*part*/, const std::vector<AnswerEvent>& /*events*/) {}
  virtual void on_part_end(size_t /*part*/) {}

  /// A part's tokens since the last call.
  std::vector<TokenInfo> told(size_t part) { return std::exchange(parts_[part].tokens, {}); }

  const Service& service() const { return service_; }
  const ChatRequest& request() const { return request_; }
  Exchange& exchange() const { return *exchange_; }
  const std::deque<ChatPart>& parts() const { return parts_; }
  const Tally& tally() const { return tally_; }
  uint64_t seed() const { return seed_; }
  /// The stop string or, where it was none of the model's own end tokens, the stop token that ended the part;
  /// else null.
  Json stop_reason(const ChatPart& part) const;

 private:
  const Service& service_;
  const ChatRequest request_;
  const std::shared_ptr<Exchange> exchange_;
  std::deque<ChatPart> parts_;
  Tally tally_;
  int32_t progress_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace tercet
