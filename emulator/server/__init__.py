"""The server process: connections, limits, start, shutdown and memory."""
