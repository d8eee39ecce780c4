/* The key-value cache of a handle, token by token. */
#ifndef KV_H
#define KV_H

#include <stddef.h>
#include <stdint.h>

#include "util.h"

/* Token ids in order; NO_TOKEN stands for input without a token id, such as an embedding. */
typedef struct {
    int32_t *ids;
    size_t length;
    size_t room;
} Tokens;

/* END_TOKEN is tokenizer.py's id of <|im_end|>. */
enum { NO_TOKEN = -1, END_TOKEN = 259 };

void tokens_add(Tokens *tokens, int32_t id);
void tokens_add_all(Tokens *tokens, const Tokens *others);
void tokens_free(Tokens *tokens);
/* Appends the ids to a text, separated by commas. */
void tokens_print(const Tokens *tokens, Buffer *text);
/* Returns the length of the common prefix. */
size_t tokens_shared(const Tokens *one, const Tokens *other);

/* Returns a token id for a word; there is no tokenizer, so it is a hash of the word. */
int32_t token_of_word(const char *word, size_t length);
/* Returns tokenizer.py's id of a byte. */
int32_t token_of_byte(unsigned char byte);

#endif
