"""`worker-rkllm torture`: run a client against streams of known shapes, and judge its output."""
