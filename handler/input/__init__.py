"""Parse a job's input and check it."""
