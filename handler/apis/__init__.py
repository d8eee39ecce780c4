"""The public APIs: their bodies become calls of the pipeline, and its answers their replies."""
