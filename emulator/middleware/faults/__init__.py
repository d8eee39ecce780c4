"""Faults that a client requests for itself, to test how it handles them."""
