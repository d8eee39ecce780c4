"""The server processes of the benchmarks: our server as shipped, and the peers."""
