"""Runs of the runtime: their inputs, their state, their results."""
