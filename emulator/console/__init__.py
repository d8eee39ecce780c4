"""The page at `/`: what people see of the server, and the few routes that it alone needs."""
