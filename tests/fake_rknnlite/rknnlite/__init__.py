"""A fake of the package of rknn-toolkit-lite2, for tests without a board."""
