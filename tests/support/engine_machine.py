"""The engine's core under any sequence of events, its invariants checked after each: a machine for hypothesis.

Every answer is compared with that of the same request alone on a fresh engine, and what has been streamed of it so far
with the beginning of that. Below the pool may be host memory and a disk; its threads' work waits in a queue (`Jobs`)
until a rule lets some of it be done, so that an example is the same however often it is run.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from engine_breakers import BadListener, BadMatcher, Flaky, Jobs
from engine_fakes import Driver, FakeRunner, LetterSink, Listener, ListMatcher
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forktree.backend.cache import disk
from forktree.backend.cache.tiers import Tiers
from forktree.backend.engine.continuations import lay_out, merge_runs
from forktree.backend.engine.messages import Emitted, Failed, Finished, SamplerParams
from forktree.lang.errors import ContextLengthError, EngineError, RunCancelledError

WORDS = ["", "a", "b", "ab", "ba", "c", "aa", "bb", "ca", "d", "e", "f"]
OPTIONS = [(1, 2, 3), (1, 2), (4,), (1, 5, 6, 7, 8)]
EOS = 11
MAX_CONTEXT = 60
NUM_KNOWN = 8  # texts that forks go on from
KINDS = ["plain", "plain", "score", "stop", "constraint", "bad constraint", "continuations", "bad listener"]
COMPARED = (
    "ids",
    "tokens",
    "reason",
    "stop",
    "is_complete",
    "tail_text",
    "prompt_logprobs",
    "continuation_logprobs",
    "num_prompt",
)


def fields_of(kind: str, max_tokens: int, seed: int) -> dict[str, Any]:
    """The fields of a request but its ids."""
    params = SamplerParams(temperature=1.0 if seed % 2 else 0.0, seed=seed)
    fields: dict[str, Any] = {"max_tokens": max_tokens, "params": params, "stop_token_ids": frozenset({EOS})}
    match kind:
        case "score":
            fields["score_from"] = 1
        case "continuations":
            runs = [(1, 2, seed), (1, 2), (seed, 2, 2, 1), (1, 1, 2), (7,)]
            fields |= {"max_tokens": 0, "continuations": merge_runs(runs[: 1 + max_tokens])[0]}
        case "stop":
            fields["sink"] = LetterSink(WORDS, ["ab", "cc"])
        case "constraint":
            fields["matcher"] = ListMatcher(OPTIONS, EOS)
        case "bad constraint":
            fields["matcher"] = BadMatcher(OPTIONS, EOS)
    return fields


@lru_cache(4096)
def alone(ids: tuple[int, ...], kind: str, max_tokens: int, seed: int) -> tuple[Finished, str]:
    """What a request gives on a fresh engine of its own, in one chunk, and all of its text."""
    sound = {"bad constraint": "constraint", "bad listener": "plain"}.get(kind, kind)
    driver = Driver(FakeRunner(num_pages=32, page_size=16), max_step_tokens=4096)
    listener = driver.submit(ids, **fields_of(sound, max_tokens, seed))
    driver.drain()
    return listener.finished, listener.text


@dataclass(slots=True)
class Live:
    """A request that has not ended; `max_tokens` is what pool and context leave of it."""

    listener: Listener
    ids: tuple[int, ...]
    kind: str
    max_tokens: int
    seed: int

    @property
    def reference(self) -> tuple[Finished, str]:
        return alone(self.ids, self.kind, self.max_tokens, self.seed)


PLACES = st.integers(0, 1 << 16)  # what is drawn never depends on the engine, which may be slower another time


def _one_of(items: Iterable[Any], which: int) -> Any:
    """One of the items there are, by a number that was drawn before it was known how many."""
    listed = sorted(items)
    return listed[which % len(listed)]


def counted(**strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule that counts how often it was carried out."""

    def decorate(function: Callable[..., None]) -> Any:
        @wraps(function)
        def count(self: EngineMachine, **drawn: Any) -> None:
            self.num_done[function.__name__] += 1
            function(self, **drawn)

        return rule(**strategies)(count)

    return decorate


