"""Side-by-side benchmarks for the budgets of the design; `python -m benchmarks`."""
