"""Run one job: its output, its result, and its attempts after a crash."""
