/* What every part needs: growing text, the clock, dice, the log, and a loud way out. */
#ifndef UTIL_H
#define UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

#define PRINTF(format_at, first) __attribute__((format(printf, format_at, first)))

/* Text that grows; `bytes` is NULL while nothing was added, and ends with a NUL afterwards. */
typedef struct {
    char *bytes;
    size_t length;
    size_t room;
} Buffer;

void buffer_add(Buffer *buffer, const char *bytes, size_t length);
void buffer_format(Buffer *buffer, const char *format, ...) PRINTF(2, 3);
/* Adds `text` as a JSON string, NULL as null. */
void buffer_json(Buffer *buffer, const char *text);

/* Memory, zeroed, or the end. */
void *take(size_t size);
char *copy_of(const char *text);
/* Overwrites memory that is about to be freed, which a compiler would leave out. */
void spoil(void *memory, char byte, size_t size);

uint64_t now_ns(void);
/* Hears nothing until then, not even a signal. */
void sleep_until(uint64_t ns);

/* Dice that fall the same for the same seed and the same run, whatever the timing. */
typedef struct {
    uint64_t state;
} Dice;

uint64_t seed(void);
Dice dice_for(uint64_t run);
unsigned roll(Dice *dice, unsigned sides);

/* One line to the file that FAKE_RKLLM_LOG names: time in ns, process, thread, what happened. */
void log_call(const char *format, ...) PRINTF(1, 2);

/* The caller did what the real library does not survive: say so, and do not survive it either. */
_Noreturn void refuse(const char *format, ...) PRINTF(1, 2);
/* A segfault, after some last words. */
_Noreturn void crash(const char *last_words);

#endif
