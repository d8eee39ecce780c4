"""Side-by-side measurements of what the design promises; `python -m benchmarks`."""
