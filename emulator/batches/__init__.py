"""OpenAI's Batch API: `/v1/files`, `/v1/batches`, and the batches that run in the background."""
