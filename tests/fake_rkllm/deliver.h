/* How a result gets to the callback: from which thread, and in memory that does not last. */
#ifndef DELIVER_H
#define DELIVER_H

#include "run.h"

/* The result of a callback that is not FINISH: what only FINISH fills is full of nonsense. */
RKLLMResult result_of(const char *text, int32_t id);

/* Calls back and returns the answer, 0 to 2. Overwrites and frees what it passed afterwards. */
int deliver(Run *run, LLMCallState state, RKLLMResult result);
/* The same of a run with several places, and a result for each. */
void deliver_all(Run *run, LLMCallState state, const RKLLMResult *results);

/* Calls `generate(run)` on the thread, or threads, on which the run's callbacks are to be made. */
void on_its_thread(Run *run, void (*generate)(Run *run));

/* Whether this thread is inside a callback. */
bool inside_callback(void);

/* Leaves a thread behind that calls back after the run has returned. */
void leave_late_callbacks(const Run *run);

#endif
