/* Numbers in place of an answer; of a model of one's own they depend on every token before. */
#ifndef LOGITS_H
#define LOGITS_H

#include "run.h"

typedef struct {
    float *all;
    size_t count;
} Numbers;

/* A result with a row for each token that the run computes; `numbers` is what it points to. */
RKLLMResult numbers_of(Run *run, Numbers *numbers);
/* Makes them unreadable and frees them. */
void drop_numbers(Numbers *numbers);
/* Calls back with them, and that is all of the run. */
void give_numbers(Run *run);

#endif
