"""Every parser of untrusted input for a bounded time: `python tests/support/fuzz_long.py --seconds 300 [--only NAME]`.

Each target has the same share of the time, in rounds of fresh random inputs. A fault is printed with the input that
hypothesis shrank it to, and the target goes on. Exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import resource
import sys
import time
import traceback
import warnings
from base64 import b85encode
from pathlib import Path

from fuzz_routes import server_targets
from fuzz_targets import parser_targets
from fuzzing import Target
from hypothesis import HealthCheck, given, settings

_ROOM_BYTES = 6 << 30  # of address space, beyond what the process has when it begins


def fuzz(target: Target, seconds: float) -> int:
    """Returns the number of faults."""
    num_taken = num_refused = num_faults = 0
    slowest_s, worst, last = 0.0, b"", b""

    def feed(data: bytes) -> None:
        nonlocal num_taken, num_refused, slowest_s, worst, last
        last, started_s = data, time.process_time()
        is_taken = target.accepts(data)
        num_taken, num_refused = num_taken + is_taken, num_refused + (not is_taken)
        if time.process_time() - started_s > slowest_s:
            slowest_s, worst = time.process_time() - started_s, data

    chosen = settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    started_s = time.monotonic()
    while time.monotonic() - started_s < seconds:
        try:
            settings(chosen, report_multiple_bugs=False)(given(target.inputs())(feed))()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            num_faults += 1
            print(f"  fault: {type(error).__name__}: {str(error)[:300]}\n    {last[:200]!r}", flush=True)
            print(f"    at {_place_of(error)}", flush=True)
            if num_faults == 5:
                break
    print(
        f"{target.name:28} {num_taken:7,} taken {num_refused:7,} refused {num_faults} faults, "
        f"slowest {slowest_s:.2f} s",
        flush=True,
    )
    if slowest_s > 1:
        print(f"    {b85encode(worst).decode()[:400]}", flush=True)
    return num_faults


def _place_of(error: BaseException) -> str:
    """The innermost line of forktree itself."""
    places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    own = [place for place in places if "site-packages" not in place and "/lib/python" not in place]
    return (own or places)[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", default="", help="targets whose name has this")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with server_targets() as served:
        targets = [target for target in (*parser_targets(), *served) if arguments.only.lower() in target.name.lower()]
        for target in targets:
            with contextlib.suppress(Exception):  # what is loaded at the first use is not the input's doing
                target.accepts(target.seeds[0])
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
        started_s = time.monotonic()
        num_faults = sum(fuzz(target, arguments.seconds / len(targets)) for target in targets)
        print(f"{len(targets)} targets in {time.monotonic() - started_s:.0f} s; {num_faults} faults")
    sys.exit(bool(num_faults))


if __name__ == "__main__":
    main()
