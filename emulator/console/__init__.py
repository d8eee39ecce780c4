"""The web console at `/`, and the routes that only the console uses."""
