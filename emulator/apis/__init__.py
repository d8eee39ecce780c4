"""The HTTP routes of the public APIs."""