class EngineMachine(RuleBasedStateMachine):
    """See the module. `num_done` counts rules, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.num_done: Counter[str] = Counter()
        self.num_ended: Counter[str] = Counter()
        self.live: dict[int, Live] = {}
        self.known: list[tuple[int, ...]] = []
        self.may_fail: set[int] = set()
        self.pinned: dict[int, tuple[int, ...]] = {}
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.is_full = False
        self.now_s = 0.0
        self.folder: Path | None = None
        self._undo = ExitStack()

    @initialize(
        page_size=st.sampled_from([1, 2, 4, 16]),
        pool_tokens=st.sampled_from([16, 32, 48, 96]),
        config=st.fixed_dictionaries(
            {
                "max_running": st.integers(1, 6),
                "max_step_tokens": st.integers(1, 24),
                "max_overtakes": st.integers(1, 4),
                "headroom_tokens": st.sampled_from([0, 4]),
                "max_draft": st.sampled_from([0, 5]),
                "host_bytes": st.sampled_from([0, 0, 300, 1 << 20]),
                "cache_bytes": st.sampled_from([0, 0, 4_000, 1 << 20]),
            }
        ),
    )
    def make(self, page_size: int, pool_tokens: int, config: dict[str, Any]) -> None:
        logging.disable(logging.CRITICAL)
        self._undo.callback(logging.disable, logging.NOTSET)
        self._undo.enter_context(patch("forktree.backend.engine.core.time", SimpleNamespace(perf_counter=self._tick)))
        if config["cache_bytes"]:
            self._put_a_disk_below(config)
        else:
            del config["cache_bytes"]
        config["max_step_tokens"] = max(config["max_step_tokens"], config["max_running"])
        self.page_size, self.num_pages, self.config = page_size, pool_tokens // page_size, config
        self._start()

    def _put_a_disk_below(self, config: dict[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="forktree-machine-"))
        self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        config |= {"cache_dir": str(self.folder), "fingerprint": "fake"}
        write_whole = disk._write_whole

        def write(path: Path, data: bytes) -> None:
            if self.is_full:
                raise OSError(28, "no space left on the disk")
            write_whole(path, data)

        tiers = "forktree.backend.cache.tiers"
        self._undo.enter_context(patch(f"{tiers}.ThreadPoolExecutor", lambda *_, **__: Jobs(self.jobs)))
        self._undo.enter_context(patch(f"{tiers}.wait", lambda *_, **__: self._run_jobs()))
        self._undo.enter_context(patch("forktree.backend.cache.disk._write_whole", write))
        self._undo.enter_context(patch.dict(Tiers.__init__.__kwdefaults__, {"clock": self._tick}))
        self._undo.enter_context(patch("os.fsync", lambda _: None))  # what a power cut leaves is not asked here

    def _start(self) -> None:
        self.runner = Flaky(num_pages=self.num_pages, page_size=self.page_size, max_context=MAX_CONTEXT)
        self.one = Driver(self.runner, fixed_rows=1e9, **self.config)

    def _tick(self) -> float:
        """A clock on which everything takes a millisecond."""
        self.now_s += 1e-3
        return self.now_s

    def _run_jobs(self, num_jobs: int = 1 << 30) -> None:
        Jobs.run(self.jobs, num_jobs)

    # --- requests --------------------------------------------------------------------------------------------------

    @counted(
        ids=st.lists(st.integers(1, 2), min_size=1, max_size=20),
        max_tokens=st.sampled_from([0, 1, 2, 7]),
        seed=st.integers(0, 3),
        kind=st.sampled_from(KINDS),
        namespace=st.sampled_from(["", "", "", "tenant"]),
        owner=st.sampled_from([None, None, 1, 2]),
    )
    def submit(self, ids: list[int], max_tokens: int, seed: int, kind: str, namespace: str, owner: int | None) -> None:
        self._submit(tuple(ids), max_tokens, seed, kind, namespace, owner)

    @counted(
        which=PLACES,
        tails=st.lists(st.integers(1, 3), min_size=1, max_size=4),
        max_tokens=st.sampled_from([1, 2, 7]),
        seed=st.integers(0, 3),
    )
    def fork(self, which: int, tails: list[int], max_tokens: int, seed: int) -> None:
        """Branches that go on from a text that has ended, or from where one that runs is now."""
        trunk = _one_of({(1,), *self.known, *(self._text_of(live) for live in self.live.values())}, which)
        for tail in tails:
            self._submit((*trunk, tail), max_tokens, seed, "plain", "")

    @counted(ids=st.lists(st.integers(1, 2), min_size=1, max_size=12), max_tokens=st.sampled_from([0, 0, 0, 1]))
    def pin(self, ids: list[int], max_tokens: int) -> None:
        num = self.one.num_ids
        try:
            listener = self.one.submit(tuple(ids), is_pin=True, max_tokens=max_tokens)
        except ContextLengthError:
            assert len(ids) > self._room(())
        except EngineError:
            assert self._num_pinned + len(ids) // self.page_size > 0.75 * self.num_pages - 1
        except ValueError:
            assert max_tokens or len(ids) < self.page_size
        else:
            self.live[num] = Live(listener, tuple(ids), "pin", 0, 0)
            self.pinned[num] = tuple(ids)

    @counted(which=PLACES)
    def unpin(self, which: int) -> None:
        if self.pinned:
            self._unpin(_one_of(self.pinned, which))

    def _unpin(self, num: int) -> None:
        self.one.core.unpin(num)
        del self.pinned[num]
        live = self.live.pop(num, None)
        assert live is None or isinstance(live.listener.error, RunCancelledError)

    @counted(owner=st.sampled_from([1, 2]))
    def end_run(self, owner: int) -> None:
        self.one.core.end_run(owner)

    @counted(prompts=st.lists(st.lists(st.integers(1, 2), max_size=12), max_size=3))
    def expect(self, prompts: list[list[int]]) -> None:
        self.one.core.expect("", [tuple(ids) for ids in prompts])

    @property
    def _num_pinned(self) -> int:
        return self.one.core.stats().pages_pinned

    def _room(self, ids: tuple[int, ...]) -> int:
        """Tokens that a request may surely count on."""
        return (self.num_pages - self._num_pinned) * self.page_size

    def _submit(
        self, ids: tuple[int, ...], max_tokens: int, seed: int, kind: str, namespace: str, owner: int | None = None
    ) -> None:
        fields, num = fields_of(kind, max_tokens, seed), self.one.num_ids
        listener = BadListener() if kind == "bad listener" else None
        try:
            listener = self.one.submit(ids, listener, namespace=namespace, owner=owner, **fields)
        except ContextLengthError:
            trie = fields.get("continuations")
            num_tokens = len(ids) + (0 if trie is None else len(lay_out(trie, len(ids)).tokens))
            assert num_tokens > self._room(ids) or num_tokens + min(1, max_tokens) > MAX_CONTEXT
            return
        if kind != "continuations":
            most = min(max_tokens, self.pool_tokens - len(ids) + 1, MAX_CONTEXT - len(ids))
            least = min(max_tokens, self._room(ids) - len(ids) + 1, MAX_CONTEXT - len(ids))
            max_tokens = self.one.limits[num]
            assert least <= max_tokens <= most
        self.live[num] = Live(listener, ids, kind, max_tokens, seed)

    @property
    def pool_tokens(self) -> int:
        return self.num_pages * self.page_size

    @staticmethod
    def _text_of(live: Live) -> tuple[int, ...]:
        made = [info.token for event in live.listener.events if isinstance(event, Emitted) for info in event.tokens]
        return (*live.ids, *made)

    @counted(which=PLACES)
    def cancel(self, which: int) -> None:
        if not self.live:
            return
        num = _one_of(self.live, which)
        self.one.core.cancel(num)
        self.pinned.pop(num, None)
        assert isinstance(self.live.pop(num).listener.error, RunCancelledError)

    @counted()
    def leave_streams(self) -> None:
        """Whoever has read a piece goes away."""
        for num in [num for num, live in self.live.items() if live.listener.events]:
            self.one.core.cancel(num)
            assert isinstance(self.live.pop(num).listener.error, RunCancelledError)

    # --- time ------------------------------------------------------------------------------------------------------

    @counted(num_steps=st.integers(1, 6))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.one.step()
            self._settle()

    @counted()
    def fail_a_step(self) -> None:
        """Whatever is computed fails, however little it is."""
        self.runner.is_broken = True
        self.may_fail = set(self.live)
        self.one.step()
        self.runner.is_broken = False
        self._settle()
        self.may_fail = set()

    @counted(most_rows=st.integers(1, 5), num_steps=st.integers(1, 4))
    def want_memory(self, most_rows: int, num_steps: int) -> None:
        """Passes of more than a few rows fail; nobody is lost by that."""
        self.runner.most_rows = most_rows
        for _ in range(num_steps):
            self.one.step()
            self._settle()
        self.runner.most_rows = 1 << 30

    @counted()
    def drain(self) -> None:
        self.one.drain()
        self._settle()
        assert not self.live
        self._check_idle()

    def _check_idle(self) -> None:
        if not self.pinned:
            self.one.check_idle()
            return
        stats = self.one.core.stats()
        assert stats.kv_tokens_used == stats.pages_pinned * self.page_size
        for ids in self.pinned.values():
            num_whole = len(ids) // self.page_size * self.page_size
            assert self.one.core.count_cached([ids]) >= [num_whole]

    # --- the cache -------------------------------------------------------------------------------------------------

    @counted(num_pages=st.integers(1, 40))
    def shrink(self, num_pages: int) -> None:
        self.one.core._memory.tree.evict(num_pages)

    @counted()
    def flush(self) -> None:
        self.one.core.flush()
        stats = self.one.core.stats()
        assert stats.pages_free * self.page_size == self.pool_tokens - stats.kv_tokens_used

    # --- what is below ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.folder)
    @counted(num_jobs=st.integers(1, 20))
    def let_the_disk_work(self, num_jobs: int) -> None:
        self._run_jobs(num_jobs)

    @precondition(lambda self: self.folder)
    @counted(limit=st.sampled_from([0, 1_000, 5_000]))
    def shrink_the_folder(self, limit: int) -> None:
        assert self.folder is not None
        assert disk.prune(self.folder, limit) <= limit

    @precondition(lambda self: self.folder)
    @counted(every=st.integers(1, 3), how=st.sampled_from(["cut", "altered", "empty", "gone", "a folder"]))
    def spoil_files(self, every: int, how: str) -> None:
        assert self.folder is not None
        files = sorted(path for path in self.folder.rglob("*.kv") if path.is_file())
        for path in files[::every]:
            whole = path.read_bytes()
            path.unlink()
            match how:
                case "cut":
                    path.write_bytes(whole[: len(whole) // 2])
                case "altered":
                    path.write_bytes(whole[:-1] + bytes(byte ^ 1 for byte in whole[-1:]))
                case "empty":
                    path.write_bytes(b"")
                case "a folder":
                    path.mkdir()

    @precondition(lambda self: self.folder)
    @counted()
    def lose_the_folder(self) -> None:
        assert self.folder is not None
        for path in self.folder.iterdir():
            shutil.rmtree(path, ignore_errors=True)

    @precondition(lambda self: self.folder)
    @counted()
    def fill_or_clear_the_disk(self) -> None:
        self.is_full = not self.is_full

    @precondition(lambda self: self.folder or self.config["host_bytes"])
    @counted(reads=st.booleans(), writes=st.booleans())
    def break_or_mend_moves(self, reads: bool, writes: bool) -> None:
        self.runner.cannot_read, self.runner.cannot_write = reads, writes

    @precondition(lambda self: self.folder)
    @counted()
    def restart(self) -> None:
        """The process ends and another one begins with what is on the disk."""
        self.one.core.abandon(lambda: EngineError("the engine is closed"))
        assert all(isinstance(live.listener.error, EngineError) for live in self.live.values())
        self.one.core.close()
        self._run_jobs()
        self.live.clear()
        self.pinned.clear()
        self._start()

    # --- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "one"):
            return
        self.one.core.check()
        if not self.live:
            self._check_idle()
        for live in self.live.values():
            if live.kind not in ("continuations", "score", "pin"):
                assert live.reference[1].startswith(live.listener.text)

    def teardown(self) -> None:
        try:
            if hasattr(self, "one"):
                self.drain()
                for num in list(self.pinned):
                    self._unpin(num)
                self._check_idle()
                self.one.core.flush()
                assert self.one.core.stats().pages_free == self.num_pages
                self.one.core.close()
        finally:
            self._undo.close()

    def _settle(self) -> None:
        for num, live in list(self.live.items()):
            if not live.listener.is_done:
                continue
            del self.live[num]
            last = live.listener.events[-1]
            self.num_ended[type(last).__name__] += 1
            if isinstance(last, Failed):
                assert isinstance(last.error, EngineError)
                assert num in self.may_fail or live.kind == "bad constraint", last.error
                self.pinned.pop(num, None)
                continue
            if live.kind == "pin":
                continue
            for name in COMPARED:
                assert getattr(last, name) == getattr(live.reference[0], name), name
            if live.kind in ("plain", "stop"):
                self.known = [*self.known, (*live.ids, *last.ids)][-NUM_KNOWN:]
