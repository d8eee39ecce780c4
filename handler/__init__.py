"""The job boundary: a job's input to one JSON, by way of the engine and validation."""
