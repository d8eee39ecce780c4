"""Anthropic's Messages API without HTTP, as a dialect of chat completions."""
