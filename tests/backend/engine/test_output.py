"""What may be drawn, and what a drawn token does: ends, stops, constraints, lengths. Token t is letter t."""

from __future__ import annotations

import string

import pytest
from engine_fakes import Driver, FakeRunner, LetterSink, Listener, ListMatcher, run_alone

from forktree.backend.engine.messages import Emitted, SamplerParams

EOS = 11


def scripted(*tokens: int) -> FakeRunner:
    """A model that writes these tokens behind a prompt of one token, and EOS after them."""

    def logit(history: tuple[int, ...], token: int) -> float:
        wish = tokens[len(history) - 1] if len(history) <= len(tokens) else EOS
        return 5.0 * (token == wish) + 1.0 * (token == EOS)

    return FakeRunner(logit=logit)


def run(runner: FakeRunner, **fields) -> Listener:
    one = Driver(runner)
    listener = one.submit([0], **({"max_tokens": 20, "stop_token_ids": frozenset({EOS})} | fields))
    one.drain()
    one.check_idle()
    return listener


def letters(*stops: str) -> LetterSink:
    return LetterSink([*string.ascii_lowercase[:11], ""], stops)


# --- ends ----------------------------------------------------------------------------------------------------


def test_an_end_token_ends_the_output_and_is_no_part_of_it():
    done = run(scripted(1, 2), sink=letters()).finished
    assert (done.ids, done.reason, done.stop) == ((1, 2), "stop", EOS)
    assert [info.token for info in done.tokens] == [1, 2]


def test_an_end_token_at_once_is_an_empty_output():
    done = run(scripted()).finished
    assert (done.ids, done.reason) == ((), "stop")


def test_max_tokens_cuts():
    done = run(scripted(1, 2, 3), max_tokens=2, sink=letters()).finished
    assert (done.ids, done.reason, done.stop) == ((1, 2), "length", None)


def test_an_ordinary_stop_token_ends_too():
    done = run(scripted(1, 2, 3), stop_token_ids=frozenset({EOS, 3})).finished
    assert (done.ids, done.stop) == ((1, 2), 3)


def test_no_end_token_is_drawn_before_min_tokens():
    done = run(scripted(1), min_tokens=3).finished
    assert len(done.ids) >= 3
    assert EOS not in done.ids


def test_events_arrive_in_order_and_make_the_text():
    listener = run(scripted(1, 2, 3), sink=letters())
    assert [type(event).__name__ for event in listener.events] == ["Emitted", "Emitted", "Emitted", "Finished"]
    assert listener.text == "bcd"
    assert [info.token for e in listener.events if isinstance(e, Emitted) for info in e.tokens] == [1, 2, 3]


# --- stops in the text -----------------------------------------------------------------------------------------


def test_a_stop_is_no_part_of_the_text_and_the_ids_render_to_what_is_kept():
    listener = run(scripted(1, 2, 3, 4, 5), sink=letters("de"))
    assert listener.text == "bc"
    done = listener.finished
    assert (done.ids, done.reason, done.stop, done.tail_text) == ((1, 2), "stop", "de", "")
    assert [info.token for info in done.tokens] == [1, 2]


def test_text_that_a_stop_may_take_back_is_held_back():
    listener = run(scripted(1, 3, 4, 1), sink=letters("dex"))
    shown = [event.text for event in listener.events]
    assert shown == ["b", "", "", "deb", ""]


def test_a_token_that_straddles_a_stop_leaves_its_kept_part_as_tail_text():
    sink = LetterSink(["", "ab", "cd.e"], stops=["."])
    listener = run(scripted(1, 2), sink=sink)
    assert listener.text == "abcd"
    assert (listener.finished.ids, listener.finished.tail_text) == ((1,), "cd")


# --- constraints -----------------------------------------------------------------------------------------------


def test_a_constraint_is_kept_whatever_the_model_would_rather_write():
    done = run(scripted(9, 9, 9), matcher=ListMatcher([(1, 2, 3), (1, 4)], EOS)).finished
    assert done.ids in {(1, 2, 3), (1, 4)}
    assert done.is_complete


def test_a_constraint_that_lets_nothing_follow_ends_without_another_forward_pass():
    runner = scripted(1, 2)
    done = run(runner, matcher=ListMatcher([(1, 2)], EOS)).finished
    assert (done.ids, done.reason, done.stop) == ((1, 2), "stop", None)
    assert len(runner.batches) == 2


