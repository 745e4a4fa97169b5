"""What docs/determinism.md promises of a CPU, in every precision, and without the native kernels where it is fast.

Tokens and log-probabilities to the bit: of each request alone in a fresh engine that guesses nothing, against the
same in a burst whose guesses are all tried, from the cache, from host memory, and from the disk after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import Driver
from tiny_models import write_block_model

from forktree.backend.engine.messages import Finished, SamplerParams
from forktree.backend.model.linear import QUANTIZE
from forktree.backend.model.runner import ModelRunner, load_runner

PAGE_SIZE = 4
TRUNK = [(i * 29 + 3) % 96 + 3 for i in range(21)] * 2  # it repeats itself, so there is something to guess from
ASKED = [
    (TRUNK, SamplerParams(num_logprobs=1)),
    ([*TRUNK, 7], SamplerParams(temperature=0.9, top_p=0.95, seed=5, num_logprobs=1)),
    ([*TRUNK, 7], SamplerParams(temperature=0.9, top_p=0.95, seed=6, num_logprobs=1)),
    ([*TRUNK, 9, 8], SamplerParams(temperature=0.7, seed=5, repetition_penalty=1.2, num_logprobs=1)),
]


class Pool:
    """A loaded runner, with the faults that a driver looks for."""

    faults = ()

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


Answers = list[tuple[Any, ...]]
Load = Callable[..., Pool]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_block_model(tmp_path_factory.mktemp("blocks"))


@pytest.fixture(scope="module", params=[*(f"{each}-native" for each in QUANTIZE), "auto-plain", "none-plain"])
def load(request: pytest.FixtureRequest, folder: Path) -> Load:
    """A runner of one precision, of its own for every call; plain is without native kernels."""
    quantize, kernels = request.param.split("-")

    def make(num_pages: int = 128) -> Pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FORKTREE_NATIVE", "1" if kernels == "native" else "0")
            options = {"kv_tokens": num_pages * PAGE_SIZE, "page_size": PAGE_SIZE}
            runner = load_runner(folder, quantize=quantize, num_threads=1, **options)  # type: ignore[arg-type]
        if kernels == "native" and runner._model.native is None:
            pytest.skip("no native kernels here")
        return Pool(runner)

    return make


@pytest.fixture(scope="module")
def roomy(load: Load) -> Pool:
    return load()


@pytest.fixture(scope="module")
def alone(roomy: Pool) -> Answers:
    return [answer(ask(Driver(roomy, max_draft=0, max_step_tokens=512), *one)) for one in ASKED]


def ask(driver: Driver, ids: list[int], params: SamplerParams) -> Finished:
    listener = driver.submit(ids, params=params, max_tokens=9)
    driver.drain()
    return listener.finished


def answer(finished: Finished) -> tuple[Any, ...]:
    return finished.ids, finished.tokens, finished.reason


def test_draws_differ_by_seed(alone: Answers) -> None:
    """Else the rest would prove little."""
    assert len({ids for ids, *_ in alone}) == len(ASKED)


def test_together_warm_and_guessed_ahead_is_as_alone_and_cold(roomy: Pool, alone: Answers) -> None:
    driver = Driver(roomy, max_running=4, max_step_tokens=24, max_draft=8, fixed_rows=1e9)
    for _ in ("cold", "warm"):
        heard = [driver.submit(ids, params=params, max_tokens=9) for ids, params in ASKED]
        driver.drain()
        assert [answer(listener.finished) for listener in heard] == alone
    assert all(listener.finished.num_cached >= len(TRUNK) - 1 for listener in heard)
    assert driver.core.stats().drafted_tokens > 0


def test_from_host_memory_is_as_computed(load: Load, alone: Answers) -> None:
    options = {"headroom_tokens": 0, "host_bytes": 1 << 24, "fixed_rows": 1e9}  # costs that are stated load all
    driver = Driver(load(num_pages=18), max_draft=0, max_step_tokens=64, **options)
    for _ in ("cold", "from below"):
        found = [ask(driver, *one) for one in ASKED]
        assert [answer(each) for each in found] == alone
        ask(driver, [50 + i for i in range(60)], SamplerParams())  # it needs the whole pool
    assert found[0].num_cached >= PAGE_SIZE * 10


def test_from_the_disk_after_a_restart_is_as_computed(load: Load, alone: Answers, tmp_path: Path) -> None:
    for is_restarted in (False, True):
        options = {"cache_dir": str(tmp_path), "fingerprint": "the same", "fixed_rows": 1e9}
        driver = Driver(load(), max_draft=0, max_step_tokens=64, **options)
        found = [ask(driver, *one) for one in ASKED]
        assert [answer(each) for each in found] == alone
        assert (found[0].num_cached >= PAGE_SIZE * 10) is is_restarted
        driver.core.close()
