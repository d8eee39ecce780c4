/* Hidden states and logits instead of an answer; with `vocabulary` they depend on all tokens. */
#ifndef LOGITS_H
#define LOGITS_H

#include "run.h"

typedef struct {
    float *all;
    size_t count;
} Numbers;

/* Returns a result with a row for each token that the run computes; it points into `numbers`. */
RKLLMResult numbers_of(Run *run, Numbers *numbers);
/* Overwrites the numbers and frees them. */
void drop_numbers(Numbers *numbers);
/* Runs a request for numbers: one callback with the result. */
void give_numbers(Run *run);

#endif
