"""Read the environment variables of the server, and the limits and policies in them."""
