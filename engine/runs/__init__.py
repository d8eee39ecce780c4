"""One generation: the backend's run, its text up to a stop string, and its stream."""
