"""Models: fetching, loading, layers and the runner that computes a step."""

import os
import sys

# libgomp reads this once, when torch loads it. Its own default lets a waiting thread spin for milliseconds: on a
# machine whose cores are busy with other work that made a step three times slower, and on a quiet one it gains
# nothing measurable.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
