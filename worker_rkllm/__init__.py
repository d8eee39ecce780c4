"""The command `worker-rkllm`, the one entry point and the one import name of an installation."""
