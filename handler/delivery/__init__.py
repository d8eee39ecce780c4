"""Deliver results: size limits, buckets, stored bytes, and the addresses that a job may name."""
