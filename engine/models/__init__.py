"""Several models on one machine: an engine for each, and the memory that they share."""
