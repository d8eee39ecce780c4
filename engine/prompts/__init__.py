"""Render chats and tools to prompts, and estimate their size."""
