/* Generates the tokens of an answer at their times. */
#ifndef SPEAK_H
#define SPEAK_H

#include "run.h"

#define NEVER UINT64_MAX

/* Generates the script's tokens until the script ends or the run must end. */
void speak(Run *run);
/* Generates the next token; returns false if the run has ended. */
bool speak_once(Run *run);
/* Calls back in state FINISH. */
void finish(Run *run);
/* Returns the statistics of a run at this time, with the script's corrections. */
RKLLMPerfStat perf_of(const Run *run);

/* Waits until `due`, or until the run must stop. */
void wait_until(Run *run, uint64_t due);
/* Whether an abort has taken effect. */
bool aborted(const Run *run);
/* Returns an empty text or NULL at random, for results without text. */
const char *nothing(Run *run);

/* End the run and return false; `fail` makes an ERROR callback first. */
bool end(Run *run, End how);
bool fail(Run *run, const char *text);

#endif
