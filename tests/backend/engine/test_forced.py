"""Forced tokens: appended without a draw, several in a step, and the output is what draws would have given."""

from __future__ import annotations

import string

from engine_fakes import Driver, FakeRunner, LetterSink, Listener, ListMatcher, run_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.messages import SamplerParams

EOS = 11
END = frozenset({EOS})


class ForcingMatcher(ListMatcher):
    """Says what must come next. Only one token is legal there, so a draw could give nothing else."""

    def forced(self) -> tuple[int, ...]:
        twin = ListMatcher(self.options, self.eos, self.vocab)
        twin.seen = self.seen
        run = []
        while not twin.is_complete() and len(nexts := twin._nexts()) == 1:
            run.append(nexts.pop())
            twin.advance(run[-1])
        return tuple(run)

    def copy(self) -> ForcingMatcher:
        twin = ForcingMatcher(self.options, self.eos, self.vocab)
        twin.seen = self.seen
        return twin


class BrokenMatcher(ListMatcher):
    def forced(self) -> tuple[int, ...]:
        raise RuntimeError("boom")


def letters(*stops: str) -> LetterSink:
    return LetterSink([*string.ascii_lowercase[:11], ""], stops)


def run(matcher: ListMatcher, **fields) -> tuple[Listener, Driver]:
    one = Driver(FakeRunner())
    listener = one.submit([0, 1], **({"max_tokens": 20, "stop_token_ids": END, "matcher": matcher} | fields))
    one.drain()
    one.check_idle()
    return listener, one


OPTIONS = [(1, 2, 3, 4, 5, 6), (1, 2, 7, 8, 9)]


def test_forced_tokens_cost_rows_and_no_steps():
    plain, drawn = run(ListMatcher(OPTIONS, EOS), sink=letters())
    listener, one = run(ForcingMatcher(OPTIONS, EOS), sink=letters())
    assert listener.finished.ids == plain.finished.ids
    assert listener.text == plain.text
    stats = one.core.stats()
    assert (stats.decode_tokens, stats.forced_tokens) == (1, len(plain.finished.ids) - 1)
    assert stats.prefill_tokens == drawn.core.stats().prefill_tokens == 2
    assert stats.num_steps == 1  # the prompt with what is forced at once; the rest is never computed


def test_an_output_that_is_forced_whole_computes_nothing():
    listener, one = run(ForcingMatcher([(1, 2, 3)], EOS), sink=letters())
    assert listener.finished.ids == (1, 2, 3)
    assert listener.finished.reason == "stop"
    assert listener.finished.is_complete
    assert listener.text == "bcd"
    assert one.core.stats().num_steps == 0


def test_max_tokens_cuts_a_run():
    listener, _ = run(ForcingMatcher([(1, 2, 3)], EOS), max_tokens=2)
    assert (listener.finished.ids, listener.finished.reason) == ((1, 2), "length")
    assert not listener.finished.is_complete


def test_a_stop_inside_a_run_ends_the_output():
    listener, _ = run(ForcingMatcher([(1, 2, 3, 4)], EOS), sink=letters("d"))
    assert (listener.finished.ids, listener.finished.stop) == ((1, 2), "d")
    assert listener.text == "bc"


def test_tokens_that_the_request_has_wishes_about_are_drawn():
    listener, one = run(ForcingMatcher([(1, 2, 3)], EOS), stop_token_ids=END | {2})
    assert (listener.finished.ids, listener.finished.stop) == ((1,), 2)
    assert one.core.stats().forced_tokens == 1
    _, one = run(ForcingMatcher([(1, 2, 3)], EOS), params=SamplerParams(logit_bias=((2, -1.0),)))
    assert one.core.stats().forced_tokens == 2
    assert one.core.stats().decode_tokens == 1


def test_the_log_probability_of_a_forced_token_is_0():
    params = SamplerParams(num_logprobs=2)
    listener, _ = run(ForcingMatcher([(1, 2, 3)], EOS), params=params)
    assert [(info.token, info.logprob, info.top) for info in listener.finished.tokens] == [
        (1, 0.0, ()),
        (2, 0.0, ()),
        (3, 0.0, ()),
    ]


def test_a_fault_of_a_matcher_fails_its_own_request():
    one = Driver(FakeRunner())
    good = one.submit([0, 1], max_tokens=2)
    bad = one.submit([0, 2], max_tokens=2, matcher=BrokenMatcher(OPTIONS, EOS))
    one.drain()
    one.check_idle()
    assert good.finished.reason == "length"
    assert str(bad.error) == "the constraint failed: RuntimeError: boom"


@settings(max_examples=40, deadline=None)
@given(
    options=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9).map(tuple), min_size=1, max_size=4),
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=6),
    num_pages=st.integers(8, 20),
    step=st.integers(4, 16),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_outputs_are_those_of_draws_in_any_batch(options, prompts, num_pages, step, temperature):
    one = Driver(FakeRunner(num_pages=num_pages), max_step_tokens=step, max_running=4)
    fields = {"max_tokens": 12, "stop_token_ids": END, "params": SamplerParams(temperature=temperature, seed=3)}
    listeners = [one.submit(prompt, matcher=ForcingMatcher(options, EOS), **fields) for prompt in prompts]
    one.drain()
    one.check_idle()
    for prompt, listener in zip(prompts, listeners, strict=True):
        assert listener.finished.ids == run_alone(prompt, matcher=ListMatcher(options, EOS), **fields).ids
        assert listener.finished.num_cached <= len(prompt)
    stats = one.core.stats()
    assert stats.forced_tokens + stats.decode_tokens >= sum(len(one.finished.ids) for one in listeners)
