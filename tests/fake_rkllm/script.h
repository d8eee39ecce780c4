/* The "model file" as it is once read; README.md describes how it is written. */
#ifndef SCRIPT_H
#define SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    PART_BYTES,
    PART_INDEX,
    PART_RUN,
    PART_NS,
    PART_SEEN,
    PART_PROMPT,
} PartKind;

typedef struct {
    PartKind kind;
    char *bytes;
    size_t length;
} Part;

/* The text of one token: bytes, and what is only known when it is said; or a NULL pointer. */
typedef struct {
    bool is_null;
    Part *parts;
    size_t count;
} Text;

typedef enum { STEP_SAY, STEP_SPELL, STEP_WAITING, STEP_ERROR, STEP_CRASH, STEP_HANG } StepKind;

enum { ANY = -1, ASKED = -2 };

/* A line of an answer: some tokens, said so often; ASKED for the last number in the prompt. */
typedef struct {
    StepKind kind;
    Text *texts;
    size_t count;
    long id;
    long us;
    long times;
} Step;

typedef enum { THREAD_ANY, THREAD_CALLER, THREAD_FOREIGN, THREAD_ALTERNATE } Threads;

typedef struct {
    bool set;
    bool relative;
    double value;
} Correction;

/* What the key-value cache holds after an answer: what was called back, one token less or more, or
 * an end token, which FINISH tells. */
typedef enum { CACHE_ANY, CACHE_TOLD, CACHE_LESS, CACHE_MORE, CACHE_ENDED } Cached;

enum { PREFILL_TIME, PREFILL_TOKENS, GENERATE_TIME, GENERATE_TOKENS, MEMORY, PERF_NUMBERS };

/* How to answer the prompts that fit. Whatever is ANY, the dice decide. */
typedef struct {
    long run;
    char *when;
    Step *steps;
    size_t count;
    Threads threads;
    long prefill_ms;
    bool prefill_hears;
    bool abort_ignored;
    long abort_ms;
    long abort_finishes;
    /* Whether FINISH comes at all, and its text if that is set. */
    bool finishes;
    bool finish_set;
    Text finish;
    Correction perf[PERF_NUMBERS];
    Cached cached;
    long late;
    long late_ms;
    bool late_finish;
    long status;
    bool status_set;
} Answer;

typedef enum { INIT_OK, INIT_FAILS, INIT_CRASHES } InitOutcome;
typedef enum { CLEAR_WORKS, CLEAR_FAILS, CLEAR_LIES } ClearOutcome;

typedef struct {
    long init_ms;
    InitOutcome init;
    /* How many inits of this process go that way; 0 for all. */
    long init_times;
    long init_status;
    char *last_words;
    InitOutcome second_init;
    bool second_init_set;
    long destroy_ms;
    long context;
    /* Where the runtime's own chatter goes: a file descriptor, or -1 for nowhere. */
    int chatter;
    /* Whether a prompt that is too long gets an ERROR callback or a failed run alone. */
    long overflow_error;
    /* Whether an answer that outgrows the context ends, or the oldest tokens are forgotten. */
    bool window_ends;
    /* How many numbers a row of logits has that depends on the tokens before; 0 for rows that do
     * not. */
    long vocabulary;
    ClearOutcome clear;
    bool size_fails;
    bool saves_nothing;
    Answer *answers;
    size_t count;
    /* Everything that was allocated for it. */
    struct Memory *memory;
} Script;

/* Returns NULL for a file that is no model, and says why in `why`. Mistakes in a script are the
 * test author's: they end the process with file and line. */
Script *script_read(const char *path, const char **why);
void script_free(Script *script);

#endif
