"""Traces for OpenTelemetry, from a request to its tokens; nothing of it is imported when off."""
