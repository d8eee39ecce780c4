#include "logits.h"

#include <string.h>

/* What is left of no tokens. */
static const uint32_t NO_HASH = 2166136261u;

/* What is left of some tokens and one more. */
static uint32_t hash_of(uint32_t before, int32_t id)
{
    return (before ^ (uint32_t)id) * 16777619u;
}

void fill_logits(const Run *run, float *numbers, int columns)
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
        /* An adapter is told by the length of its name. */
        uint32_t state = hash + (lora == NULL ? 0 : (uint32_t)strlen(lora));
        for (uint32_t column = 0; column < (uint32_t)columns; column++) {
            uint32_t mixed = (state ^ (column * 2654435761u)) * 2246822519u;
            *numbers++ = (float)((mixed >> 16) % 1000) / 100;
        }
    }
}
