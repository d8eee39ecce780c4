"""The server processes that benchmarks start: ours as it ships, and the peers."""
