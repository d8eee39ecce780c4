"""The program that a worker runs: the handler's file, its Python, its settings and its volume."""
