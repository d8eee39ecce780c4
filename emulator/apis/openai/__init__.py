"""OpenAI's API over HTTP, answered by the engine or through the job queue."""
