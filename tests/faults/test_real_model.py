"""Faults inside a real forward pass: what is computed in its place has the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engine_fakes import Driver
from tiny_models import write_block_model, write_tiny_model

from forktree.backend.engine.messages import Finished, SamplerParams
from forktree.backend.model import llama
from forktree.backend.model.runner import ModelRunner, load_runner
from forktree.kernels.step import NativeStep

PROMPTS = [[(7 * i + n) % 96 for i in range(size)] for n, size in enumerate((9, 30, 4, 30))]


class Watched:
    """A real runner, where drivers look for the faults of a fake one."""

    faults = ()

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def __getattr__(self, name: str):
        return getattr(self.runner, name)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    return load_runner(write_tiny_model(tmp_path_factory.mktemp("tiny")), kv_tokens=256, num_threads=1)


def out_of_memory() -> Exception:
    try:
        torch.empty(1 << 60, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError("there is an exbibyte")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel(llama.attend)
    monkeypatch.setattr(llama, "attend", found)
    return found


class Kernel:
    """The attention kernel, which fails in every second layer for calls of too many rows: the layer before has written
    its keys and values by then."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        self.attend = attend
        self.most_rows = 1 << 30
        self.error: Callable[[], Exception] = RuntimeError
        self.num_calls = self.num_failed = 0

    def __call__(self, q: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        self.num_calls += 1
        if self.num_calls % 2 == 0 and q.shape[0] > self.most_rows:
            self.num_calls = 0
            self.num_failed += 1
            raise self.error()
        return self.attend(q, *args, **kwargs)


def answers(runner: ModelRunner, prompts: list[list[int]]) -> list[tuple[object, ...]]:
    one = Driver(Watched(runner), fixed_rows=8.0)
    params = SamplerParams(temperature=0.9, seed=4, num_logprobs=2)
    listeners = [one.submit(ids, max_tokens=5, params=params, score_from=1) for ids in prompts]
    one.drain()
    one.check_idle()
    return [_answer(listener.finished) for listener in listeners]


def _answer(done: Finished) -> tuple[object, ...]:
    return done.ids, done.tokens, done.prompt_logprobs


@pytest.mark.parametrize("error", [lambda: RuntimeError("a bug in a kernel"), out_of_memory])
def test_a_kernel_that_fails_for_many_rows_changes_no_bit(runner, kernel, error, caplog) -> None:
    right = [answers(runner, [ids])[0] for ids in PROMPTS]
    kernel.most_rows, kernel.error = 6, error
    assert answers(runner, PROMPTS) == right
    assert kernel.num_failed


def test_a_kernel_that_always_fails_ends_every_request_and_a_sound_one_serves_on(runner, kernel, caplog) -> None:
    right = answers(runner, PROMPTS)
    one = Driver(Watched(runner))
    kernel.most_rows = 0
    kernel.error = lambda: RuntimeError("a bug in a kernel")
    listeners = [one.submit(ids, max_tokens=5) for ids in PROMPTS]
    one.drain()
    one.check_idle()
    assert all("a bug in a kernel" in str(listener.error) for listener in listeners)
    kernel.most_rows, kernel.num_calls = 1 << 30, 0
    assert answers(runner, PROMPTS) == right


def test_a_native_step_that_fails_when_it_has_written_everything_changes_no_bit(tmp_path, monkeypatch, caplog) -> None:
    runner = load_runner(write_block_model(tmp_path), kv_tokens=256, num_threads=1)
    if runner._model.step is None:
        pytest.skip("no native kernels here")
    right = [answers(runner, [ids])[0] for ids in PROMPTS]
    run, num_failed = NativeStep.run, 0

    def run_and_fail(self, ids: torch.Tensor, *args):
        nonlocal num_failed
        output = run(self, ids, *args)
        if len(ids) > 6:
            num_failed += 1
            raise out_of_memory()
        return output

    monkeypatch.setattr(NativeStep, "run", run_and_fail)
    assert answers(runner, PROMPTS) == right
    assert num_failed
