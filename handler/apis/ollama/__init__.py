"""Ollama's API without HTTP."""
