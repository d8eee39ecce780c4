"""Ollama's API over HTTP."""
