"""Files of prompts, each answered once: OpenAI's batch format and plain jobs."""
