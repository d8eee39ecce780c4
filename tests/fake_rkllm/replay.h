/* Plays recorded loads and runs back: docs/recordings.md has the format of a recording, and
 * replay.py turns one into a script. */
#ifndef REPLAY_H
#define REPLAY_H

#include "run.h"

/* The position of an init in the recorded processes, both from 1; 0 in a script without any. */
typedef struct {
    long process;
    long init;
} Position;

/* Counts an init of a model and returns its position. The file MODEL.processes counts the
 * processes, because a process that crashed is followed by the next recorded one. Beyond the
 * recorded processes and inits, the last one repeats. */
Position next_position(const Script *script, const char *model);
/* Returns the recorded load at a position, or NULL. */
const Load *load_at(const Script *script, Position position);
/* Prints the load's lines and returns its return value at the recorded time. */
int replay_load(const Load *load);

/* Makes the callbacks of a recorded run at their recorded times. */
void replay(Run *run);

#endif
