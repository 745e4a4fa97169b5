"""The engine's machine for minutes: `python tests/support/machine_long.py --seconds 300`.

Rounds of random examples, each round from a fresh seed, until the time is over; a fault ends its round, is printed as
hypothesis shrank it, and the next round begins. Exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from engine_machine import EngineMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--steps", type=int, default=80, help="of one example")
    arguments = parser.parse_args()
    num_examples, num_faults, done, ended = 0, 0, Counter[str](), Counter[str]()

    class Counted(EngineMachine):
        def teardown(self) -> None:
            nonlocal num_examples
            num_examples += 1
            super().teardown()
            done.update(self.num_done)
            ended.update(self.num_ended)

    chosen = settings(
        max_examples=100,
        stateful_step_count=arguments.steps,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    started_s = time.monotonic()
    while time.monotonic() - started_s < arguments.seconds:
        try:
            run_state_machine_as_test(Counted, settings=chosen)
        except Exception:
            num_faults += 1
            traceback.print_exc()
    seconds = time.monotonic() - started_s
    print(f"{num_examples:,} examples, {sum(done.values()):,} rules in {seconds:.0f} s; {num_faults} faults")
    print("rules:", ", ".join(f"{name} {count:,}" for name, count in sorted(done.items())))
    print("requests that ended:", ", ".join(f"{name} {count:,}" for name, count in sorted(ended.items())))
    sys.exit(bool(num_faults))


if __name__ == "__main__":
    main()
