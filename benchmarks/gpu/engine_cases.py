"""The engine on a device, with random weights: decode, prefill and loads in the shape of W3, W4 and W5.

Random weights write noise, so every output runs to its limit; what is measured is time, and the bytes that a step
cannot do without. W5's constraint is a stand-in: masks of half the vocabulary at every token, made beforehand.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import EngineRequest, Event, Failed, Finished
from forktree.backend.model.config import ModelConfig, RopeConfig
from forktree.backend.model.cuda_llama import DeviceModel
from forktree.backend.model.cuda_runner import DeviceRunner

LLAMA_8B = ModelConfig(
    family="llama",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    q_heads=32,
    kv_heads=8,
    head_dim=128,
    max_positions=32768,
    norm_eps=1e-5,
    rope=RopeConfig(theta=500000.0),
)
TOY_CONFIG = ModelConfig(
    family="llama",
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    q_heads=2,
    kv_heads=1,
    head_dim=16,
    max_positions=512,
    norm_eps=1e-5,
    rope=RopeConfig(theta=10000.0),
)


@dataclass(frozen=True, slots=True)
class Loads:
    """Sizes of the loads: prompts are random ids."""

    batches: tuple[int, ...]
    decode_prompt: int
    decode_tokens: int
    prefill: int
    questions: int
    trunk: int
    question: int
    programs: int
    context: int
    branches: int
    branch_tokens: int
    notes: int
    note: int
    note_tokens: int


FULL_LOADS = Loads((1, 8, 64, 256), 64, 64, 8192, 64, 1500, 40, 8, 600, 8, 48, 32, 450, 64)
TOY_LOADS = Loads((1, 2), 4, 3, 24, 2, 20, 3, 1, 12, 2, 2, 2, 6, 2)


@dataclass(frozen=True, slots=True)
class Measured:
    """One load: new tokens and prompt tokens (those computed, not those cached), in how many seconds.

    `floor_s` is the time for the bytes or products that no engine can do without, at the measured limits.
    """

    name: str
    engine: str
    seconds: float
    new_tokens: int
    prompt_tokens: int
    floor_s: float | None = None


class HalfMasks:
    """Every token legal whose number shares a pseudo-random half of the vocabulary; it never ends by itself."""

    def __init__(self, vocab: int, seed: int) -> None:
        self._masks = np.random.default_rng(seed).integers(-(2**31), 2**31, (16, -(-vocab // 32)), dtype=np.int32)
        self._step = 0

    def mask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return self._masks[self._step % len(self._masks)]

    def has_mask(self) -> bool:
        return True

    def advance(self, token: int) -> None:
        self._step += 1

    def is_complete(self) -> bool:
        return False

    def must_end(self) -> bool:
        return False

    def is_free(self) -> bool:
        return False

    def forced(self) -> tuple[int, ...]:
        return ()

    def copy(self) -> HalfMasks:
        return copy.copy(self)  # its masks never change


class Load:
    """Requests to an engine of its own; `close` ends it."""

    def __init__(self, runner: DeviceRunner, *, max_running: int) -> None:
        self.vocab = runner.config.vocab_size
        config = EngineConfig(
            max_running=max_running, max_step_tokens=max(8192, max_running), max_draft=0, fixed_rows=256.0
        )
        self._engine = Engine(runner, config)

    def submit(self, ids: list[int], max_tokens: int, matcher: Any = None) -> Future[Finished]:
        answer: Future[Finished] = Future()

        def listen(event: Event) -> None:
            if isinstance(event, Finished):
                answer.set_result(event)
            elif isinstance(event, Failed):
                answer.set_exception(event.error)

        self._engine.submit(EngineRequest(ids=tuple(ids), on_event=listen, max_tokens=max_tokens, matcher=matcher))
        return answer

    def run(self, name: str, work: Callable[[], None], floor_s: float | None = None) -> Measured:
        """Time `work` on an empty cache."""
        self._engine.flush()
        before = self._engine.stats()
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        after = self._engine.stats()
        new, prompt = after.decode_tokens - before.decode_tokens, after.prefill_tokens - before.prefill_tokens
        return Measured(name, "forktree", seconds, new, prompt, floor_s)

    def close(self) -> None:
        self._engine.close()


def prompt(rng: random.Random, num: int, vocab: int) -> list[int]:
    return [rng.randrange(vocab) for _ in range(num)]


def engine_cases(
    runner: DeviceRunner, model: DeviceModel, loads: Loads, copy_bytes_s: float, matrix_flops_s: float
) -> Iterator[Measured]:
    """Each load once to compile and capture, and once to measure."""
    load = Load(runner, max_running=max(loads.batches))
    try:
        for batch in loads.batches:
            step_s = model.num_weight_bytes() / copy_bytes_s
            floor = loads.decode_tokens * step_s
            yield _twice(load, f"decode, batch {batch}", _decode(load, loads, batch), floor)
        flops = 2 * (model.num_weight_bytes() // model.dtype.itemsize) * loads.prefill
        yield _twice(load, f"prefill, {loads.prefill} tokens", _prefill(load, loads), flops / matrix_flops_s)
        yield _twice(load, f"W3-shaped: {loads.questions} questions", few_shot(load, loads))
        yield _twice(load, f"W4-shaped: {loads.programs} programs", fork(load, loads))
        yield _twice(load, f"W5-shaped: {loads.notes} notes, masked", _masked(load, loads))
    finally:
        load.close()


def _twice(load: Load, name: str, work: Callable[[], None], floor_s: float | None = None) -> Measured:
    load.run(name, work)
    return load.run(name, work, floor_s)


def _decode(load: Load, loads: Loads, batch: int) -> Callable[[], None]:
    def work() -> None:
        rng = random.Random(batch)
        prompts = [prompt(rng, loads.decode_prompt, load.vocab) for _ in range(batch)]
        wait([load.submit(ids, loads.decode_tokens) for ids in prompts])

    return work


def _prefill(load: Load, loads: Loads) -> Callable[[], None]:
    def work() -> None:
        wait([load.submit(prompt(random.Random(1), loads.prefill, load.vocab), 1)])

    return work


def few_shot(load: Load, loads: Loads) -> Callable[[], None]:
    def work() -> None:
        rng = random.Random(3)
        trunk = prompt(rng, loads.trunk, load.vocab)
        wait([load.submit(trunk + prompt(rng, loads.question, load.vocab), 8) for _ in range(loads.questions)])

    return work


def fork(load: Load, loads: Loads) -> Callable[[], None]:
    """A program's branches begin with a token of their own behind its context; a summary follows them."""

    def work() -> None:
        rng = random.Random(4)
        contexts = [prompt(rng, loads.context, load.vocab) for _ in range(loads.programs)]
        branches = [
            [load.submit([*context, branch], loads.branch_tokens) for branch in range(loads.branches)]
            for context in contexts
        ]
        summaries = []
        for context, answers in zip(contexts, branches, strict=True):
            joined = [token for answer in answers for token in answer.result().ids]
            summaries.append(load.submit(context + joined, loads.branch_tokens))
        wait(summaries)

    return work


def _masked(load: Load, loads: Loads) -> Callable[[], None]:
    def work() -> None:
        rng = random.Random(5)
        answers = []
        for note in range(loads.notes):
            ids = prompt(rng, loads.note, load.vocab)
            answers.append(load.submit(ids, loads.note_tokens, HalfMasks(load.vocab, note)))
        wait(answers)

    return work


def wait(answers: list[Future[Finished]]) -> None:
    for answer in answers:
        answer.result()
