"""Examine a backend in a process of its own, step by step."""
