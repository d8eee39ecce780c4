/* A run of n_batch prompts, which generates one token for each per step. */
#ifndef BATCH_H
#define BATCH_H

#include "run.h"

/* Runs a batch, between the setup and the end of its run. */
void generate_batch(Run *run);

#endif
