"""The command `doctor`: examine an engine, try what only a board can decide, write a report."""
