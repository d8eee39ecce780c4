"""OpenAI's bodies to the pipeline and back, shared by jobs, the emulator and batches."""
