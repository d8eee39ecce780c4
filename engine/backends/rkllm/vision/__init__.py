"""Images: their pixels, their embeddings from a vision encoder, and prompts with images."""
