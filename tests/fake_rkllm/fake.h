/* One instance of the stand-in: what init made and runs change. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>

#include "kv.h"
#include "script.h"
#include "util.h"

/* Only the API is to be seen from outside, all else is built hidden. */
#pragma GCC visibility push(default)
#if ABI == 12
#include "rkllm_12.h"
#elif ABI == 13
#include "rkllm_13.h"
#else
#error "this is for -DABI=12 or -DABI=13; old.c stands in for what is older"
#endif
#pragma GCC visibility pop

#if ABI == 12
typedef LLMResultCallback InitCallback;
#else
typedef RKLLMCallback *InitCallback;
#endif

enum { MOST_LORAS = 16, EMBEDDING = 8, VOCABULARY = 16 };

/* Where in an answer the next token is. */
typedef struct {
    size_t step;
    long round;
    size_t text;
} Cursor;

typedef struct {
    uint32_t magic;
    Script *script;
    RKLLMParam param;
    LLMResultCallback callback;
    void *userdata;
#if ABI == 13
    RKLLMCallback callbacks;
#endif
    /* system, prefix, postfix; system, tools, tool response; NULL until they are set. */
    char *chat_template[3];
    char *tools[3];
    char *loras[MOST_LORAS];
    size_t n_loras;
    /* The model's own file, which is what a prompt cache is good for. */
    char *model;
    bool has_prompt_cache;
    Tokens prompt_cache;
    bool has_cross_attention;

    atomic_bool running;
    unsigned long runs;
    /* When the run was asked to stop, or 0; `woken` tells those who wait for the next token. */
    _Atomic uint64_t abort_at;
    pthread_mutex_t lock;
    pthread_cond_t woken;

    /* What earlier runs left: as text, and token by token. */
    Buffer history;
    Tokens kv;
    /* The adapter that it was computed with, and the prompt cache; NULL for none. */
    char *kv_lora;
    char *prompt_cache_lora;
    /* The answer whose callback returned 1, and where the next run takes it up. */
    const Answer *paused;
    Cursor resume;
    /* How many threads still have late callbacks to make, and whether they must hurry. */
    atomic_int late;
    atomic_bool ending;
} Instance;

/* The instance that a handle is, or the end of the process if it is none. */
Instance *instance_of(LLMHandle handle, const char *call);
/* Copies three texts over three others. */
void replace(char **texts, const char *first, const char *second, const char *third);

#endif
