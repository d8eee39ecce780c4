"""The board: its driver, the NPU's state and lock, and what the doctor measured on it."""
