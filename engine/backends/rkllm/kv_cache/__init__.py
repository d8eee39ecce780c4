"""Reuse of computed prompts: the key-value cache between runs, and prompt cache files."""
