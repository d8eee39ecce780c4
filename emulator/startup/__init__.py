"""Build the objects of a server from its settings, after checking that it can start."""
