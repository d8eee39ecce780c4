"""The journal that keeps jobs in an SQLite database."""
