"""`python -m forktree.benchmarks …` is `forktree bench …`."""

from __future__ import annotations

import sys

from forktree.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
