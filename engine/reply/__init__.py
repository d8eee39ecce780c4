"""Reads a model's output: its reasoning, its text and its tool calls."""
