/* A model of one's own: numbers for the next token that depend on every token before it. */
#ifndef LOGITS_H
#define LOGITS_H

#include "run.h"

/* What is left of some tokens that come after others, of whom `before` is left. */
uint32_t hash_of(uint32_t before, const int32_t *ids, size_t count);

/* Fills a row of `columns` numbers for each token of the run, which comes after what was kept. */
void fill_logits(const Run *run, float *numbers, int columns);

#endif
