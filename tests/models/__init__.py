"""Small models for the tests, generated as GGUF files: llama.cpp runs them as it runs real ones."""
