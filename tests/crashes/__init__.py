"""The server under kills: what it acknowledged must be there, and be there once."""
