#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deliver.h"
#include "logits.h"
#include "speak.h"

/* ---- before and after the tokens ---- */

static bool starts_like_json(const char *text)
{
    text += strspn(text, " \t\r\n");
    return *text == '{' || *text == '[';
}

static bool has_lora(const Instance *instance, const char *name)
{
    for (size_t i = 0; i < instance->n_loras; i++)
        if (strcmp(instance->loras[i], name) == 0)
            return true;
    return false;
}

/* Fails without any callback, with words on stderr alone. */
static bool fail_silently(Run *run, const char *why)
{
    dprintf(STDERR_FILENO, "E rkllm: %s\n", why);
    run->status = -1;
    return end(run, END_FAILED);
}

static bool accept(Run *run)
{
    const Instance *instance = run->instance;
    if (run->seen.lora != NULL && !has_lora(instance, run->seen.lora))
        return fail_silently(run, "lora adapter is not loaded");
    if (strcmp(run->seen.role, "tool") == 0 && !starts_like_json(run->seen.prompt))
        return fail_silently(run, "the prompt of role tool must be JSON");
    if (instance->kv.length + run->seen.tokens.length > (size_t)instance->param.max_context_len) {
        long with_error = instance->script->overflow_error;
        if (with_error == ANY)
            with_error = roll(&run->dice, 2);
        return with_error ? fail(run, NULL) : fail_silently(run, "the prompt is too long");
    }
    if (run->answer == NULL) {
        fail_silently(run, "the script has no answer for this prompt");
        return fail(run, NULL);
    }
    return true;
}

static void prefill(Run *run)
{
    uint64_t done = run->began + (uint64_t)run->answer->prefill_ms * MS;
    if (run->answer->prefill_hears)
        wait_until(run, done);
    else
        sleep_until(done);
}

/* The tokenizer and the embedding layer that a caller of 1.3 may bring along. */
static bool use_own_layers(Run *run)
{
#if ABI == 13
    const RKLLMCallback *own = &run->instance->callbacks;
    if (own->tokenizer_callback == NULL || run->seen.type != RKLLM_INPUT_PROMPT)
        return true;
    int32_t room = run->instance->param.max_context_len;
    int32_t *ids = take((size_t)room * sizeof *ids);
    int n = own->tokenizer_callback(own->tokenizer_userdata, run->seen.prompt,
                                    (int32_t)strlen(run->seen.prompt), ids, room);
    bool works = n >= 0 && n <= room;
    if (works && own->embed_callback != NULL) {
        size_t size = (size_t)n * EMBEDDING * sizeof(uint16_t);
        void *embeddings = take(size);
        works = own->embed_callback(own->embed_userdata, ids, (uint64_t)n, embeddings, size) == 0;
        free(embeddings);
    }
    run->seen.tokens.length = 0;
    for (int i = 0; works && i < n; i++)
        tokens_add(&run->seen.tokens, ids[i]);
    free(ids);
    if (!works)
        return fail_silently(run, "a callback failed");
#endif
    (void)run;
    return true;
}

/* Rows of numbers in place of an answer, one for each token that is computed now: in row r and
 * column c stands r + c / 100. */
static void give_numbers(Run *run)
{
    bool hidden = run->seen.mode == RKLLM_INFER_GET_LAST_HIDDEN_LAYER;
    bool of_tokens = run->seen.type == RKLLM_INPUT_TOKEN && run->instance->script->vocabulary > 0;
    int columns = hidden      ? EMBEDDING
                  : of_tokens ? (int)run->instance->script->vocabulary
                              : VOCABULARY;
    int rows = (int)(run->seen.tokens.length - run->loaded);
    size_t count = (size_t)columns * (size_t)rows;
    float *numbers = take(count * sizeof *numbers);
    if (!hidden && of_tokens)
        fill_logits(run, numbers, columns);
    else
        for (size_t i = 0; i < count; i++)
            numbers[i] = (float)(run->loaded + i / (size_t)columns) +
                         (float)(i % (size_t)columns) / 100;
    RKLLMResult result = result_of(nothing(run), -1);
    if (hidden)
        result.last_hidden_layer = (RKLLMResultLastHiddenLayer){numbers, columns, rows};
    else
        result.logits = (RKLLMResultLogits){numbers, columns, rows};
    int answer = deliver(run, RKLLM_RUN_NORMAL, result);
    log_call("numbers run=%lu rows=%d answer=%d", run->number, rows, answer);
    spoil(numbers, (char)0xa5, count * sizeof *numbers);
    free(numbers);
    run->end = END_FINISHED;
}

void forget_history(Instance *instance)
{
    instance->history.length = 0;
    buffer_add(&instance->history, "", 0);
    instance->kv.length = 0;
}

/* Of an answer that was cut off, nobody says whether its last token was computed with, or yet
 * another one that nobody was told of. */
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

