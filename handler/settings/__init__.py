"""Read the environment variables of the worker and the server into settings."""
