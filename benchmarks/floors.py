"""The least time that the workloads can take on this machine: `python -m forktree.benchmarks.floors`.

A pass reads every weight once, and the keys and values of every distinct token that its rows look at; and it does the
products of its rows. It takes at least as long as the slower of the two, at the rates that the machine reaches: memory
read from end to end, and float32 products of large matrices. An int8 product instruction does four in the place of
one, so the rate of int8 is four times that of float32; `"auto"` computes 16-bit inputs as two int8 digits.

What is *not* in a floor: norms, activations, drawing, text, and starting anything. And it holds for plain decoding, one
token a sequence and pass: guesses that stand, and tokens that a constraint forces, may beat it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from forktree.benchmarks import workloads as W


@dataclass(frozen=True, slots=True)
class Machine:
    """What it reaches: bytes read, and float32 operations (a product and a sum are two), a second."""

    bytes_per_s: float
    ops_per_s: float


@dataclass(frozen=True, slots=True)
class Model:
    """The built-in model in one precision.

    Attributes:
        layer_weights, head_weights: their numbers; the head is used by rows that want logits.
        layer_bytes, head_bytes: of one weight, scales included.
        rate: operations of the linear layers in the time of one float32 operation.
    """

    layer_bytes: float
    head_bytes: float
    rate: float
    layer_weights: int = 106_168_320
    head_weights: int = 28_311_552
    num_layers: int = 30
    width: int = 576  # of queries, all heads
    kv_bytes: int = 2 * 30 * 192 * 4  # of one token


MODELS = {
    "auto": Model(
        layer_bytes=20 / 32, head_bytes=34 / 32, rate=2.0
    ),  # blocks Q4_1 and Q8_0; four int8 products for one, two digits
    "none": Model(layer_bytes=4, head_bytes=4, rate=1.0),
}


class Passes(NamedTuple):
    """So many equal passes: rows, those with logits, distinct tokens that are read, and the sum of rows' contexts."""

    count: float
    rows: float
    logits: float
    read: float
    attended: float


def seconds(passes: list[Passes], model: Model, machine: Machine) -> float:
    return sum(one.count * _seconds_of_one(one, model, machine) for one in passes)


def _seconds_of_one(one: Passes, model: Model, machine: Machine) -> float:
    weights = model.layer_weights * model.layer_bytes + model.head_weights * model.head_bytes
    linear = 2 * (one.rows * model.layer_weights + one.logits * model.head_weights)
    attention = 4 * one.attended * model.width * model.num_layers
    read_s = (weights + one.read * model.kv_bytes) / machine.bytes_per_s
    compute_s = (linear / model.rate + attention) / machine.ops_per_s
    return max(read_s, compute_s)


def prefill(seqs: int, new: float, held: float = 0, *, shared: bool = False) -> Passes:
    """One pass over `new` tokens of each sequence behind `held` ones, which all share or each has for itself."""
    read = held * (1 if shared else seqs)
    return Passes(1, seqs * new, seqs, read, seqs * new * (held + new / 2))


def decode(seqs: int, steps: int, own: float, trunk: float = 0, num_trunks: int = 1) -> Passes:
    """`steps` passes of one row each, behind `own` tokens at first and a trunk that is read once for its branches."""
    own += steps / 2
    return Passes(steps, seqs, seqs, num_trunks * trunk + seqs * own, seqs * (trunk + own))


def _w1(n: int) -> list[Passes]:
    return [prefill(n, 64), decode(n, 63, 64)]


def _w3_gen() -> list[Passes]:
    return [prefill(1, 1500), prefill(64, 40, 1500, shared=True), decode(64, 7, 40, 1500)]


def _w3_select() -> list[Passes]:
    few = W.w3()
    nodes = mean(len({tuple(c[:i]) for c in choices for i in range(1, len(c))}) for choices in few.choices)
    return [prefill(1, 1500), Passes(1, 64 * (40 + nodes), 64 * (1 + nodes), 1500, 64 * (40 + nodes) * 1520)]


def _w4() -> list[Passes]:
    programs = W.w4()
    num, width, head = len(programs), len(programs[0].branches), len(programs[0].branches[0])
    joined = (width - 1) * (head + 48) + len(programs[0].join)  # the first branch follows the context as it did
    return [
        prefill(num, 600),
        prefill(num * width, head, 600),
        decode(num * width, 47, head, 600, num),
        prefill(num, joined, 600 + head + 48),
        decode(num, 63, 600 + head + 48 + joined),
    ]


def _w6() -> list[Passes]:
    found, held = [], 0
    for _ in range(4):
        found += [prefill(16, 60, held), decode(16, 39, held + 60)]
        held += 100
    return found


CASES: dict[str, Callable[[], list[Passes]]] = {
    "W1/1": lambda: _w1(1),
    "W1/4": lambda: _w1(4),
    "W1/16": lambda: _w1(16),
    "W1/64": lambda: _w1(64),
    "W2/1x2048": lambda: [prefill(1, 2048)],
    "W2/16x512": lambda: [prefill(16, 512)],
    "W3/gen8": _w3_gen,
    "W3/select": _w3_select,
    "W4": _w4,
    "W6": _w6,
}
"""W5 has none: how many tokens a constraint forces is the model's doing."""


def measure_machine(num_tries: int = 7) -> Machine:
    """The best of some tries, with all cores."""
    import torch

    numbers = torch.ones(1 << 26)
    matrix = torch.rand(1536, 1536)
    read_s = min(_timed(numbers.sum) for _ in range(num_tries))
    product_s = min(_timed(lambda: matrix @ matrix) for _ in range(num_tries))
    return Machine(numbers.nbytes / read_s, 2 * len(matrix) ** 3 / product_s)


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    machine = measure_machine()
    print(f"reads {machine.bytes_per_s / 1e9:.1f} GB/s, {machine.ops_per_s / 1e9:.0f} GFLOP/s in float32\n")
    print("| case | " + " | ".join(f"{name}, s" for name in MODELS) + " |\n|---|" + "---|" * len(MODELS))
    for case, passes in CASES.items():
        cells = (f"{seconds(passes(), model, machine):.2f}" for model in MODELS.values())
        print(f"| {case} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
