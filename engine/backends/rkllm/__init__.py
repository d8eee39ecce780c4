"""Rockchip's RKLLM runtime (`librkllmrt.so`) through ctypes."""
