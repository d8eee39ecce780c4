/* Reads a line of the "model file" item by item: words, "quoted texts" and name=value. */
#ifndef READER_H
#define READER_H

#include "script.h"
#include "util.h"

/* The largest number in a script. */
#define MOST 1000000000L

/* The reader's position: file, line, place on the line, and the current answer. */
typedef struct {
    Script *script;
    const char *path;
    int line;
    const char *at;
    Answer *answer;
} Reader;

/* A word, a "text", or word=text; never completely empty. */
typedef struct {
    const char *word;
    bool has_text;
    Text text;
} Item;

/* Reports a mistake in the script with its position, and ends the process. */
_Noreturn void wrong(const Reader *reader, const char *format, ...) PRINTF(2, 3);
_Noreturn void unknown(Reader *reader, const Item *item);

/* Returns memory that is freed with the script. */
void *keep(Script *script, size_t size);
/* Returns the array with space for one more element; doubles its size at powers of two. */
void *grown(Script *script, void *array, size_t count, size_t size);
void drop_kept(Script *script);

/* Reads the next item; false at the end of the line or at a comment. */
bool next_item(Reader *reader, Item *item);
bool is_word(const Item *item, const char *word);
bool is_setting(const Item *item, const char *name);
bool is_text(const Item *item);

/* Returns the bytes of a text without placeholders. */
char *plain(Reader *reader, const Item *item);
double number_between(Reader *reader, const char *digits, double least, double most);
/* Returns the value of a setting as a number. */
long number(Reader *reader, const Item *item, long least);
/* Reads a number without a name. */
long argument(Reader *reader, long least);
/* Reads one of `words`, which end with NULL, and returns its index. */
int choice(Reader *reader, const char *const *words);

#define CHOICE(reader, ...) choice(reader, (const char *const[]){__VA_ARGS__, NULL})

#endif
