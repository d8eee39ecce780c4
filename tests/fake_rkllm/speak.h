/* The tokens of an answer, one by one and in time. */
#ifndef SPEAK_H
#define SPEAK_H

#include "run.h"

#define NEVER UINT64_MAX

/* Says what stands in the script until it ends, or the run is to. */
void speak(Run *run);
/* Says the next token; false when there is none, since the run is over. */
bool speak_once(Run *run);
/* Calls back in state FINISH. */
void finish(Run *run);

/* Waits until then, or until the run is to stop. */
void wait_until(Run *run, uint64_t due);
/* What stands for no text where a script does not say. */
const char *nothing(Run *run);

/* Both return false, for the run is over: how it ended; the same after an ERROR callback. */
bool end(Run *run, End how);
bool fail(Run *run, const char *text);

#endif
