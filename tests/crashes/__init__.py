"""Tests that kill the server: each acknowledged job must exist, with one result."""
