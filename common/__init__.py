"""General helpers that know nothing of models, jobs or settings."""
