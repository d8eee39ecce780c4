#include "speak.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "deliver.h"

/* An unlimited wait is implemented as repeated waits of one hour. */
static const uint64_t HOUR = 3600 * 1000 * MS;

/* ---- waiting ---- */

/* Returns when the run must stop; an abort may arrive at any time. */
static uint64_t stop_at(const Run *run)
{
    uint64_t asked = run->instance->abort_at;
    return asked == 0 || run->abort_takes_ns == NEVER ? NEVER : asked + run->abort_takes_ns;
}

bool aborted(const Run *run)
{
    uint64_t stop = stop_at(run);
    return stop != NEVER && now_ns() >= stop;
}

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

void wait_until(Run *run, uint64_t due)
{
    Instance *instance = run->instance;
    pthread_mutex_lock(&instance->lock);
    for (;;) {
        uint64_t now = now_ns();
        uint64_t until = least(least(due, stop_at(run)), now + HOUR);
        if (now >= until)
            break;
        struct timespec then = {.tv_sec = (time_t)(until / (1000 * MS)),
                                .tv_nsec = (long)(until % (1000 * MS))};
        pthread_cond_timedwait(&instance->woken, &instance->lock, &then);
    }
    pthread_mutex_unlock(&instance->lock);
}

static void wait_for_next(Run *run, const Step *step)
{
    if (step->us == 0)
        return;
    run->due += (uint64_t)step->us * US;
    uint64_t now = now_ns();
    if (run->due > now)
        wait_until(run, run->due);
    else
        run->due = now;
}

/* ---- results ---- */

bool end(Run *run, End how)
{
    run->end = how;
    return false;
}

static const char *rendered(Run *run, const Text *text)
{
    if (text->is_null)
        return NULL;
    Buffer *out = &run->text;
    out->length = 0;
    buffer_add(out, "", 0);
    for (size_t i = 0; i < text->count; i++) {
        const Part *part = &text->parts[i];
        switch (part->kind) {
        case PART_BYTES:
            buffer_add(out, part->bytes, part->length);
            break;
        case PART_INDEX:
            buffer_format(out, "%ld", run->generated);
            break;
        case PART_RUN:
            buffer_format(out, "%lu", run->number);
            break;
        case PART_NS:
            buffer_format(out, "%llu", (unsigned long long)now_ns());
            break;
        case PART_SEEN:
            seen_json(&run->seen, run->instance, run->number, out);
            break;
        case PART_PROMPT:
            buffer_format(out, "%s", run->seen.prompt);
        }
    }
    return out->bytes;
}

const char *nothing(Run *run)
{
    return roll(&run->dice, 2) == 0 ? NULL : "";
}

bool fail(Run *run, const char *text)
{
    deliver(run, RKLLM_RUN_ERROR, result_of(text, -1));
    run->status = -1;
    return end(run, END_FAILED);
}

RKLLMPerfStat perf_of(const Run *run)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double numbers[PERF_NUMBERS] = {
        [PREFILL_TIME] = (double)(run->prefilled - run->began) / (double)MS,
        [PREFILL_TOKENS] = (double)(run->seen.tokens.length - run->loaded),
        [GENERATE_TIME] = (double)(now_ns() - run->prefilled) / (double)MS,
        [GENERATE_TOKENS] = (double)run->generated,
        [MEMORY] = (double)usage.ru_maxrss / 1024,
    };
    for (int i = 0; i < PERF_NUMBERS; i++) {
        const Correction *correction = &run->answer->perf[i];
        if (correction->set)
            numbers[i] = correction->value + (correction->relative ? numbers[i] : 0);
    }
    return (RKLLMPerfStat){
        .prefill_time_ms = (float)numbers[PREFILL_TIME],
        .prefill_tokens = (int)numbers[PREFILL_TOKENS],
        .generate_time_ms = (float)numbers[GENERATE_TIME],
        .generate_tokens = (int)numbers[GENERATE_TOKENS],
        .memory_usage_mb = (float)numbers[MEMORY],
    };
}

void finish(Run *run)
{
    const Answer *answer = run->answer;
    const char *text = answer->finish_set ? rendered(run, &answer->finish) : nothing(run);
    /* The value of token_id in the FINISH callback is not documented. */
    int32_t id = roll(&run->dice, 2) == 0 ? -1 : run->last_id;
    RKLLMResult result = result_of(text, answer->cached == CACHE_ENDED ? END_TOKEN : id);
    result.perf = perf_of(run);
    deliver(run, RKLLM_RUN_FINISH, result);
}

