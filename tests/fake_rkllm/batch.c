/* Several prompts in one run: an array of inputs, and an array of results in each callback.
 *
 * The manual (3.2.14) documents: all sequences are called back together; a sequence with a
 * negative token id has ended, and its text may be NULL; the run ends when all sequences have
 * ended. What the manual leaves open is chosen at random: the text of an ended sequence,
 * whether there is one more callback when all have ended, and the state if one sequence waits
 * for the rest of a character. */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

#include "deliver.h"
#include "keep.h"
#include "logits.h"
#include "speak.h"

/* If one sequence is refused or does not fit the context, the whole run fails. */
static bool accept_all(Run *run)
{
    if (run->seen.keep_history || run->seen.saves_cache)
        refuse("rkllm_run: what several sequences leave in a cache, nobody has seen");
    /* The real library's message (rknn-llm#406). */
    if (run->seen.mode == RKLLM_INFER_GET_LOGITS)
        return fail_silently(run, "Getting the logits is not supported for multiple batches.");
    for (size_t i = 0; i < run->places; i++) {
        Run *one = &run->sequences[i];
        one->stage = run->stage;
        one->abort_takes_ns = run->abort_takes_ns;
        if (!accept(one)) {
            run->status = one->status;
            return end(run, END_FAILED);
        }
        log_context(one);
    }
    return true;
}

/* Collects the next token of each active sequence; returns their number. If one waits for the rest
 * of a character, either the state of the whole callback is WAITING or its text is NULL. */
static size_t collect(Run *run, RKLLMResult *results, LLMCallState *state)
{
    size_t said = 0;
    bool tells = roll(&run->dice, 2);
    *state = RKLLM_RUN_NORMAL;
    for (size_t i = 0; i < run->places; i++) {
        Run *one = &run->sequences[i];
        results[i] = result_of(nothing(one), -1);
        if (one->over)
            continue;
        one->collects = true;
        one->over = !speak_once(one);
        if (one->over && one->end != END_FINISHED) {
            /* An error or an abort ends the whole batch. */
            run->status = one->status;
            end(run, one->end);
            return 0;
        }
        if (one->over)
            continue;
        said++;
        bool waits = one->state == RKLLM_RUN_WAITING;
        results[i] = result_of(one->has_text && (tells || !waits) ? one->held.bytes : NULL, one->id);
        if (waits && tells)
            *state = RKLLM_RUN_WAITING;
    }
    run->generated += (long)said;
    return said;
}

static void speak_together(Run *run)
{
    RKLLMResult *results = take(run->places * sizeof *results);
    LLMCallState state;
    run->end = END_FINISHED;
    bool more = true;
    while (more && run->end == END_FINISHED) {
        more = collect(run, results, &state) > 0;
        if (run->end == END_FINISHED && (more || roll(&run->dice, 2) == 0))
            deliver_all(run, state, results);
    }
    free(results);
}

static void give_all_numbers(Run *run)
{
    RKLLMResult *results = take(run->places * sizeof *results);
    Numbers *numbers = take(run->places * sizeof *numbers);
    for (size_t i = 0; i < run->places; i++)
        results[i] = numbers_of(&run->sequences[i], &numbers[i]);
    deliver_all(run, RKLLM_RUN_NORMAL, results);
    for (size_t i = 0; i < run->places; i++)
        drop_numbers(&numbers[i]);
    free(numbers);
    free(results);
    run->end = END_FINISHED;
}

void generate_batch(Run *run)
{
    run->began = run->prefilled = now_ns();
    forget_history(run->instance);
    if (!accept_all(run))
        return;
    bool finishes = true;
    for (size_t i = 0; i < run->places; i++) {
        Run *one = &run->sequences[i];
        /* Prompts are prefilled one after the other. */
        one->began = now_ns();
        print_lines(&one->answer->printed);
        prefill(one);
        finishes = finishes && one->answer->finishes;
    }
    run->prefilled = now_ns();
    for (size_t i = 0; i < run->places; i++)
        run->sequences[i].due = run->prefilled;
    if (run->seen.mode == RKLLM_INFER_GENERATE)
        speak_together(run);
    else
        give_all_numbers(run);
    if (finishes && (run->end == END_FINISHED || (run->end == END_ABORTED && run->abort_finishes)))
        finish(run);
}
