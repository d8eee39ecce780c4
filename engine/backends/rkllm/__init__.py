"""The backend for Rockchip's RKLLM runtime (`librkllmrt.so`), called through ctypes."""
