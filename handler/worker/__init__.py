"""Serve jobs: RunPod's worker, and one local job on a terminal."""
