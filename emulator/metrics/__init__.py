"""The server's metrics, for `/metrics` and `/system/status`."""
