/* Plain C over the Rust libraries of src/text: Hugging Face tokenizers, minijinja and llguidance.
 *
 * Every function that can fail returns false and then fills *error with a message in UTF-8; it writes its
 * results only when it returns true. Strings in need not end in NUL; they are borrowed for the call. A
 * TercetBuffer that comes out belongs to the caller, who hands it to tercet_buffer_free. Objects other
 * than matchers are immutable and may be shared by threads. No panic crosses this border. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint8_t* data;
  size_t size;
  size_t capacity;
} TercetBuffer;
void tercet_buffer_free(TercetBuffer buffer);

/* A byte-level BPE tokenizer without its added tokens: whatever text it is given stays text. */
typedef struct TercetTokenizer TercetTokenizer;
bool tercet_tokenizer_new(const uint8_t* json, size_t size, const TercetTokenizer** tokenizer, TercetBuffer* error);
void tercet_tokenizer_free(const TercetTokenizer* tokenizer);
/* For each id from 0: a byte of flags (1: the id exists, 2: added token, 4: special), the length as a
 * little-endian uint32, and the bytes that the token stands for. */
bool tercet_tokenizer_vocabulary(const TercetTokenizer* tokenizer, TercetBuffer* table, TercetBuffer* error);
/* Little-endian uint32 ids. Bytes that are not UTF-8 become U+FFFD first. */
bool tercet_tokenizer_encode(const TercetTokenizer* tokenizer, const uint8_t* text, size_t size, TercetBuffer* ids,
                             TercetBuffer* error);

/* A chat template, in the environment that transformers gives it. */
typedef struct TercetTemplate TercetTemplate;
bool tercet_template_new(const uint8_t* source, size_t size, TercetTemplate** chat_template, TercetBuffer* error);
void tercet_template_free(TercetTemplate* chat_template);
/* `context` is a value in the form that bridge/src/value.rs states, a mapping at the top. `marks` are the
 * characters to trace, `now` the seconds since 1970 that strftime_now shows in local time.
 * `text` is the prompt. `spans` are pairs of little-endian uint32 offsets into it, ascending and disjoint:
 * every traced character outside of them was written by the template, not by a message. */
bool tercet_template_render(const TercetTemplate* chat_template, const uint8_t* context, size_t context_size,
                            const uint8_t* marks, size_t marks_size, int64_t now, TercetBuffer* text,
                            TercetBuffer* spans, TercetBuffer* error);

/* Grammars over a tokenizer's vocabulary. `controls` are the tokens that no text contains, whatever their
 * spelling; `ends` (at least one) may come where a grammar is complete. The tokenizer may be freed before. */
typedef struct TercetGrammars TercetGrammars;
bool tercet_grammars_new(const TercetTokenizer* tokenizer, const int32_t* controls, size_t control_count,
                         const int32_t* ends, size_t end_count, size_t vocabulary, TercetGrammars** grammars,
                         TercetBuffer* error);
void tercet_grammars_free(TercetGrammars* grammars);

/* Follows one text of a grammar. One thread at a time. It may outlive its TercetGrammars. */
typedef struct TercetMatcher TercetMatcher;
/* `grammar` is llguidance's JSON: {"grammars": [{"name", "lark_grammar" or "json_schema"}, …]}. */
bool tercet_grammars_compile(const TercetGrammars* grammars, const uint8_t* grammar, size_t size,
                             TercetMatcher** matcher, TercetBuffer* error);
/* Costs a small part of what compiling does. To be freed by itself. */
TercetMatcher* tercet_matcher_copy(const TercetMatcher* matcher);
void tercet_matcher_free(TercetMatcher* matcher);
/* The tokens that may come next, as bits; `count` is vocabulary ÷ 32, rounded up. */
bool tercet_matcher_mask(TercetMatcher* matcher, uint32_t* words, size_t count, TercetBuffer* error);
bool tercet_matcher_accept(TercetMatcher* matcher, int32_t token, TercetBuffer* error);

#ifdef __cplusplus
}
#endif
