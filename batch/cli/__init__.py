"""The commands of `python -m batch`."""
