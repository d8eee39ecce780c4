#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "batch.h"
#include "deliver.h"
#include "keep.h"
#include "logits.h"
#include "replay.h"
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

bool fail_silently(Run *run, const char *why)
{
    dprintf(STDERR_FILENO, "E rkllm: %s\n", why);
    run->status = -1;
    return end(run, END_FAILED);
}

bool accept(Run *run)
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

void prefill(Run *run)
{
    uint64_t new_tokens = run->seen.tokens.length - run->loaded;
    uint64_t done = run->began + (uint64_t)run->answer->prefill_ms * MS +
                    (uint64_t)run->answer->prefill_us_per_token * new_tokens * US;
    if (run->answer->prefill_hears)
        wait_until(run, done);
    else
        sleep_until(done);
}

/* Calls the tokenizer and the embedding layer that a caller of 1.3 may provide. */
static bool use_own_layers(Run *run)
{
#if ABI != 12
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

void log_context(const Run *run)
{
    if (run->seen.type != RKLLM_INPUT_TOKEN)
        return;
    const Tokens *kv = &run->instance->kv;
    Buffer ids = {0};
    tokens_print(kv, &ids);
    tokens_print(&run->seen.tokens, &ids);
    log_call("context run=%lu place=%zu held=%zu new=%zu lora=%s ids=%s", run->number, run->place,
             kv->length + run->loaded, run->seen.tokens.length - run->loaded,
             run->seen.lora == NULL ? "-" : run->seen.lora, ids.bytes);
    free(ids.bytes);
}

static void print_stage(int stream, const char *stage, double ms, int tokens)
{
    dprintf(stream, "I rkllm:  %-13s %-16.2f %-9d %-24.2f %-23.2f\n", stage, ms, tokens,
            tokens > 0 ? ms / tokens : 0.0, ms > 0 ? tokens * 1000.0 / ms : 0.0);
}

/* The statistics that the library prints after a run with RKLLM_LOG_LEVEL=1, as users post them. */
static void print_statistics(const Run *run)
{
    const char *level = getenv("RKLLM_LOG_LEVEL");
    int stream = run->instance->script->chatter;
    if (level == NULL || atoi(level) < 1 || stream < 0)
        return;
    RKLLMPerfStat perf = perf_of(run);
    dprintf(stream, "I rkllm:  Stage         Total Time (ms)  Tokens    Time per Token (ms)      "
                    "Tokens per Second      \n");
    print_stage(stream, "Prefill", perf.prefill_time_ms, perf.prefill_tokens);
    print_stage(stream, "Generate", perf.generate_time_ms, perf.generate_tokens);
    dprintf(stream, "I rkllm:  Peak Memory Usage (MB)\nI rkllm:  %.2f\n", perf.memory_usage_mb);
}

static void generate(Run *run)
{
    Instance *instance = run->instance;
    if (run->answer != NULL && run->answer->is_recorded) {
        replay(run);
        return;
    }
    if (run->places > 1) {
        generate_batch(run);
        return;
    }
    bool resumes = run->cursor.step + (size_t)run->cursor.round + run->cursor.text > 0;
    run->began = run->prefilled = now_ns();
    if (!run->seen.keep_history && !resumes)
        forget_history(instance);
    if (!use_own_layers(run) || !accept(run))
        return;
    check_kept(run);
    use_prompt_cache(run);
    use_last_prompt(run);
    if (instance->script->history_logits_crash && run->seen.mode == RKLLM_INFER_GET_LOGITS &&
        run->seen.keep_history && instance->kv.length > 0)
        crash("GGML_ASSERT(mask->ne[0] == kv_size) failed");
    log_context(run);
    run->has_read = true;
    print_lines(&run->answer->printed);
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
    print_statistics(run);
    if (run->end == END_PAUSED) {
        instance->paused = run->answer;
        instance->resume = run->cursor;
    }
    remember(run);
    save_cache(run);
}

/* ---- start and end ---- */

static const Answer *answer_for(const Run *run)
{
    const Script *script = run->instance->script;
    for (size_t i = 0; i < script->count; i++) {
        const Answer *answer = &script->answers[i];
        if (answer->process != ANY && answer->process != run->instance->process)
            continue;
        if (answer->init != ANY && answer->init != run->instance->init)
            continue;
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

static void set_up(Run *run, Instance *instance, const RKLLMInput *input,
                   const RKLLMInferParam *infer, void *userdata)
{
    run->instance = instance;
    run->number = instance->runs;
    run->userdata = userdata == NULL ? instance->userdata : userdata;
    run->places = 1;
    run->other_thread = ANY;
    run->seen = seen_of(instance, input, infer);
    run->answer = instance->paused;
    if (instance->paused != NULL)
        run->cursor = instance->resume;
    else
        run->answer = answer_for(run);
    roll_dice(run);
}

Run *run_new(Instance *instance, const char *call, const RKLLMInput *input,
             const RKLLMInferParam *infer, void *userdata)
{
    if (atomic_exchange(&instance->running, true))
        refuse("%s: another run is under way on this handle", call);
    instance->abort_at = 0;
    instance->cache_size = ANY;
    instance->runs++;
    Run *run = take(sizeof *run);
    set_up(run, instance, input, infer, userdata);
    size_t places = instance->param.extend_param.n_batch;
    if (places > 1) {
        run->places = places;
        run->sequences = take(places * sizeof *run->sequences);
        for (size_t i = 0; i < places; i++) {
            set_up(&run->sequences[i], instance, &input[i], infer, userdata);
            run->sequences[i].place = i;
        }
    }
    instance->paused = NULL;
    log_call("%s run=%lu tokens=%zu places=%zu userdata=%p mode=%d history=%d saves=%d lora=%s",
             call, run->number, run->seen.tokens.length, places, userdata, run->seen.mode,
             run->seen.keep_history, run->seen.saves_cache,
             run->seen.lora == NULL ? "-" : run->seen.lora);
    return run;
}

static void drop(Run *run)
{
    seen_free(&run->seen);
    tokens_free(&run->answered);
    free(run->said.bytes);
    free(run->text.bytes);
    free(run->held.bytes);
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
    for (size_t i = 0; run->places > 1 && i < run->places; i++)
        drop(&run->sequences[i]);
    free(run->sequences);
    drop(run);
    free(run);
    instance->running = false;
    return status;
}
