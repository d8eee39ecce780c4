/* Calls the result callback: on the chosen thread, with memory that is freed afterwards. */
#ifndef DELIVER_H
#define DELIVER_H

#include "run.h"

/* Returns a result for a state other than FINISH; the fields that only FINISH sets hold garbage. */
RKLLMResult result_of(const char *text, int32_t id);

/* Calls back and returns the answer, 0 to 2. Overwrites and frees what it passed afterwards. */
int deliver(Run *run, LLMCallState state, RKLLMResult result);
/* The same for a batch, with one result per sequence. */
void deliver_all(Run *run, LLMCallState state, const RKLLMResult *results);

/* Calls `generate(run)` on the thread, or threads, that make the run's callbacks. */
void on_its_thread(Run *run, void (*generate)(Run *run));

/* Whether this thread is inside a callback. */
bool inside_callback(void);

/* Starts a thread that calls back after the run has returned. */
void leave_late_callbacks(const Run *run);

#endif
