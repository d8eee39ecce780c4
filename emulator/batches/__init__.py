"""OpenAI's `/v1/files` and `/v1/batches`: files of requests that the server answers by itself."""
