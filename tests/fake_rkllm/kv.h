/* The key-value cache of a handle, token by token. */
#ifndef KV_H
#define KV_H

#include <stddef.h>
#include <stdint.h>

#include "util.h"

/* Token ids in order; NO_TOKEN is what stands in no vocabulary, such as an embedding. */
typedef struct {
    int32_t *ids;
    size_t length;
    size_t room;
} Tokens;

/* END_TOKEN is the number that tokenizer.py has for <|im_end|>. */
enum { NO_TOKEN = -1, END_TOKEN = 259 };

void tokens_add(Tokens *tokens, int32_t id);
void tokens_add_all(Tokens *tokens, const Tokens *others);
void tokens_free(Tokens *tokens);
/* Adds their numbers to a text, with commas in between. */
void tokens_print(const Tokens *tokens, Buffer *text);
/* How many of the first ones are the same. */
size_t tokens_shared(const Tokens *one, const Tokens *other);

/* A token for a word of a text, for want of a tokenizer: the same for the same word. */
int32_t token_of_word(const char *word, size_t length);
/* The number that tokenizer.py has for a byte. */
int32_t token_of_byte(unsigned char byte);

#endif
