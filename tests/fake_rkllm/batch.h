/* A run of n_batch prompts, whose answers go on in step. */
#ifndef BATCH_H
#define BATCH_H

#include "run.h"

/* Does what there is to do between the begin and the end of a run that has several places. */
void generate_batch(Run *run);

#endif
