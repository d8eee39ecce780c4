/* A model of one's own: numbers for the next token that depend on every token before it. */
#ifndef LOGITS_H
#define LOGITS_H

#include "run.h"

/* Fills a row of `columns` numbers for each token that the run computes, all that was kept coming
 * before them. */
void fill_logits(const Run *run, float *numbers, int columns);

#endif
