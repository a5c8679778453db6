// Requests of other protocols, put as /v1/chat/completions has them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/chat_request.h"

namespace tercet {

/// A chat request in the making.
struct ChatBody {
  Json body = Json::object();
  std::vector<std::string> ignored;              // what the protocol has and this server does not
  std::map<std::string, ResponseFormat> inputs;  // of custom tools, by name: ToolForm::input
};

/// read_chat_request() of what became of a request. What was ignored is warned of, or refused where the
/// service is strict. One answer alone can be wanted.
ApiResult<ChatRequest> read_chat_body(ChatBody chat, const Service& service);

inline bool is_present(const Json* value) { return value != nullptr && !value->is_null(); }

/// The error about a place in a request.
tl::unexpected<ApiError> wrong(const std::string& where, std::string_view what);

/// A word of a request as messages show it: quoted, or its type where it is none.
std::string word(const Json& value);

/// A member that is a string, or the error that names it.
ApiResult<std::string> string_member(const Json& object, std::string_view name, const std::string& where);

/// A thought in a field that clients keep, without a look at it, and send back with the conversation: some
/// drop the readable one.
std::string carried_thought(const std::string& text);
/// Nothing where it is none of this server's.
std::optional<std::string> read_carried_thought(const Json* carried);

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

/// A conversation as it is read.
struct ChatInput {
  ChatMessages messages;
  std::vector<std::string> ignored;  // as ChatBody's

  void put_into(ChatBody& chat);
};

}  // namespace tercet
