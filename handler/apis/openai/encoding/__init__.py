"""Encode the answers of chat and text completions: whole, or as the events of a stream."""
