"""What the server counts and measures: one set of numbers for `/metrics` and `/system/status`."""
