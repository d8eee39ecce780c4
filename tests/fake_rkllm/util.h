/* Utilities: growing text, clock, random choices, log, and errors that end the process. */
#ifndef UTIL_H
#define UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

#define PRINTF(format_at, first) __attribute__((format(printf, format_at, first)))

/* A growing text; `bytes` is NULL until something is added, and is NUL-terminated after that. */
typedef struct {
    char *bytes;
    size_t length;
    size_t room;
} Buffer;

void buffer_add(Buffer *buffer, const char *bytes, size_t length);
void buffer_format(Buffer *buffer, const char *format, ...) PRINTF(2, 3);
/* Adds `text` as a JSON string, NULL as null. */
void buffer_json(Buffer *buffer, const char *text);

/* Returns zeroed memory; ends the process if there is none. */
void *take(size_t size);
char *copy_of(const char *text);
/* Overwrites memory that is about to be freed; the compiler cannot optimise this away. */
void spoil(void *memory, char byte, size_t size);

uint64_t now_ns(void);
/* Sleeps until then; neither aborts nor signals end the sleep. */
void sleep_until(uint64_t ns);

/* A random generator that depends only on the seed and the run's number, not on timing. */
typedef struct {
    uint64_t state;
} Dice;

uint64_t seed(void);
Dice dice_for(uint64_t run);
unsigned roll(Dice *dice, unsigned sides);

/* Appends a line to the file in FAKE_RKLLM_LOG: time in ns, process, thread, event. */
void log_call(const char *format, ...) PRINTF(1, 2);

/* The caller did something that crashes the real library: print the reason and abort. */
_Noreturn void refuse(const char *format, ...) PRINTF(1, 2);
/* Prints `last_words` and causes a segfault. */
_Noreturn void crash(const char *last_words);

#endif
