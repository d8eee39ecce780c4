#include "reader.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Memory {
    struct Memory *next;
    max_align_t first[];
};

_Noreturn void wrong(const Reader *reader, const char *format, ...)
{
    char message[500];
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    refuse("%s:%d: %s", reader->path, reader->line, message);
}

void *keep(Script *script, size_t size)
{
    struct Memory *memory = take(sizeof *memory + size);
    memory->next = script->memory;
    script->memory = memory;
    return memory->first;
}

void drop_kept(Script *script)
{
    for (struct Memory *memory = script->memory; memory != NULL;) {
        struct Memory *next = memory->next;
        free(memory);
        memory = next;
    }
}

static char *keep_bytes(Script *script, const char *bytes, size_t length)
{
    char *kept = keep(script, length + 1);
    if (length > 0)
        memcpy(kept, bytes, length);
    return kept;
}

void *grown(Script *script, void *array, size_t count, size_t size)
{
    if ((count & (count - 1)) != 0)
        return array;
    void *larger = keep(script, (count == 0 ? 1 : count * 2) * size);
    if (count > 0)
        memcpy(larger, array, count * size);
    return larger;
}

static void add_part(Reader *reader, Text *text, PartKind kind, const Buffer *bytes)
{
    if (kind == PART_BYTES && bytes->length == 0)
        return;
    text->parts = grown(reader->script, text->parts, text->count, sizeof *text->parts);
    Part *part = &text->parts[text->count++];
    part->kind = kind;
    if (kind == PART_BYTES) {
        part->bytes = keep_bytes(reader->script, bytes->bytes, bytes->length);
        part->length = bytes->length;
    }
}

static PartKind placeholder(Reader *reader)
{
    static const struct {
        const char *name;
        PartKind kind;
    } known[] = {
        {"i}", PART_INDEX}, {"run}", PART_RUN},       {"ns}", PART_NS},
        {"seen}", PART_SEEN}, {"prompt}", PART_PROMPT},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].name);
        if (strncmp(reader->at, known[i].name, length) == 0) {
            reader->at += length;
            return known[i].kind;
        }
    }
    wrong(reader, "unknown placeholder at: \\{%s", reader->at);
}

static char escaped(Reader *reader, char code)
{
    switch (code) {
    case 'n':
        return '\n';
    case 't':
        return '\t';
    case 'r':
        return '\r';
    case '"':
    case '\\':
        return code;
    case 'x':
        if (isxdigit((unsigned char)reader->at[0]) && isxdigit((unsigned char)reader->at[1])) {
            char digits[] = {reader->at[0], reader->at[1], '\0'};
            char byte = (char)strtol(digits, NULL, 16);
            reader->at += 2;
            if (byte != '\0')
                return byte;
        }
    }
    wrong(reader, "unknown escape \\%c", code);
}

/* Reads a quoted text; its first quote has been read already. */
static Text quoted(Reader *reader)
{
    Text text = {0};
    Buffer bytes = {0};
    for (;;) {
        char here = *reader->at++;
        if (here == '\0')
            wrong(reader, "a quote is not closed");
        if (here == '"')
            break;
        if (here == '\\' && *reader->at == '{') {
            reader->at++;
            add_part(reader, &text, PART_BYTES, &bytes);
            bytes.length = 0;
            add_part(reader, &text, placeholder(reader), NULL);
            continue;
        }
        if (here == '\\')
            here = escaped(reader, *reader->at++);
        buffer_add(&bytes, &here, 1);
    }
    add_part(reader, &text, PART_BYTES, &bytes);
    free(bytes.bytes);
    return text;
}

static bool ends_word(char here)
{
    return here == '\0' || here == '=' || here == '"' || isspace((unsigned char)here);
}

static const char *bare(Reader *reader)
{
    const char *begin = reader->at;
    while (!ends_word(*reader->at))
        reader->at++;
    return keep_bytes(reader->script, begin, (size_t)(reader->at - begin));
}

bool next_item(Reader *reader, Item *item)
{
    *item = (Item){0};
    while (isspace((unsigned char)*reader->at))
        reader->at++;
    if (*reader->at == '\0' || *reader->at == '#')
        return false;
    if (*reader->at != '"') {
        item->word = bare(reader);
        if (*reader->at != '=')
            return true;
        reader->at++;
    }
    item->has_text = true;
    if (*reader->at == '"') {
        reader->at++;
        item->text = quoted(reader);
    } else {
        Buffer value = {0};
        buffer_format(&value, "%s", bare(reader));
        add_part(reader, &item->text, PART_BYTES, &value);
        free(value.bytes);
    }
    return true;
}

bool is_word(const Item *item, const char *word)
{
    return item->word != NULL && !item->has_text && strcmp(item->word, word) == 0;
}

bool is_setting(const Item *item, const char *name)
{
    return item->word != NULL && item->has_text && strcmp(item->word, name) == 0;
}

bool is_text(const Item *item)
{
    return item->word == NULL;
}

_Noreturn void unknown(Reader *reader, const Item *item)
{
    wrong(reader, "what is %s%s here?", item->word == NULL ? "a text" : item->word,
          item->word != NULL && item->has_text ? "=" : "");
}

char *plain(Reader *reader, const Item *item)
{
    if (item->text.count == 0)
        return keep_bytes(reader->script, NULL, 0);
    if (item->text.count > 1 || item->text.parts->kind != PART_BYTES)
        wrong(reader, "no placeholders here");
    return item->text.parts->bytes;
}

double number_between(Reader *reader, const char *digits, double least, double most)
{
    char *end;
    double value = strtod(digits, &end);
    if (*digits == '\0' || *end != '\0' || !(value >= least && value <= most))
        wrong(reader, "%s is no number between %g and %g", digits, least, most);
    return value;
}

long number(Reader *reader, const Item *item, long least)
{
    return (long)number_between(reader, plain(reader, item), (double)least, (double)MOST);
}

long argument(Reader *reader, long least)
{
    Item item;
    if (!next_item(reader, &item) || item.has_text)
        wrong(reader, "a number is missing");
    return (long)number_between(reader, item.word, (double)least, (double)MOST);
}

int choice(Reader *reader, const char *const *words)
{
    Item item;
    if (next_item(reader, &item))
        for (int i = 0; words[i] != NULL; i++)
            if (is_word(&item, words[i]))
                return i;
    wrong(reader, "one of %s, %s, ... is missing", words[0], words[1]);
}
