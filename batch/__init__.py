"""Offline batches: answer each line of a file once, in OpenAI's batch format or as plain jobs."""
