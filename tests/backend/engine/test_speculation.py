"""Guessing ahead changes how long it takes, and nothing else."""

from __future__ import annotations

import pytest
from engine_fakes import Driver, FakeRunner, LetterSink, ListMatcher, hashed_logit, mix, run_alone
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.engine.costs import FixedCosts
from forktree.backend.engine.messages import EngineRequest, SamplerParams
from forktree.backend.engine.request import Sequence
from forktree.backend.engine.speculation import Speculator, count_standing

ALWAYS = 1e9  # rows as cheap as can be: every guess pays
SOUGHT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def copying(history: tuple[int, ...], token: int) -> float:
    """Goes on as the prompt went on where it had the last token last; ends with 11 behind 9."""
    last = history[-1]
    at = max((i for i in range(len(history) - 1) if history[i] == last), default=None)
    expected = 11 if last == 9 else 0 if at is None else history[at + 1]
    return 5.0 if token == expected else mix(token, last)


def seq_of(ids: list[int], output: list[int] | None = None, id: int = 0, **fields) -> Sequence:
    made = Sequence(id, EngineRequest(ids=tuple(ids), on_event=lambda event: None, **fields), 50)
    made.ids += output or []
    made.output_ids += output or []
    return made


# --- what is proposed --------------------------------------------------------------------------------------------


def speculator(fixed_rows: float = ALWAYS) -> Speculator:
    return Speculator(FixedCosts(fixed_rows))


def test_a_draft_is_what_followed_the_last_tokens_before():
    draft = speculator().propose(seq_of([1, 2, 3, 4, 5, 9, 2, 3]), 3, 1, 1)
    assert draft is not None
    assert (draft.tokens, draft.length) == ((4, 5, 9), 2)


def test_nothing_is_drafted_without_a_match():
    assert speculator().propose(seq_of([1, 2, 3, 4]), 3, 1, 1) is None


def test_a_draft_ends_before_a_token_that_ends_the_output():
    draft = speculator().propose(seq_of([1, 2, 3, 4, 5, 1, 2], stop_token_ids=frozenset({4})), 3, 1, 1)
    assert draft is not None
    assert draft.tokens == (3,)


def test_a_draft_ends_where_the_constraint_would():
    matcher = ListMatcher([(3, 4), (3, 9)], 11)
    draft = speculator().propose(seq_of([1, 2, 3, 4, 5, 1, 2], matcher=matcher), 3, 1, 1)
    assert draft is not None
    assert draft.tokens == (3, 4)
    assert matcher.seen == ()
    nothing = speculator().propose(seq_of([1, 2, 3, 4, 5, 1, 2], matcher=ListMatcher([(7,)], 11)), 3, 1, 1)
    assert nothing is None


def test_siblings_outputs_are_searched_too():
    made = speculator()
    trunk = list(range(100, 140))
    made.leave(seq_of([*trunk, 1, 2], [3, 4, 5, 6]))
    draft = made.propose(seq_of([*trunk, 7], [3, 4], id=1), 2, 1, 1)
    assert draft is not None
    assert draft.tokens == (5, 6)
    assert made.propose(seq_of([*range(50, 90), 7], [3, 4], id=2), 2, 1, 1) is None
    assert made.propose(seq_of([*trunk, 7], [3, 4], id=3, namespace="tenant"), 2, 1, 1) is None
    made.forget()
    assert made.propose(seq_of([*trunk, 7], [3, 4], id=4), 2, 1, 1) is None


def test_what_running_siblings_have_made_so_far_is_searched_too():
    made = speculator()
    trunk = list(range(100, 140))
    ahead, behind = seq_of([*trunk, 1, 2], [3, 4, 5, 6]), seq_of([*trunk, 7], [3, 4], id=1)
    made.propose(ahead, 2, 2, 2)
    draft = made.propose(behind, 2, 2, 2)
    assert draft is not None
    assert draft.tokens == (5, 6)
    behind.ids += [5, 6]
    ahead.ids += [8, 9]
    assert made.propose(behind, 2, 2, 2).tokens == (8, 9)
    assert made.propose(seq_of([*range(50, 90), 7], [3, 4], id=2), 2, 3, 3) is None