def test_where_a_constraint_may_end_leaving_it_is_ending():
    # After (1,) the model wishes for 9, which is illegal: it wants to leave the language, so the output ends.
    done = run(scripted(1, 9), matcher=ListMatcher([(1,), (1, 2)], EOS)).finished
    assert (done.ids, done.stop) == ((1,), EOS)


def test_the_longer_of_two_options_can_be_chosen():
    assert run(scripted(1, 2), matcher=ListMatcher([(1,), (1, 2)], EOS)).finished.ids == (1, 2)


def test_a_cut_constraint_is_marked():
    done = run(scripted(1, 2, 3), max_tokens=2, matcher=ListMatcher([(1, 2, 3)], EOS)).finished
    assert (done.ids, done.reason, done.is_complete) == ((1, 2), "length", False)


def test_a_constraint_that_is_met_by_nothing_at_all_ends_at_once():
    done = run(scripted(1), matcher=ListMatcher([()], EOS)).finished
    assert (done.ids, done.reason, done.is_complete) == ((), "stop", True)


class OnceMatcher(ListMatcher):
    """Asks for token 1 and then for nothing more."""

    def __init__(self) -> None:
        super().__init__([(1,)], EOS)
        self.num_masks = 0

    def mask(self):
        self.num_masks += 1
        return super().mask()

    def must_end(self):
        return False

    def is_free(self):
        return self.seen == (1,)


def test_a_matcher_that_forbids_nothing_more_is_dropped():
    matcher = OnceMatcher()
    done = run(scripted(9, 5, 6), matcher=matcher).finished
    assert done.ids == (1, 5, 6)
    assert matcher.num_masks == 1
    assert done.is_complete


def test_ids_beyond_the_mask_are_illegal():
    # Logits are wider (128) than the vocabulary (100), and the model loves the padding.
    def logit(history, token):
        return 9.0 if token in (110, 127) else 0.1 * (token % 7)

    runner = FakeRunner(vocab=128, logit=logit)
    matcher = ListMatcher([(97, 98, 99, digit) for digit in range(48, 58)], 0, vocab=100)
    done = run(runner, matcher=matcher, stop_token_ids=frozenset({0})).finished
    assert done.ids[:3] == (97, 98, 99)
    assert 48 <= done.ids[3] < 58


# --- penalties: the sampler sees this output alone, in any company ---------------------------------------------

A, B, C = 1, 2, 3


def by_hand(num_tokens: int, **penalties: float) -> tuple[int, ...]:
    """Constant logits (a above b above c) behind the prompt aaab, penalised as the textbook says."""
    base, out = {A: 2.0, B: 1.5, C: 1.0}, []
    for _ in range(num_tokens):
        score = {}
        for token, value in base.items():
            count = out.count(token)
            if count or token in (A, B):
                value /= penalties.get("repetition_penalty", 1.0)
            value -= count * penalties.get("frequency_penalty", 0.0)
            value -= (count > 0) * penalties.get("presence_penalty", 0.0)
            score[token] = value
        out.append(max(score, key=score.get))
    return tuple(out)


@pytest.mark.parametrize(
    "penalties",
    [
        {"frequency_penalty": 1.5},
        {"presence_penalty": 2.0},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 1.0, "frequency_penalty": 0.0},
    ],
)
def test_penalties_see_prompt_and_output_of_their_own_request(penalties):
    def logit(history, token):
        return {A: 2.0, B: 1.5, C: 1.0}.get(token, -99.0)

    prompt, fields = [A, A, A, B], {"max_tokens": 8, "params": SamplerParams(**penalties)}
    expected = by_hand(8, **penalties)
    assert run_alone(prompt, FakeRunner(logit=logit), **fields).ids == expected
    runner = FakeRunner(num_pages=11, page_size=2, logit=logit)
    one = Driver(runner, headroom_tokens=0)
    one.submit([5] * 9, max_tokens=8)
    listener = one.submit(prompt, **fields)
    one.submit([6] * 5, max_tokens=2)
    one.drain()
    assert one.core.stats().num_preemptions > 0
    assert listener.finished.ids == expected
