#include "kv.h"

#include <stdlib.h>
#include <string.h>

void tokens_add(Tokens *tokens, int32_t id)
{
    if (tokens->length == tokens->room) {
        tokens->room = tokens->room == 0 ? 64 : 2 * tokens->room;
        tokens->ids = realloc(tokens->ids, tokens->room * sizeof *tokens->ids);
        if (tokens->ids == NULL)
            refuse("no memory");
    }
    tokens->ids[tokens->length++] = id;
}

void tokens_add_all(Tokens *tokens, const Tokens *others)
{
    for (size_t i = 0; i < others->length; i++)
        tokens_add(tokens, others->ids[i]);
}

void tokens_free(Tokens *tokens)
{
    free(tokens->ids);
    *tokens = (Tokens){0};
}

void tokens_print(const Tokens *tokens, Buffer *text)
{
    for (size_t i = 0; i < tokens->length; i++)
        buffer_format(text, text->length == 0 ? "%d" : ",%d", tokens->ids[i]);
}

size_t tokens_shared(const Tokens *one, const Tokens *other)
{
    size_t shared = 0;
    while (shared < one->length && shared < other->length && one->ids[shared] == other->ids[shared])
        shared++;
    return shared;
}

int32_t token_of_word(const char *word, size_t length)
{
    uint32_t mixed = 2166136261u;
    for (size_t i = 0; i < length; i++)
        mixed = (mixed ^ (unsigned char)word[i]) * 16777619u;
    return (int32_t)(mixed % 30000) + 1000;
}

/* Printable bytes have the first ids, in order; the other bytes follow. */
static bool is_plain(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
}

int32_t token_of_byte(unsigned char byte)
{
    int32_t plain_ones = 0, before = 0;
    for (unsigned other = 0; other < 256; other++) {
        plain_ones += is_plain(other);
        before += other < byte && is_plain(other) == is_plain(byte);
    }
    return is_plain(byte) ? before : plain_ones + before;
}
