/* State that runs share through the handle: the key-value cache and the prompt cache. */
#ifndef KEEP_H
#define KEEP_H

#include "run.h"

/* Empties the key-value cache. */
void forget_history(Instance *instance);
/* Ends the process if a run would continue from a cache that another adapter computed. */
void check_kept(const Run *run);
/* Counts the prompt's tokens that a loaded prompt cache covers. */
void use_prompt_cache(Run *run);
/* Counts the prompt's tokens that the run before has left, and keeps the prompt for the next run. */
void use_last_prompt(Run *run);

/* Updates the key-value cache after a run; saves the prompt cache if the run requested it. */
void remember(Run *run);
void save_cache(const Run *run);

#endif
