"""ASGI middleware: request ids, authentication, rate limits, fault injection."""
