"""Kernels and the engine on a GPU."""