static void remember(Run *run)
{
    Instance *instance = run->instance;
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

static void save_cache(const Run *run)
{
    if (!run->seen.saves_cache || run->end == END_FAILED)
        return;
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

/* What was computed with one adapter and gone on from with another: what the real one makes of that,
 * nobody has seen. */
static void check_adapter(const Run *run, const char *what, const char *lora)
{
    const char *own = run->seen.lora;
    if ((lora == NULL) != (own == NULL) || (lora != NULL && strcmp(lora, own) != 0))
        refuse("rkllm_run: the %s is of adapter %s, the run of %s", what, lora == NULL ? "none" : lora,
               own == NULL ? "none" : own);
}

/* A loaded prompt cache saves what a prompt shares with it, but for the last token; with history it
 * was seen to save nothing (rknn-llm#399). */
static void use_prompt_cache(Run *run)
{
    const Instance *instance = run->instance;
    if (!instance->has_prompt_cache || run->seen.keep_history)
        return;
    check_adapter(run, "prompt cache", instance->prompt_cache_lora);
    size_t shared = tokens_shared(&instance->prompt_cache, &run->seen.tokens);
    run->loaded = shared == run->seen.tokens.length ? shared - 1 : shared;
}

/* All that the answer is about, of which only the run's own tokens are computed now. */
static void log_context(const Run *run)
{
    if (run->seen.type != RKLLM_INPUT_TOKEN)
        return;
    const Tokens *kv = &run->instance->kv;
    Buffer ids = {0};
    tokens_print(kv, &ids);
    tokens_print(&run->seen.tokens, &ids);
    log_call("context run=%lu held=%zu new=%zu lora=%s ids=%s", run->number,
             kv->length + run->loaded, run->seen.tokens.length - run->loaded,
             run->seen.lora == NULL ? "-" : run->seen.lora, ids.bytes);
    free(ids.bytes);
}

static void generate(Run *run)
{
    Instance *instance = run->instance;
    bool resumes = run->cursor.step + (size_t)run->cursor.round + run->cursor.text > 0;
    run->began = run->prefilled = now_ns();
    if (!run->seen.keep_history && !resumes)
        forget_history(instance);
    if (!use_own_layers(run) || !accept(run))
        return;
    if (instance->kv.length > 0)
        check_adapter(run, "key-value cache", instance->kv_lora);
    use_prompt_cache(run);
    log_context(run);
    run->has_read = true;
    if (!resumes)
        prefill(run);
    run->due = run->prefilled = now_ns();
    if (run->seen.mode == RKLLM_INFER_GENERATE)
        speak(run);
    else
        give_numbers(run);
    if (run->answer->finishes &&
        (run->end == END_FINISHED || (run->end == END_ABORTED && run->abort_finishes)))
        finish(run);
    if (run->end == END_PAUSED) {
        instance->paused = run->answer;
        instance->resume = run->cursor;
    }
    remember(run);
    save_cache(run);
}

/* ---- begin and end ---- */

static const Answer *answer_for(const Run *run)
{
    const Script *script = run->instance->script;
    for (size_t i = 0; i < script->count; i++) {
        const Answer *answer = &script->answers[i];
        if ((answer->run == ANY || (unsigned long)answer->run == run->number) &&
            (answer->when == NULL || strstr(run->seen.prompt, answer->when) != NULL))
            return answer;
    }
    return NULL;
}

static void roll_dice(Run *run)
{
    const Answer *answer = run->answer;
    run->dice = dice_for(run->number);
    Threads threads = THREAD_CALLER + (Threads)roll(&run->dice, 3);
    uint64_t latency = roll(&run->dice, 5001) * US;
    bool finishes = roll(&run->dice, 2);
    if (answer == NULL)
        return;
    run->threads = answer->threads == THREAD_ANY ? threads : answer->threads;
    run->abort_takes_ns = answer->abort_ignored     ? NEVER
                          : answer->abort_ms == ANY ? latency
                                                    : (uint64_t)answer->abort_ms * MS;
    run->abort_finishes = answer->abort_finishes == ANY ? finishes : answer->abort_finishes != 0;
}

Run *run_new(Instance *instance, const char *call, const RKLLMInput *input,
             const RKLLMInferParam *infer, void *userdata)
{
    if (atomic_exchange(&instance->running, true))
        refuse("%s: another run is under way on this handle", call);
    instance->abort_at = 0;
    Run *run = take(sizeof *run);
    run->instance = instance;
    run->number = ++instance->runs;
    run->userdata = userdata == NULL ? instance->userdata : userdata;
    run->seen = seen_of(instance, input, infer);
    run->answer = instance->paused;
    if (instance->paused != NULL)
        run->cursor = instance->resume;
    else
        run->answer = answer_for(run);
    instance->paused = NULL;
    roll_dice(run);
    log_call("%s run=%lu tokens=%zu userdata=%p", call, run->number, run->seen.tokens.length, userdata);
    return run;
}

int run_to_end(Run *run)
{
    static const char *const names[] = {"finished", "aborted", "failed", "paused"};
    Instance *instance = run->instance;
    on_its_thread(run, generate);
    int status = run->status;
    if (run->answer != NULL && run->answer->status_set)
        status = (int)run->answer->status;
    log_call("run_end run=%lu said=%ld end=%s status=%d", run->number, run->generated,
             names[run->end], status);
    leave_late_callbacks(run);
    seen_free(&run->seen);
    tokens_free(&run->answered);
    free(run->said.bytes);
    free(run->text.bytes);
    free(run);
    instance->running = false;
    return status;
}