/* ---- steps ---- */

static bool is_full(const Run *run)
{
    const Instance *instance = run->instance;
    if (run->seen.max_new_tokens > 0 && run->generated >= run->seen.max_new_tokens)
        return true;
    size_t used = instance->kv.length + run->seen.tokens.length + (size_t)run->generated;
    return instance->script->window_ends && used >= (size_t)instance->param.max_context_len;
}

static int32_t next_id(const Run *run)
{
    return (int32_t)(1000 + run->generated % 30000);
}

/* Stores a token of a batch, which is called back together with those of the other sequences. */
static bool keep_for_all(Run *run, const char *said, LLMCallState state)
{
    run->state = state;
    run->id = run->last_id;
    run->has_text = said != NULL;
    run->held.length = 0;
    buffer_add(&run->held, "", 0);
    if (said != NULL)
        buffer_add(&run->held, said, strlen(said));
    return true;
}

static bool say_text(Run *run, const char *said, int32_t id, LLMCallState state)
{
    run->last_id = id;
    if (run->seen.keep_history)
        tokens_add(&run->answered, id);
    if (run->seen.keep_history && said != NULL)
        buffer_add(&run->said, said, strlen(said));
    run->generated++;
    if (run->collects)
        return keep_for_all(run, said, state);
    int answer = deliver(run, state, result_of(said, run->last_id));
    return answer == 1 && !run->seen.keep_history ? end(run, END_PAUSED) : true;
}

static bool say(Run *run, const Step *step, const Text *text, LLMCallState state)
{
    const char *said = text == NULL ? nothing(run) : rendered(run, text);
    return say_text(run, said, step->id == ANY ? next_id(run) : (int32_t)step->id, state);
}

static bool spell(Run *run, const Step *step)
{
    const char *whole = rendered(run, step->texts);
    run->letters = strlen(whole);
    if (run->letters <= run->cursor.text)
        return true;
    char letter[] = {whole[run->cursor.text], '\0'};
    return say_text(run, letter, token_of_byte((unsigned char)letter[0]), RKLLM_RUN_NORMAL);
}

/* Executes the step at the cursor; returns false if the run has ended. */
static bool take_step(Run *run, const Step *step)
{
    bool alone = step->count == 0 || step->kind == STEP_SPELL;
    const Text *text = alone ? NULL : &step->texts[run->cursor.text];
    if (is_full(run))
        return end(run, END_FINISHED);
    wait_for_next(run, step);
    if (aborted(run))
        return end(run, END_ABORTED);
    switch (step->kind) {
    case STEP_SAY:
        return say(run, step, text, RKLLM_RUN_NORMAL);
    case STEP_SPELL:
        return spell(run, step);
    case STEP_WAITING:
        return say(run, step, text, RKLLM_RUN_WAITING);
    case STEP_ERROR:
        return fail(run, text == NULL ? nothing(run) : rendered(run, text));
    case STEP_CRASH:
        crash(text == NULL ? NULL : rendered(run, text));
    case STEP_HANG:
        wait_until(run, NEVER);
        return end(run, END_ABORTED);
    }
    return false;
}

static void advance(Run *run, const Step *step)
{
    Cursor *cursor = &run->cursor;
    if (++cursor->text >= (step->kind == STEP_SPELL ? run->letters : step->count)) {
        cursor->text = 0;
        cursor->round++;
    }
}

/* Returns the current step, skipping steps whose repetitions are done; NULL at the end. */
static const Step *current(Run *run)
{
    Cursor *cursor = &run->cursor;
    for (; cursor->step < run->answer->count; cursor->step++, cursor->round = 0) {
        const Step *step = &run->answer->steps[cursor->step];
        long times = step->times == ASKED ? seen_number(&run->seen) : step->times;
        if (cursor->round < times)
            return step;
    }
    return NULL;
}

bool speak_once(Run *run)
{
    long before = run->generated;
    run->end = END_FINISHED;
    /* A step may generate no token. */
    for (const Step *step; run->generated == before && (step = current(run)) != NULL;) {
        bool goes_on = take_step(run, step);
        advance(run, step);
        if (!goes_on)
            return false;
    }
    return run->generated > before;
}

void speak(Run *run)
{
    while (speak_once(run))
        ;
}
