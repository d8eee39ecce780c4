"""The end of an engine process: its reason, the requests on it, and the next start."""
