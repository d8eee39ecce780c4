"""Generate one answer: collect it, limit its reasoning, redact it."""
