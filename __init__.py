"""forktree."""
