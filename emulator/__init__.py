"""A local RunPod: the platform's routes and OpenAI's on this machine."""
