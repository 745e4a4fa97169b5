"""The command line's door: `python -m forktree`, `forktree`."""

import sys

from forktree.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
