/* The state of one handle: created by init, changed by runs. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>

#include "kv.h"
#include "script.h"
#include "util.h"

/* Only the API is exported; all other symbols are built hidden. */
#pragma GCC visibility push(default)
#if ABI == 12
#include "rkllm_12.h"
#elif ABI == 13 || ABI == 131
#include "rkllm_13.h"
#else
#error "this is for -DABI=12, -DABI=13 or -DABI=131; old.c stands in for what is older"
#endif
#pragma GCC visibility pop

#if ABI == 12
typedef LLMResultCallback InitCallback;
#else
typedef RKLLMCallback *InitCallback;
#endif

enum { MOST_LORAS = 16, EMBEDDING = 8, VOCABULARY = 16 };

/* The position of the next token in an answer. */
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
#if ABI != 12
    RKLLMCallback callbacks;
#endif
    /* chat_template: system, prefix, postfix. tools: system, tools, tool response. NULL
     * until set. */
    char *chat_template[3];
    char *tools[3];
    char *loras[MOST_LORAS];
    size_t n_loras;
    /* The path of the model file; a prompt cache is valid only for this model. */
    char *model;
    bool has_prompt_cache;
    Tokens prompt_cache;
    bool has_cross_attention;

    /* The position of this init in recorded processes; 0 without recordings. */
    long process;
    long init;
    /* What get_kv_cache_size reports of a recorded run; ANY to count the tokens. */
    long cache_size;

    atomic_bool running;
    unsigned long runs;
    /* When rkllm_abort was called, or 0; `woken` wakes a thread that waits for the next token. */
    _Atomic uint64_t abort_at;
    pthread_mutex_t lock;
    pthread_cond_t woken;

    /* The history that earlier runs left: as text, and as tokens. */
    Buffer history;
    Tokens kv;
    /* The adapters that the key-value cache and the prompt cache were computed with, or NULL. */
    char *kv_lora;
    /* The prompt of the last run without history, and its adapter. */
    Tokens last_prompt;
    char *last_lora;
    /* Whether a run that should have saved its prompt was aborted. */
    bool has_aborted_save;
    char *prompt_cache_lora;
    /* The answer whose callback returned 1, and the position where the next run resumes it. */
    const Answer *paused;
    Cursor resume;
    /* The number of threads with late callbacks, and whether destroy has told them to stop. */
    atomic_int late;
    atomic_bool ending;
} Instance;

/* Returns the instance of a handle; ends the process if the handle is invalid. */
Instance *instance_of(LLMHandle handle, const char *call);
/* Replaces three texts with copies of three others. */
void replace(char **texts, const char *first, const char *second, const char *third);

#endif
