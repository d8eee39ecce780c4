"""Opt-in mode RKLLM_MODE=logits: tokens are sampled here, from the runtime's logits."""
