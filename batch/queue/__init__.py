"""Batches through SQS: messages, workers and the bucket of results."""
