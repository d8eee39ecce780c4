"""Batch input: reading lines, and checking them before a model is loaded."""
