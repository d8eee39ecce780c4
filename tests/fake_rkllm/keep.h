/* What a run leaves on the handle for the next one, and what it takes from there. */
#ifndef KEEP_H
#define KEEP_H

#include "run.h"

/* Empties the key-value cache. */
void forget_history(Instance *instance);
/* Ends the process for a run that would go on from what another adapter computed. */
void check_kept(const Run *run);
/* Counts what a loaded prompt cache saves of the prompt. */
void use_prompt_cache(Run *run);

/* What is there afterwards: in the key-value cache, and in a file if the run asked for one. */
void remember(Run *run);
void save_cache(const Run *run);

#endif
