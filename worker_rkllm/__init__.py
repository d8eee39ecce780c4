"""The command `worker-rkllm`, the one entry point of the installed package."""
