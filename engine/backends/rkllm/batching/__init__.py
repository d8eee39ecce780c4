"""Opt-in mode RKLLM_N_BATCH: several requests share one run of the runtime."""
