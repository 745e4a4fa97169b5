"""Workloads, and side-by-side runs against other engines. `forktree bench` is the door to most of them."""
