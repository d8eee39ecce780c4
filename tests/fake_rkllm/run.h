/* One run: what is said, when, and how it ends. */
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
    /* What the script leaves open, as the dice fell. */
    Dice dice;
    Threads threads;
    uint64_t abort_takes_ns;
    bool abort_finishes;
    /* Whom every other callback is handed to, if anybody. */
    struct Stage *stage;
    uint64_t began;
    uint64_t prefilled;
    /* When the next token is due. */
    uint64_t due;
    long generated;
    int32_t last_id;
    /* The tokens that it was called back for, of a run that keeps its history. */
    Tokens answered;
    /* How many tokens the text has that is being spelled. */
    size_t letters;
    /* How many of its first tokens a loaded prompt cache has. */
    size_t loaded;
    /* Whether the prompt is in the cache. */
    bool has_read;
    Buffer said;
    Buffer text;
    End end;
    int status;
    /* Of a batch: how many there are, each with an answer of its own, whose first one is this run's
     * as well. Of one of them: its place, and what it would call back with now. */
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

/* Takes the instance, or ends the process if a run has it: returns a run that owns all it needs. */
Run *run_new(Instance *instance, const char *call, const RKLLMInput *input,
             const RKLLMInferParam *infer, void *userdata);
/* Runs it to its end, frees it and returns what rkllm_run is to return. */
int run_to_end(Run *run);

/* The parts of it that a batch has as well: whether it can be run at all, the log of what it is
 * about, its silence. */
bool accept(Run *run);
void log_context(const Run *run);
void prefill(Run *run);
/* Fails without any callback, with words on stderr alone; returns false. */
bool fail_silently(Run *run, const char *why);

#endif
