"""The part of RunPod's REST API v2 that shows the workers of an endpoint, and their logs."""
