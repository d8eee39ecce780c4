#include "logits.h"

#include <stdlib.h>
#include <string.h>

#include "deliver.h"
#include "speak.h"

/* The hash of no tokens. */
static const uint32_t NO_HASH = 2166136261u;

/* Returns the hash of some tokens and one more. */
static uint32_t hash_of(uint32_t before, int32_t id)
{
    return (before ^ (uint32_t)id) * 16777619u;
}

static void fill_numbers(const Run *run, float *numbers, int columns)
{
    const Tokens *kv = &run->instance->kv, *own = &run->seen.tokens;
    uint32_t hash = NO_HASH;
    for (size_t i = 0; i < kv->length; i++)
        hash = hash_of(hash, kv->ids[i]);
    const char *lora = run->seen.lora;
    for (size_t row = 0; row < own->length; row++) {
        hash = hash_of(hash, own->ids[row]);
        if (row < run->loaded)
            continue;
        /* Adapters differ by the length of their names. */
        uint32_t state = hash + (lora == NULL ? 0 : (uint32_t)strlen(lora));
        for (uint32_t column = 0; column < (uint32_t)columns; column++) {
            uint32_t mixed = (state ^ (column * 2654435761u)) * 2246822519u;
            *numbers++ = (float)((mixed >> 16) % 1000) / 100;
        }
    }
}

/* Without `vocabulary`, the value in row r and column c is r + c / 100. */
RKLLMResult numbers_of(Run *run, Numbers *numbers)
{
    bool hidden = run->seen.mode == RKLLM_INFER_GET_LAST_HIDDEN_LAYER;
    bool of_tokens = run->seen.type == RKLLM_INPUT_TOKEN && run->instance->script->vocabulary > 0;
    int columns = hidden      ? EMBEDDING
                  : of_tokens ? (int)run->instance->script->vocabulary
                              : VOCABULARY;
    int rows = (int)(run->seen.tokens.length - run->loaded);
    numbers->count = (size_t)columns * (size_t)rows;
    float *all = numbers->all = take(numbers->count * sizeof *all);
    if (of_tokens)
        fill_numbers(run, all, columns);
    else
        for (size_t i = 0; i < numbers->count; i++)
            all[i] = (float)(run->loaded + i / (size_t)columns) +
                     (float)(i % (size_t)columns) / 100;
    RKLLMResult result = result_of(nothing(run), -1);
    if (hidden)
        result.last_hidden_layer = (RKLLMResultLastHiddenLayer){all, columns, rows};
    else
        result.logits = (RKLLMResultLogits){all, columns, rows};
    return result;
}

void drop_numbers(Numbers *numbers)
{
    spoil(numbers->all, (char)0xa5, numbers->count * sizeof *numbers->all);
    free(numbers->all);
}

void give_numbers(Run *run)
{
    Numbers numbers;
    int answer = deliver(run, RKLLM_RUN_NORMAL, numbers_of(run, &numbers));
    log_call("numbers run=%lu rows=%zu answer=%d", run->number,
             run->seen.tokens.length - run->loaded, answer);
    drop_numbers(&numbers);
    run->end = END_FINISHED;
}
