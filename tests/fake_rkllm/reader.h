/* Reads a line of the "model file" item by item: words, "quoted texts" and name=value. */
#ifndef READER_H
#define READER_H

#include "script.h"
#include "util.h"

/* The largest number there may be. */
#define MOST 1000000000L

/* Where the reader is: on which line of which file, at what on that line, in which answer. */
typedef struct {
    Script *script;
    const char *path;
    int line;
    const char *at;
    Answer *answer;
} Reader;

/* A word, or a "text", or word=text; no item is all of it empty. */
typedef struct {
    const char *word;
    bool has_text;
    Text text;
} Item;

/* The author of the script made a mistake: say where, and end the process. */
_Noreturn void wrong(const Reader *reader, const char *format, ...) PRINTF(2, 3);
_Noreturn void unknown(Reader *reader, const Item *item);

/* Memory that lasts as long as the script does. */
void *keep(Script *script, size_t size);
/* The array with room for one more, of twice the size whenever a power of two is full. */
void *grown(Script *script, void *array, size_t count, size_t size);
void drop_kept(Script *script);

/* Reads the next item; false at the end of the line or at a comment. */
bool next_item(Reader *reader, Item *item);
bool is_word(const Item *item, const char *word);
bool is_setting(const Item *item, const char *name);
bool is_text(const Item *item);

/* The bytes of a text in which nothing is left to be filled in. */
char *plain(Reader *reader, const Item *item);
double number_between(Reader *reader, const char *digits, double least, double most);
/* The number that a setting has. */
long number(Reader *reader, const Item *item, long least);
/* Reads a number that stands by itself. */
long argument(Reader *reader, long least);
/* Reads one of `words`, which end with NULL, and returns its place. */
int choice(Reader *reader, const char *const *words);

#define CHOICE(reader, ...) choice(reader, (const char *const[]){__VA_ARGS__, NULL})

#endif
