"""Answer lines with OpenAI-compatible servers in place of an engine of this process."""