def test_nothing_is_kept_of_siblings_that_have_left_without_an_output():
    made = speculator()
    seqs = [seq_of([*range(100, 140), number], id=number) for number in range(3)]
    for seq in seqs:
        made.propose(seq, 2, 3, 3)
    for seq in seqs:
        made.leave(seq)
    assert not made._siblings
    assert not made._records


def test_what_is_remembered_of_siblings_is_bounded():
    made = speculator()
    for number in range(300):
        made.leave(seq_of([number % 40] * 32, list(range(1000)), id=number))
    assert len(made._trunks) <= 32
    assert all(len(text.ids) <= 4096 for text in made._trunks.values())


def test_a_request_whose_drafts_fall_gets_none_and_is_tried_again_later():
    made = speculator(fixed_rows=12.0)
    seq = seq_of([1, 2, 3, 4, 5, 1, 2])
    num_made = []
    for step in range(200):
        draft = made.propose(seq, 4, 6, 6)
        if draft is not None:
            num_made.append(step)
            made.learn(seq, draft, [9])  # something else was drawn
    assert num_made[0] == 0
    assert 2 <= len(num_made) <= 6


def test_a_request_whose_drafts_stand_gets_longer_ones():
    made = speculator(fixed_rows=12.0)
    seq = seq_of([*SOUGHT, 1, 2])
    sizes = []
    for _ in range(40):
        draft = made.propose(seq, 7, 6, 6)
        if draft is not None:
            sizes.append(len(draft.tokens))
            made.learn(seq, draft, [*draft.tokens, 0])
    assert sizes[0] < 7 == sizes[-1]


@pytest.mark.parametrize(("num_decoding", "is_made"), [(1, True), (8, True), (1000, False)])
def test_a_guess_has_to_pay_for_its_row(num_decoding, is_made):
    made = speculator(fixed_rows=12.0)
    draft = made.propose(seq_of([1, 2, 3, 4, 5, 1, 2]), 1, num_decoding, num_decoding)
    assert (draft is not None) == is_made


def test_tokens_behind_the_first_that_differs_do_not_stand():
    assert [count_standing((1, 2, 3), drawn) for drawn in ([1, 2, 3, 4], [1, 9, 3], [9], [1], [])] == [3, 1, 0, 1, 0]


# --- in the engine -----------------------------------------------------------------------------------------------


def test_a_copied_text_takes_few_steps_and_is_the_same():
    ids = [*SOUGHT, 1, 2]
    plain = Driver(FakeRunner(logit=copying), max_draft=0)
    guessing = Driver(FakeRunner(logit=copying), max_draft=4, fixed_rows=ALWAYS)
    fields = {"max_tokens": 30, "stop_token_ids": frozenset({11})}
    expected, heard = plain.submit(ids, **fields), guessing.submit(ids, **fields)
    plain.drain()
    guessing.drain()
    assert heard.finished == expected.finished
    assert heard.events[:-1] == expected.events[:-1]
    assert heard.finished.ids == (3, 4, 5, 6, 7, 8, 9)
    stats = guessing.core.stats()
    assert (plain.core.stats().num_steps, stats.num_steps) == (8, 2)
    # 3 4 5 6, which bring 7, then 8 9 1 2, of which the end takes the place of 1
    assert (stats.drafted_tokens, stats.accepted_tokens, stats.decode_tokens) == (8, 6, 8)
    guessing.check_idle()


def test_what_was_computed_for_a_fallen_guess_is_never_read():
    """The runner of the tests reports a slot that holds another token than the history says."""
    prompt = [1, 2, 3, 4, 1, 2, 5, 6, 1, 2]
    one = Driver(FakeRunner(num_pages=60), max_draft=6, fixed_rows=ALWAYS)
    first = one.submit(prompt, max_tokens=20)
    one.drain()
    assert one.core.stats().drafted_tokens > one.core.stats().accepted_tokens
    turn = [*prompt, *first.finished.ids, 3]
    second = one.submit(turn, max_tokens=4)
    one.drain()
    assert first.finished.ids == run_alone(prompt, max_tokens=20, config={"max_draft": 0}).ids
    assert second.finished.ids == run_alone(turn, max_tokens=4, config={"max_draft": 0}).ids


