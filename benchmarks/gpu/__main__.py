"""Check every GPU kernel, time it, and run the engine in the shape of an 8-billion Llama. Ten minutes on one H200.

    python -m forktree.benchmarks.gpu [--json FILE] [--parts kernels,engine,transformers]
    TRITON_INTERPRET=1 python -m forktree.benchmarks.gpu --toy     the whole way on a CPU: no figure of a device

Exits with 1 where a kernel differs from its reference.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

PARTS = ("kernels", "engine", "transformers")
_TOLERANCE = {"torch.float32": 1e-4, "torch.bfloat16": 3e-2, "torch.float16": 5e-3}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m forktree.benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="tiny sizes on the CPU, kernels interpreted")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument("--json", type=Path, help="write the rows to a file")
    args = parser.parse_args(arguments)
    parts = args.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--parts takes {', '.join(PARTS)}, not {', '.join(unknown)}")
    if args.toy:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
    from forktree.benchmarks.gpu.run import NoDeviceError, Run

    try:
        run = Run(is_toy=args.toy)
    except NoDeviceError as error:
        print(error, file=sys.stderr)
        return 2
    start = time.perf_counter()
    print(run.heading())
    for part in parts:
        for line in getattr(run, part)(_TOLERANCE):
            print(line, flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in run.rows], indent=1), encoding="utf-8")
    if run.failures:
        print(f"{len(run.failures)} kernels differ from their references: {'; '.join(run.failures)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
