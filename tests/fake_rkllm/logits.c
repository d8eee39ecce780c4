#include "logits.h"

#include <string.h>

uint32_t hash_of(uint32_t before, const int32_t *ids, size_t count)
{
    uint32_t hash = before;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ (uint32_t)ids[i]) * 16777619u;
    return hash;
}

void fill_logits(const Run *run, float *numbers, int columns)
{
    uint32_t hash = run->instance->history_hash;
    const char *lora = run->seen.lora;
    for (size_t row = 0; row < run->seen.tokens; row++) {
        hash = hash_of(hash, &run->seen.ids[row], 1);
        /* An adapter is told by the length of its name. */
        uint32_t state = hash + (lora == NULL ? 0 : (uint32_t)strlen(lora));
        for (uint32_t column = 0; column < (uint32_t)columns; column++) {
            uint32_t mixed = (state ^ (column * 2654435761u)) * 2246822519u;
            *numbers++ = (float)((mixed >> 16) % 1000) / 100;
        }
    }
}
