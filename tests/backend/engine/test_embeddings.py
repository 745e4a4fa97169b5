"""Directions of final hidden states: transformers' own, and the same bits alone, beside others, warm and in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_fakes import Driver, FakeRunner
from tiny_models import write_block_model, write_tiny_model

from forktree.backend.engine.messages import HiddenRunner
from forktree.backend.model.runner import load_runner
from forktree.backend.model.states import add_states, direction_of
from forktree.lang.errors import EngineError, UnsupportedError

PROMPTS = [[1, *range(10, 10 + n)] for n in (40, 40, 7, 23)] + [[1, *range(10, 30), *range(90, 100)]]
FEW = [[1, 10, 11, 12], [1, 10, 90]]
KINDS = ["native", "plain", "device"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tiny = write_tiny_model(tmp_path_factory.mktemp("plain"))
    return {"native": write_block_model(tmp_path_factory.mktemp("native")), "plain": tiny, "device": tiny}


def make_runner(kind: str, folder: Path, kv_tokens: int = 512) -> Any:
    if kind == "device":
        return device_runner(folder, kv_tokens)
    quantize = "none" if kind == "plain" else "auto"
    runner = load_runner(folder, quantize=quantize, kv_tokens=kv_tokens, page_size=4, num_threads=1)  # type: ignore[arg-type]
    if kind == "native" and runner._model.step is None:
        pytest.skip("no native kernels here")
    runner.faults = ()  # type: ignore[attr-defined]
    return runner


def device_runner(folder: Path, kv_tokens: int) -> Any:
    pytest.importorskip("triton", reason="triton is not installed here")
    from forktree.backend.model.config import read_config
    from forktree.backend.model.cuda_llama import build_device_model
    from forktree.backend.model.cuda_load import make_device_runner
    from forktree.backend.model.weights import open_weights
    from forktree.kernels.triton_mode import is_interpreted

    if not is_interpreted():
        pytest.skip("TRITON_INTERPRET is off")
    with open_weights(folder) as weights:
        model = build_device_model(read_config(folder), weights, device=torch.device("cpu"), dtype=torch.float32)
    runner = make_device_runner(model, kv_tokens=kv_tokens, page_size=4, capture=lambda run: run)
    runner.faults = ()  # type: ignore[attr-defined]
    return runner


def first_of(pooling: str, ids: list[int]) -> int:
    return 0 if pooling == "mean" else len(ids) - 1


def embedded(driver: Driver, prompts: list[list[int]], pooling: str) -> list[tuple[float, ...]]:
    listeners = [driver.submit(ids, embed_from=first_of(pooling, ids)) for ids in prompts]
    driver.drain()
    return [listener.finished.embedding for listener in listeners]


def alone(runner: Any, prompts: list[list[int]], pooling: str) -> list[tuple[float, ...]]:
    return [embedded(Driver(runner, max_step_tokens=512), [ids], pooling)[0] for ids in prompts]


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_alone_beside_others_warm_and_in_chunks_are_the_same_bits(
    folders: dict[str, Path], kind: str, pooling: str
) -> None:
    runner = make_runner(kind, folders[kind])
    right = alone(runner, PROMPTS, pooling)
    driver = Driver(runner, max_step_tokens=512)
    chats = [driver.submit(ids[:9], max_tokens=3) for ids in PROMPTS[:2]]
    assert embedded(driver, PROMPTS, pooling) == right
    assert all(chat.finished.reason == "length" for chat in chats)
    assert embedded(driver, PROMPTS, pooling) == right
    assert embedded(Driver(runner, max_step_tokens=5), PROMPTS, pooling) == right
    driver.check_idle()


def test_so_they_are_on_a_device_beside_requests_that_graphs_compute(folders: dict[str, Path]) -> None:
    runner = make_runner("device", folders["device"])
    right = alone(runner, FEW, "mean")
    driver = Driver(runner, max_step_tokens=3)
    chat = driver.submit([7], max_tokens=2)
    assert embedded(driver, FEW, "mean") == right
    assert chat.finished.reason == "length"
    assert embedded(driver, FEW[:1], "last") == alone(runner, FEW[:1], "last")


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_preempted_request_goes_on_to_the_same_bits(folders: dict[str, Path], pooling: str) -> None:
    right = alone(make_runner("plain", folders["plain"]), PROMPTS, pooling)
    driver = Driver(make_runner("plain", folders["plain"], kv_tokens=64), max_step_tokens=6)
    driver.submit([3, 4, 5], max_tokens=40)
    assert embedded(driver, PROMPTS, pooling) == right
    driver.check_idle()


def test_the_last_tokens_state_takes_a_prefix_from_the_cache_and_a_mean_computes_all(folders: dict[str, Path]) -> None:
    driver = Driver(make_runner("plain", folders["plain"]), max_step_tokens=512)
    for pooling, cached in (("last", 0), ("last", 40), ("mean", 0)):
        listener = driver.submit(PROMPTS[0], embed_from=first_of(pooling, PROMPTS[0]))
        driver.drain()
        assert listener.finished.num_cached == cached
    assert driver.submit(PROMPTS[0], max_tokens=1)
    driver.drain()
    assert driver.core.stats().cached_tokens == 80  # what a mean computed is there for others


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_the_directions_of_transformers_hidden_states(folders: dict[str, Path], kind: str) -> None:
    from transformers import AutoModelForCausalLM

    ids = FEW[0] if kind == "device" else PROMPTS[3]
    model = AutoModelForCausalLM.from_pretrained(folders[kind], dtype=torch.float32)
    driver = Driver(make_runner(kind, folders[kind]), max_step_tokens=512)
    with torch.inference_mode():
        states = model.model(torch.tensor([ids])).last_hidden_state[0]
    wanted = {"last": states[-1], "mean": states.mean(0)}
    for pooling, state in wanted.items():
        (found,) = embedded(driver, [ids], pooling)
        right = torch.nn.functional.normalize(state, dim=0)
        torch.testing.assert_close(torch.tensor(found), right, rtol=0, atol=2e-3)
        assert sum(value * value for value in found) == pytest.approx(1, abs=1e-6)


class Blind(FakeRunner):
    forward_hidden = None  # type: ignore[assignment]


def test_a_runner_without_hidden_states_refuses_at_once() -> None:
    assert isinstance(FakeRunner(), HiddenRunner)
    assert not isinstance(Blind(), HiddenRunner)
    with pytest.raises(UnsupportedError, match="no hidden states"):
        Driver(Blind()).submit([1, 2], embed_from=1)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"embed_from": 2}, "embed_from must be between 0 and the prompt's last token, 1"),
        ({"embed_from": -1}, "embed_from"),
        ({"embed_from": 0, "max_tokens": 3}, "asked for alone"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(folders: dict[str, Path], fields: dict[str, int], said: str) -> None:
    driver = Driver(make_runner("plain", folders["plain"]))
    with pytest.raises(ValueError, match=said):
        driver.submit([1, 2], **fields)


def test_the_direction_of_a_sum_and_of_a_mean_is_one() -> None:
    states = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert direction_of(add_states(None, states)) == pytest.approx((0.6, 0.8))
    assert torch.equal(add_states(add_states(None, states[:1]), states[1:]), add_states(None, states))


@pytest.mark.parametrize("state", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_what_has_no_direction_is_an_error(state: list[float]) -> None:
    with pytest.raises(EngineError, match="no direction"):
        direction_of(add_states(None, torch.tensor([state])))


class Broken(FakeRunner):
    """Gives out states that have no direction."""

    def direction_of(self, total: Any) -> tuple[float, ...]:
        raise EngineError("their sum has length 0")


def test_a_prompt_without_a_direction_fails_alone() -> None:
    driver = Driver(Broken())
    listener, other = driver.submit([1, 2], embed_from=0), driver.submit([1, 2, 3], max_tokens=2)
    driver.drain()
    assert isinstance(listener.error, EngineError)
    assert "length 0" in str(listener.error)
    assert other.finished.reason == "length"
    driver.check_idle()
