"""Batch output: the journal of answers, and the output and error files."""
