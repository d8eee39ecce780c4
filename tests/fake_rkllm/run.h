/* One run: its tokens, their timing and its end. */
#ifndef RUN_H
#define RUN_H

#include "seen.h"

struct Stage;

typedef enum { END_FINISHED, END_ABORTED, END_FAILED, END_PAUSED } End;

typedef struct Run Run;

struct Run {
    Instance *instance;
    unsigned long number;
    Seen seen;
    void *userdata;
    const Answer *answer;
    Cursor cursor;
    /* The random choices for what the script leaves open. */
    Dice dice;
    Threads threads;
    uint64_t abort_takes_ns;
    bool abort_finishes;
    /* The second thread, which makes every other callback; or NULL. */
    struct Stage *stage;
    /* Whether the second thread makes the next callback, in a recorded run; or ANY. */
    int other_thread;
    uint64_t began;
    uint64_t prefilled;
    /* When the next token is due. */
    uint64_t due;
    long generated;
    int32_t last_id;
    /* The tokens that were called back, if the run keeps its history. */
    Tokens answered;
    /* The number of tokens of the text that is being spelled. */
    size_t letters;
    /* How many of its first tokens a loaded prompt cache covers. */
    size_t loaded;
    /* Whether the prompt was computed into the cache. */
    bool has_read;
    Buffer said;
    Buffer text;
    End end;
    int status;
    /* For a batch: the number of sequences, each with its own answer; the first one's
     * answer is also this run's. For a sequence: its index, and the token of the current
     * step. */
    size_t places;
    Run *sequences;
    size_t place;
    bool collects;
    bool over;
    LLMCallState state;
    int32_t id;
    bool has_text;
    Buffer held;
};

/* Reserves the instance and returns a run with copies of all its input; ends the process if another
 * run is active. */
Run *run_new(Instance *instance, const char *call, const RKLLMInput *input,
             const RKLLMInferParam *infer, void *userdata);
/* Runs it to its end, frees it and returns the return value of rkllm_run. */
int run_to_end(Run *run);

/* Shared with batches: check whether the run is possible, log its context, wait for the prefill. */
bool accept(Run *run);
void log_context(const Run *run);
void prefill(Run *run);
/* Fails without a callback, with a message on stderr only; returns false. */
bool fail_silently(Run *run, const char *why);

#endif
