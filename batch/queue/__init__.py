"""Batches through SQS: messages, workers and the result bucket."""
