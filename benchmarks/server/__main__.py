"""`python -m forktree.benchmarks.server`: forktree's server beside the engine alone and beside other servers.

    overhead    the server and the engine in processes of their own, in turn, on the same requests
    servers     each server in turn; then a first request behind a system prompt of 2,000 tokens, and later ones

Client and server have the machine in common. Nothing else should run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator

from forktree.benchmarks.peers import PEERS
from forktree.benchmarks.server import chats, servers
from forktree.benchmarks.server.client import Driven, Timing, drive
from forktree.benchmarks.server.levels import HEADER, Contestant, measure

PARTS = ("overhead", "servers")
KINDS = {
    "forktree": servers.forktree,
    "vllm": servers.vllm,
    "llama.cpp": lambda: servers.llama_cpp("--logits_all", "false"),
}
_NUM_REVIEWS, _NUM_LATER = 3, 5


def main() -> None:
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    levels = [int(level) for level in args.clients.split(",")]
    for part in args.parts.split(","):
        print(f"\n{part}\n", flush=True)
        match part:
            case "overhead":
                overhead(levels, args)
            case "servers":
                beside(levels, args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated (default: all)")
    parser.add_argument("--clients", default="1,8,32", help="comma-separated (default: %(default)s)")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--against", default="vllm,llama.cpp", help="comma-separated, or an empty text")
    for name in ("vllm", "llama.cpp"):
        parser.add_argument(PEERS[name].option, dest=name, help=f"an interpreter that has {name}")
    args = parser.parse_args()
    if unknown := set(args.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    if unknown := set(filter(None, args.against.split(","))) - set(KINDS):
        parser.error(f"--against: {', '.join(sorted(unknown))} is none of {', '.join(KINDS)}")
    return args


def num_requests(num_clients: int) -> int:
    return max(6, 2 * num_clients)


# --- the parts ---------------------------------------------------------------------------------------------


def overhead(levels: list[int], args: argparse.Namespace) -> None:
    print(HEADER)
    ratios = []
    with servers.started(servers.forktree()) as server, _engine() as engine:
        contestants = [_contestant(server), engine]
        for number, level in enumerate(levels):
            _warm(contestants)
            rows = measure(contestants, level, num_requests(level), args.reps, 10_000 * (number + 1))
            print("\n".join(row.line() for row in rows), flush=True)
            pairs = zip(rows[0].runs, rows[1].runs, strict=True)
            ratios.append((level, statistics.median(alone.seconds / served.seconds for served, alone in pairs)))
    for level, ratio in ratios:
        print(f"\n{level} clients: {100 * ratio:.1f} % of the engine's throughput (median of {args.reps} pairs)")


def beside(levels: list[int], args: argparse.Namespace) -> None:
    print(HEADER)
    reviews = []
    for kind, python in _kinds(args):
        with servers.started(kind, python) as server:
            contestants = [_contestant(server)]
            for number, level in enumerate(levels):
                _warm(contestants)
                rows = measure(contestants, level, num_requests(level), args.reps, 10_000 * (number + 1))
                print("\n".join(row.line() for row in rows), flush=True)
            reviews.append(review(server))
    print("\n| server | first request's first token, ms | later ones', ms | later / first | cached tokens |")
    print("|---|---|---|---|---|")
    print("\n".join(reviews), flush=True)


def review(server: servers.Serving) -> str:
    """A row: a first request behind rules that the server has not seen, then five more; three times."""
    firsts, laters = list[Timing](), list[Timing]()
    for number in range(_NUM_REVIEWS):
        first, *later = _one_by_one(server, chats.review(number), 1 + _NUM_LATER)
        firsts.append(first)
        laters += later
    first_s = statistics.median(one.first_s for one in firsts)
    later_s = statistics.median(one.first_s for one in laters)
    last = laters[-1]
    cached = "not told" if last.num_cached is None else f"{last.num_cached} of {last.num_prompt_tokens}"
    cells = (f"{1e3 * first_s:.0f}", f"{1e3 * later_s:.0f}", f"{later_s / first_s:.2f}", cached)
    return f"| {server.name} | {' | '.join(cells)} |"


# --- who takes part ----------------------------------------------------------------------------------------


def _kinds(args: argparse.Namespace) -> Iterator[tuple[servers.Kind, str]]:
    for name in ("forktree", *filter(None, args.against.split(","))):
        kind, chosen = KINDS[name](), getattr(args, name, None)
        python = servers.interpreter(kind, chosen)
        if python is None:
            print(PEERS[name].missing(PEERS[name].python(chosen)), file=sys.stderr)
        else:
            yield kind, python


def _contestant(server: servers.Serving) -> Contestant:
    load = chats.chat()

    def run(num_clients: int, count: int, begin: int) -> Driven:
        return drive(server, load.bodies(begin), num_clients=num_clients, num_requests=count)

    return Contestant(f"{server.name} serve" if server.name == "forktree" else server.name, server.pid, run)


def _warm(contestants: list[Contestant]) -> None:
    """Bring the system prompt into the caches."""
    for each in contestants:
        each.drive(1, 1, 9_999)


def _one_by_one(server: servers.Serving, load: chats.Load, count: int) -> list[Timing]:
    return drive(server, load.bodies(0), num_clients=1, num_requests=count).timings


@contextlib.contextmanager
def _engine() -> Iterator[Contestant]:
    """The engine alone, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "forktree.benchmarks.server.engine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to_it, from_it = process.stdin, process.stdout

    def run(num_clients: int, count: int, begin: int) -> Driven:
        to_it.write(f"{num_clients} {count} {begin}\n")
        to_it.flush()
        answer = json.loads(from_it.readline())
        return Driven([Timing(**timing) for timing in answer["timings"]], answer["seconds"])

    try:
        from_it.readline()
        yield Contestant("the engine alone", process.pid, run)
    finally:
        to_it.close()
        process.wait()


if __name__ == "__main__":
    main()
