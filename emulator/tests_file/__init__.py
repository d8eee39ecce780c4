"""The file with the tests of a handler, `tests.json`: read it, and add a kept job to it."""
