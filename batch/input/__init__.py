"""Batch input: where lines come from, and the check before a model is loaded."""
