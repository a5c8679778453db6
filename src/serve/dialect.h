// Requests of other protocols, put as /v1/chat/completions has them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/chat_request.h"

namespace tercet {

/// A chat request in the making.
struct ChatBody {
  Json body = Json::object();
  std::vector<std::string> ignored;  // what the protocol has and this server does not
};

/// read_chat_request() of what became of a request. What was ignored is warned of, or refused where the
/// service is strict. One answer alone can be wanted.
ApiResult<ChatRequest> read_chat_body(ChatBody chat, const Service& service);

inline bool is_present(const Json* value) { return value != nullptr && !value->is_null(); }

/// A member that is a string, or the error that names it.
ApiResult<std::string> string_member(const Json& object, std::string_view name, const std::string& where);

/// Messages in the order of a conversation, neighbouring pieces of one assistant's turn joined.
class ChatMessages {
 public:
  void add(std::string_view role, std::string text);  // system, developer or user
  void add_reasoning(const std::string& text);
  void add_answer(const std::string& text);
  void add_call(const std::string& id, const std::string& name, Json arguments);
  void add_result(const std::string& id, std::string text);

  Json take() { return std::move(messages_); }

 private:
  Json& assistant();

  Json messages_ = Json::array();
};

}  // namespace tercet
