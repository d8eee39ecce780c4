"""Batch output: the journal of answers and the finished files."""
