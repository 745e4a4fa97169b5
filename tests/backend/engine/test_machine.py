"""The engine's core under any sequence of events, its invariants checked after each."""

from __future__ import annotations

import ast

from engine_fakes import Driver, FakeRunner, LetterSink, ListMatcher, run_alone
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forktree.backend.engine.continuations import lay_out, merge_runs
from forktree.backend.engine.messages import Failed, Finished, SamplerParams
from forktree.lang.errors import ContextLengthError, EngineError, RunCancelledError

WORDS = ["", "a", "b", "ab", "ba", "c", "aa", "bb", "ca", "d", "e", "f"]
OPTIONS = [(1, 2, 3), (1, 2), (4,), (1, 5, 6, 7, 8)]
EOS = 11
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


class Flaky(FakeRunner):
    """Its pages can be moved; its passes fail when told to."""

    is_broken = False

    def read_page(self, page):
        return repr(self.slots[page * self.page_size : (page + 1) * self.page_size]).encode()

    def write_page(self, page, data):
        self.slots[page * self.page_size : (page + 1) * self.page_size] = ast.literal_eval(data.decode())

    def forward(self, batch):
        if self.is_broken:
            for token, position, seq in zip(batch.ids, batch.positions, batch.seq_of_row, strict=True):
                self.slots[self._slot(batch.page_tables[seq], position)] = (-2 - token, position)  # half done
            raise RuntimeError("out of memory")
        return super().forward(batch)


class BadMatcher(ListMatcher):
    """Turns out to be broken at its second token."""

    def advance(self, token):
        if self.seen:
            raise RuntimeError("a bug in a grammar")
        super().advance(token)


def fields_of(kind: str, max_tokens: int, seed: int) -> dict:
    params = SamplerParams(temperature=1.0 if seed % 2 else 0.0, seed=seed)
    fields = {"max_tokens": max_tokens, "params": params, "stop_token_ids": frozenset({EOS})}
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


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 2, 4, 16]),
        pool_tokens=st.sampled_from([16, 32, 48, 96]),
        max_running=st.integers(1, 6),
        num_tokens=st.integers(1, 24),
        max_overtakes=st.integers(1, 4),
        headroom=st.sampled_from([0, 4]),
        max_draft=st.sampled_from([0, 5]),
        host_bytes=st.sampled_from([0, 300, 1 << 20]),
    )
    def make(self, page_size, pool_tokens, max_running, num_tokens, max_overtakes, headroom, max_draft, host_bytes):
        self.runner = Flaky(num_pages=pool_tokens // page_size, page_size=page_size, max_context=60)
        self.one = Driver(
            self.runner,
            max_running=max_running,
            max_step_tokens=max(num_tokens, max_running),
            max_overtakes=max_overtakes,
            headroom_tokens=headroom,
            max_draft=max_draft,
            fixed_rows=1e9,
            host_bytes=host_bytes,
        )
        self.live: dict[int, tuple] = {}
        self.may_fail: set[int] = set()

    @rule(
        ids=st.lists(st.integers(1, 2), min_size=1, max_size=20),
        max_tokens=st.sampled_from([0, 1, 2, 7]),
        seed=st.integers(0, 3),
        kind=st.sampled_from(["plain", "plain", "score", "stop", "constraint", "bad constraint", "continuations"]),
        namespace=st.sampled_from(["", "", "", "tenant"]),
    )
    def submit(self, ids, max_tokens, seed, kind, namespace):
        fields, num = fields_of(kind, max_tokens, seed), self.one.num_ids
        try:
            listener = self.one.submit(ids, namespace=namespace, **fields)
        except ContextLengthError:
            trie = fields.get("continuations")
            num_tokens = len(ids) + (0 if trie is None else len(lay_out(trie, len(ids)).tokens))
            assert num_tokens > self.runner.num_pages * self.runner.page_size
            return
        room = self.runner.num_pages * self.runner.page_size - len(ids) + 1
        self.live[num] = (listener, ids, kind, max_tokens if kind == "continuations" else min(max_tokens, room), seed)

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps):
        for _ in range(num_steps):
            self.one.step()
        self._settle()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data):
        num = data.draw(st.sampled_from(sorted(self.live)))
        self.one.core.cancel(num)
        listener = self.live.pop(num)[0]
        assert isinstance(listener.error, RunCancelledError)

    @rule(num_pages=st.integers(1, 40))
    def evict(self, num_pages):
        self.one.core._memory.tree.evict(num_pages)

    @rule()
    def flush(self):
        self.one.core.flush()
        stats = self.one.core.stats()
        assert stats.pages_free * self.runner.page_size == self.runner.num_pages * self.runner.page_size - (
            stats.kv_tokens_used
        )

    @rule()
    def fail_a_step(self):
        self.runner.is_broken = True
        self.may_fail = set(self.live)
        self.one.step()
        self.runner.is_broken = False
        self._settle()
        self.may_fail = set()

    @rule()
    def drain(self):
        self.one.drain()
        self._settle()
        assert not self.live
        self.one.check_idle()

    @invariant()
    def holds(self):
        if hasattr(self, "one"):
            self.one.core.check()
            if not self.live:
                self.one.check_idle()

    def teardown(self):
        if hasattr(self, "one"):
            self.drain()
            self.one.core.flush()
            assert self.one.core.stats().pages_free == self.runner.num_pages

    def _settle(self):
        for num, (listener, ids, kind, max_tokens, seed) in list(self.live.items()):
            if not listener.is_done:
                continue
            del self.live[num]
            last = listener.events[-1]
            if isinstance(last, Failed):
                assert isinstance(last.error, EngineError)
                assert num in self.may_fail or kind == "bad constraint"
                continue
            self._compare(last, ids, fields_of("constraint" if kind == "bad constraint" else kind, max_tokens, seed))

    @staticmethod
    def _compare(got: Finished, ids, fields):
        alone = run_alone(ids, **fields)
        for name in COMPARED:
            assert getattr(got, name) == getattr(alone, name), name


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
