"""Options are scored as the model's log-probabilities of their ids, behind one computation of the branch."""

from __future__ import annotations

import pytest
from engine_fakes import log_softmax
from local_fakes import fake_local, hashed
from local_runs import MERGES, assert_idle, branch_of
from toy_tokenizers import byte_level

from forktree.backend.tokenizer import Tokenizer
from forktree.lang.errors import ContextLengthError
from forktree.runtime.protocol import OptionScore, ScoreRequest


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return Tokenizer(byte_level(MERGES))


async def test_scores_are_the_models_log_probabilities_of_the_ids(toy):
    logit = hashed(toy)
    with fake_local(toy, logit) as local:
        branch = branch_of("Name: ")
        options = ("Ada", "x", "Adax", "", "x")
        result = await local.score(ScoreRequest(branch=branch, options=options, unconditional=True))
        head = tuple(toy.encode("Name:"))
        for option, score in zip(options, result.options, strict=True):
            expected = tuple(toy.encode(" " + option)) if option else ()
            assert score.ids == expected
            assert_scores(score.logprobs, head, expected, logit, toy)
            assert_scores(score.unconditional_logprobs, toy.start_ids, expected, logit, toy)
        assert result.options[1] == result.options[4]


def assert_scores(logprobs, head, ids, logit, tokenizer) -> None:
    wanted = []
    for id in ids:
        wanted.append(log_softmax(head, logit, tokenizer.num_tokens)[id])
        head = (*head, id)
    assert logprobs == pytest.approx(wanted, abs=1e-9)


async def test_options_are_scored_behind_one_computation_of_the_branch(toy):
    with fake_local(toy, hashed(toy)) as local:
        branch = branch_of("a trunk of some length that is the same for all: ")
        options = tuple(f"option {i}" for i in range(9))
        await local.score(ScoreRequest(branch=branch, options=options))
        wholes = [await local.tokens(branch_of(option, on=branch)) for option in options]
        followed = {ids[:size] for ids in wholes for size in range(1, len(ids))}
        assert local.stats().prefill_tokens == len(followed)  # the last token of an option foretells nothing
        assert local.stats().num_finished == 1


@pytest.mark.parametrize("max_context", [10_000, 60])
async def test_many_options_are_scored_as_each_alone_in_requests_that_fit(toy, max_context):
    """Forty of them do not fit a context of 60 at once."""
    with fake_local(toy, hashed(toy), max_context=max_context) as local:
        branch = branch_of("Pick: ")
        options = tuple(f"{i} of {i * i}" for i in range(40))
        result = await local.score(ScoreRequest(branch=branch, options=options, unconditional=True))
        num_requests = local.stats().num_finished
        assert num_requests == 2 if max_context > 60 else num_requests > 4
        for option, score in zip(options, result.options, strict=True):
            (alone,) = (await local.score(ScoreRequest(branch=branch, options=(option,), unconditional=True))).options
            assert score == alone
        await assert_idle(local)


async def test_options_of_which_one_begins_another_are_scored_whole(toy):
    logit = hashed(toy)
    with fake_local(toy, logit) as local:
        options = ("x", "xx", "xxx", "x")
        result = await local.score(ScoreRequest(branch=branch_of("b"), options=options))
        for option, score in zip(options, result.options, strict=True):
            whole = tuple(toy.encode("b" + option))
            assert whole[len(whole) - len(score.ids) :] == score.ids
            assert_scores(score.logprobs, whole[: len(whole) - len(score.ids)], score.ids, logit, toy)
        assert result.options[0] == result.options[3]


async def test_empty_options_have_no_ids_and_no_options_no_scores(toy):
    with fake_local(toy, hashed(toy)) as local:
        result = await local.score(ScoreRequest(branch=branch_of("x"), options=("", ""), unconditional=True))
        assert result.options == (OptionScore((), (), ()),) * 2
        assert (await local.score(ScoreRequest(branch=None, options=()))).options == ()
        assert local.stats().num_steps == 0


async def test_the_order_of_options_does_not_change_their_scores(toy):
    with fake_local(toy, hashed(toy)) as local:
        branch = branch_of("Is it? ")
        forwards = await local.score(ScoreRequest(branch=branch, options=("True", "False", "Unknown")))
        local.flush_cache()
        backwards = await local.score(ScoreRequest(branch=branch, options=("Unknown", "False", "True")))
        assert backwards.options[::-1] == forwards.options


async def test_a_score_that_does_not_fit_fails_whole(toy):
    with fake_local(toy, hashed(toy), max_context=12) as local:
        with pytest.raises(ContextLengthError):
            await local.score(ScoreRequest(branch=branch_of("xxxx"), options=("a", "b" * 30)))
        await assert_idle(local)