def test_guesses_take_only_rows_and_pages_that_nobody_needs():
    one = Driver(FakeRunner(num_pages=3, logit=copying), max_draft=8, fixed_rows=ALWAYS, max_step_tokens=3)
    listener = one.submit([*SOUGHT[:5], 1, 2], max_tokens=6)
    one.drain()
    assert all(len(batch.ids) <= 3 for batch in one.runner.batches)
    assert listener.finished.ids == run_alone([*SOUGHT[:5], 1, 2], FakeRunner(logit=copying), max_tokens=6).ids


WORDS = ["", "a", "b", "ab", "ba", "c", "aa", "bb", "ca", "d", "e", "f"]
KINDS = st.sampled_from(["plain", "plain", "stop", "constraint", "penalties", "score"])
REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 2), min_size=1, max_size=20),
        st.integers(0, 12),
        st.sampled_from([0.0, 0.3, 1.0]),
        KINDS,
    ),
    min_size=1,
    max_size=8,
)


def fields_of(max_tokens: int, temperature: float, kind: str, seed: int) -> dict:
    params = SamplerParams(temperature=temperature, seed=seed, num_logprobs=0)
    fields = {"max_tokens": max_tokens, "stop_token_ids": frozenset({11})}
    if kind == "penalties":
        params = SamplerParams(temperature=temperature, seed=seed, frequency_penalty=0.4, repetition_penalty=1.1)
    elif kind == "stop":
        fields["sink"] = LetterSink(WORDS, ["abab", "cc"])
    elif kind == "constraint":
        fields["matcher"] = ListMatcher([(1, 2, 1, 2, 1, 2), (1, 2), (2, 1, 2, 2, 1), (2, 2, 2, 2, 2, 2, 2)], 11)
    elif kind == "score":
        fields["score_from"] = 1
    return fields | {"params": params}


def habits(history: tuple[int, ...], token: int) -> float:
    """Mostly depends on the last two tokens, so that texts repeat themselves, and a little on all."""
    return 5.0 * mix(*history[-2:], token) + hashed_logit(history, token) / 8


@settings(max_examples=80, deadline=None)
@given(REQUESTS, st.sampled_from([1, 2, 4, 16]), st.integers(1, 40), st.integers(30, 70), st.integers(1, 6), st.data())
def test_outputs_are_those_of_plain_decoding(requests, page_size, num_tokens, pool_tokens, max_running, data):
    runner = FakeRunner(num_pages=-(-pool_tokens // page_size), page_size=page_size, logit=habits)
    one = Driver(
        runner,
        max_step_tokens=max(num_tokens, max_running),
        max_running=max_running,
        headroom_tokens=0,
        max_draft=data.draw(st.sampled_from([1, 3, 8])),
        fixed_rows=data.draw(st.sampled_from([12.0, ALWAYS])),
    )
    heard = []
    for seed, (ids, *how) in enumerate(requests):
        heard.append((one.submit(ids, **fields_of(*how, seed)), ids, how, seed))
        for _ in range(data.draw(st.integers(0, 3))):
            one.step()
        one.core._memory.tree.evict(data.draw(st.sampled_from([0, 0, 3])))
    one.drain()
    one.check_idle()
    for listener, ids, how, seed in heard:
        plain = FakeRunner(num_pages=100, page_size=16, logit=habits)
        expected = run_alone(ids, plain, config={"max_draft": 0}, **fields_of(*how, seed))
        for name in ("ids", "tokens", "reason", "stop", "is_complete", "tail_text", "prompt_logprobs"):
            assert getattr(listener.finished, name) == getattr(expected, name), name
