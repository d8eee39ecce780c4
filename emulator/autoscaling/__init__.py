"""Worker processes that the server starts and stops with the load."""
