/* State that runs share through the handle: the key-value cache and the prompt cache. */
#include "keep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void forget_history(Instance *instance)
{
    instance->history.length = 0;
    buffer_add(&instance->history, "", 0);
    instance->kv.length = 0;
}

/* After an answer that was cut off, it is not documented whether the cache contains its last token,
 * or one more token that was not called back. */
static void remember_answer(Run *run)
{
    Tokens *kv = &run->instance->kv;
    Cached cached = run->answer->cached;
    bool cut = run->end == END_ABORTED || run->generated == run->seen.max_new_tokens;
    Dice dice = dice_for(~run->number);
    if (cached == CACHE_ANY)
        cached = cut ? CACHE_TOLD + (Cached)roll(&dice, 3) : CACHE_TOLD;
    if (cached == CACHE_LESS && run->answered.length > 0)
        run->answered.length--;
    if (cached == CACHE_MORE)
        tokens_add(&run->answered, 999);
    if (cached == CACHE_ENDED && !cut)
        tokens_add(&run->answered, END_TOKEN);
    tokens_add_all(kv, &run->answered);
}

/* The tokens that a run without history leaves for the next one count as cached too. */
static void report_size(const Run *run)
{
    Instance *instance = run->instance;
    if (instance->script->reuses_prefix && !run->seen.keep_history &&
        run->seen.mode == RKLLM_INFER_GENERATE && run->places == 1)
        instance->cache_size = (long)run->seen.tokens.length + run->generated;
}

void remember(Run *run)
{
    Instance *instance = run->instance;
    if (run->has_read)
        report_size(run);
    if (!run->seen.keep_history || !run->has_read)
        return;
    tokens_add_all(&instance->kv, &run->seen.tokens);
    free(instance->kv_lora);
    instance->kv_lora = copy_of(run->seen.lora);
    if (run->end == END_FAILED)
        return;
    remember_answer(run);
    buffer_format(&instance->history, "%s\n%s\n", run->seen.prompt,
                  run->said.bytes == NULL ? "" : run->said.bytes);
}

void save_cache(const Run *run)
{
    if (!run->seen.saves_cache || run->end == END_FAILED)
        return;
    if (run->end == END_ABORTED)
        run->instance->has_aborted_save = true;
    if (run->instance->script->saves_nothing) {
        dprintf(STDERR_FILENO, "W rkllm: the model does not support saving prompt cache!\n");
        return;
    }
    const char *path = run->seen.cache_path;
    FILE *file = fopen(path == NULL ? "./prompt_cache.bin" : path, "we");
    if (file == NULL)
        return;
    Buffer ids = {0};
    tokens_print(&run->seen.tokens, &ids);
    const char *lora = run->seen.lora == NULL ? "" : run->seen.lora;
    fprintf(file, "fake-rkllm-cache\n%s\n%s\n%s\n", run->instance->model, lora, ids.bytes);
    free(ids.bytes);
    fclose(file);
}

/* The behaviour of the real library is unknown if a run continues from a cache that was
 * computed with another adapter. */
static void check_adapter(const Run *run, const char *what, const char *lora)
{
    const char *own = run->seen.lora;
    if ((lora == NULL) != (own == NULL) || (lora != NULL && strcmp(lora, own) != 0))
        refuse("rkllm_run: the %s is of adapter %s, the run of %s", what, lora == NULL ? "none" : lora,
               own == NULL ? "none" : own);
}

/* A loaded prompt cache covers its common prefix with the prompt, except for the last token; in
 * runs with history it was observed to have no effect (rknn-llm#399). */
void use_prompt_cache(Run *run)
{
    const Instance *instance = run->instance;
    if (!instance->has_prompt_cache || run->seen.keep_history)
        return;
    check_adapter(run, "prompt cache", instance->prompt_cache_lora);
    size_t shared = tokens_shared(&instance->prompt_cache, &run->seen.tokens);
    run->loaded = shared == run->seen.tokens.length ? shared - 1 : shared;
}

void use_last_prompt(Run *run)
{
    Instance *instance = run->instance;
    if (!instance->script->reuses_prefix || run->seen.keep_history ||
        run->seen.mode != RKLLM_INFER_GENERATE) {
        instance->last_prompt.length = 0;
        return;
    }
    if (instance->last_prompt.length > 0)
        check_adapter(run, "last prompt", instance->last_lora);
    /* All tokens of an equal prompt, as 1.3.0 counts them. */
    size_t shared = tokens_shared(&instance->last_prompt, &run->seen.tokens);
    run->loaded = shared > run->loaded ? shared : run->loaded;
    instance->last_prompt.length = 0;
    tokens_add_all(&instance->last_prompt, &run->seen.tokens);
    free(instance->last_lora);
    instance->last_lora = copy_of(run->seen.lora);
}

void check_kept(const Run *run)
{
    if (run->instance->kv.length > 0)
        check_adapter(run, "key-value cache", run->instance->kv_lora);
}
