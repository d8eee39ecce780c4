"""Show how the server and its workers are: health, and the workers of RunPod's REST API v2."""
