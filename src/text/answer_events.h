// Comparing streams of events that were cut in different places.
#pragma once

#include <vector>

#include "text/answer_parser.h"

namespace tercet {

/// Appends `more` to `all`, joining neighbouring pieces of the same text.
inline void append_joined(std::vector<AnswerEvent>& all, const std::vector<AnswerEvent>& more) {
  for (const AnswerEvent& event : more) {
    const bool text =
        event.kind != AnswerEvent::Kind::call_begin && event.kind != AnswerEvent::Kind::call_end;
    if (text && !all.empty() && all.back().kind == event.kind && all.back().call == event.call) {
      all.back().text += event.text;
    } else {
      all.push_back(event);
    }
  }
}

}  // namespace tercet
