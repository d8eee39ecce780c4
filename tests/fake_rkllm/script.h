/* The parsed "model file"; README.md describes its format. */
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

/* The text of one token: bytes and placeholders that are filled in at run time; or a NULL
 * pointer. */
typedef struct {
    bool is_null;
    Part *parts;
    size_t count;
} Text;

typedef enum { STEP_SAY, STEP_SPELL, STEP_WAITING, STEP_ERROR, STEP_CRASH, STEP_HANG } StepKind;

enum { ANY = -1, ASKED = -2 };

/* A line of an answer: tokens, repeated `times` times; ASKED means the last number in the
 * prompt. */
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

/* The content of the key-value cache after an answer: the tokens called back, one token less or one
 * more, or also an end token, which FINISH reports. */
typedef enum { CACHE_ANY, CACHE_TOLD, CACHE_LESS, CACHE_MORE, CACHE_ENDED } Cached;

enum { PREFILL_TIME, PREFILL_TOKENS, GENERATE_TIME, GENERATE_TOKENS, MEMORY, PERF_NUMBERS };

/* The rows of numbers in a recorded result. */
typedef enum { NUMBERS_NONE, NUMBERS_HIDDEN, NUMBERS_LOGITS } NumbersKind;
/* The end of a recorded call: crashed and hung calls have no return value. */
typedef enum { ENDS_RETURN, ENDS_CRASH, ENDS_HANG } Ending;

typedef struct {
    bool has_id;
    long id;
    /* NULL if the recorded pointer was. */
    char *text;
} RecordedToken;

/* A recorded callback, `at` microseconds after the call of run; a batch has several tokens. */
typedef struct {
    long at;
    int state;
    /* Whether it comes on another thread than that of the caller. */
    bool other;
    RecordedToken *tokens;
    size_t count;
    NumbersKind numbers;
    long rows;
    long width;
} Recorded;

/* A recorded init. */
typedef struct {
    long process;
    long init;
    long us;
    long status;
    Ending ending;
    char **lines;
    size_t count;
} Load;

/* Lines that are printed to stderr. */
typedef struct {
    char **texts;
    size_t count;
} Lines;

/* How to answer matching prompts. Values of ANY are chosen at random. */
typedef struct {
    long run;
    /* The position of the init whose run it is, in a script of recordings. */
    long process;
    long init;
    char *when;
    Step *steps;
    size_t count;
    /* Printed before the prefill. */
    Lines printed;
    Threads threads;
    long prefill_ms;
    /* The further time of each token of the prompt that is not in a cache. */
    long prefill_us_per_token;
    bool prefill_hears;
    bool abort_ignored;
    long abort_ms;
    long abort_finishes;
    /* Whether there is a FINISH callback, and its text if that is set. */
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
    /* The callbacks and the end of a recorded run, instead of steps. */
    bool is_recorded;
    Recorded *recorded;
    size_t n_recorded;
    Ending ending;
    long ends_at;
    /* What get_kv_cache_size reports after it; ANY to compute it. */
    long cache_size;
} Answer;

typedef enum { INIT_OK, INIT_FAILS, INIT_CRASHES } InitOutcome;
typedef enum { CLEAR_WORKS, CLEAR_FAILS, CLEAR_LIES } ClearOutcome;

typedef struct {
    long init_ms;
    InitOutcome init;
    /* How many inits of this process have this outcome; 0 for all. */
    long init_times;
    long init_status;
    char *last_words;
    InitOutcome second_init;
    bool second_init_set;
    long destroy_ms;
    long context;
    /* The file descriptor for the runtime's log lines, or -1 for none. */
    int chatter;
    /* Further lines of each load. */
    Lines printed;
    /* Whether a prompt that is too long causes an ERROR callback, or only a failed run. */
    long overflow_error;
    /* Whether an answer ends at the end of the context, or the oldest tokens are dropped. */
    bool window_ends;
    /* The length of a row of logits that depends on the tokens before it; 0 for rows that
     * do not. */
    long vocabulary;
    ClearOutcome clear;
    bool size_fails;
    bool saves_nothing;
    /* Whether a run without history skips the tokens that the run before it began with too. */
    bool reuses_prefix;
    /* Whether logits of tokens that follow a history end the process (RK3588, 1.2.3). */
    bool history_logits_crash;
    /* Whether loading a prompt cache ends the process after a run that should have saved one was
     * aborted (RK3576, 1.2.3). */
    bool aborted_save_spoils;
    Answer *answers;
    size_t count;
    Load *loads;
    size_t n_loads;
    /* The number of recorded processes; 0 in a script without recordings. */
    long processes;
    /* All memory that was allocated for it. */
    struct Memory *memory;
} Script;

/* Returns NULL, with the reason in `why`, if the file is no model. A mistake in the script ends the
 * process with file and line. */
Script *script_read(const char *path, const char **why);
void script_free(Script *script);
void print_lines(const Lines *lines);

#endif
