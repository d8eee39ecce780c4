"""Reuse of computed prompts: the key-value cache between runs."""
