"""Choosing among options, through the language and the engine, where others chose by accident."""

from __future__ import annotations

import itertools
import math

import pytest
from local_fakes import FakeSource, fake_local, runner_of, table
from tokenizers import Tokenizer as Backend
from tokenizers import models
from toy_tokenizers import byte_level
from transformers import PreTrainedTokenizerFast

import forktree as ft
from forktree.backend.tokenizer import Tokenizer


def logs(**probabilities: float) -> dict[str, float]:
    return {piece.strip("_"): math.log(value) for piece, value in probabilities.items()}


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    """skill is [sk, ill], cloud is [cl, oud]; True, False and Unknown are of one token, one, and two."""
    merges = [("s", "k"), ("i", "l"), ("il", "l"), ("c", "l"), ("o", "u"), ("ou", "d")]
    for word in ("True", "False", "Unkn", "own"):
        merges += [(word[:i], word[i]) for i in range(1, len(word))]
    return Tokenizer(byte_level(merges))


# After "sky:" the first token of the wrong option is the likelier one, and what follows it is not.
SKY = {"sky:": logs(sk=0.6, cl=0.4), "sk": logs(ill=0.01, y=0.99), "cl": logs(oud=0.9, x=0.1)}


@pytest.mark.parametrize(
    ("method", "winner"),
    [
        ("token_length_normalized", "cloud"),
        ("greedy_token_selection", "skill"),
    ],
)
def test_whole_options_are_compared_and_greedy_selection_alone_looks_no_further(words, method, winner) -> None:
    @ft.function
    def program(s):
        s += "A word close to sky:" + ft.select("word", ["skill", "cloud"], method=method)

    with fake_local(words, table(words, SKY)) as local:
        state = program.run(backend=local)
    assert state["word"] == winner
    by_text = {option.text: option for option in state.meta("word").options}
    assert by_text["skill"].logprob == pytest.approx(math.log(0.6 * 0.01), abs=1e-5)
    assert by_text["cloud"].logprob == pytest.approx(math.log(0.4 * 0.9), abs=1e-5)
    assert by_text["cloud"].token_logprobs == pytest.approx([math.log(0.4), math.log(0.9)], abs=1e-5)


def test_greedy_decoding_under_a_pattern_may_choose_otherwise(words) -> None:
    @ft.function
    def program(s):
        s += "A word close to sky:" + ft.gen("word", regex="(skill|cloud)", temperature=0)

    with fake_local(words, table(words, {**SKY, "ill": {"<end>": 9.0}})) as local:
        assert program.run(backend=local)["word"] == "skill"


@pytest.mark.parametrize("num_words", [1, 400])
def test_scores_depend_on_the_options_alone_and_not_on_prompt_or_order(words, num_words) -> None:
    rows = {
        "?": {**logs(True_=0.3, False_=0.55), "Unkn": math.log(0.15)},
        "Unkn": logs(own=0.9, o=0.1),
    }
    prompt = "so " * num_words + "is it?"

    @ft.function
    def program(s, options):
        s += prompt + ft.select("answer", options)

    with fake_local(words, table(words, rows), num_pages=2000) as local:
        assert len(local.tokenize(prompt)) >= 3 * num_words
        for options in itertools.permutations(["True", "False", "Unknown"]):
            state = program.run(list(options), backend=local)
            meta = state.meta("answer")
            assert state["answer"] == "False"
            assert [option.text for option in meta.options] == list(options)
            scores = {option.text: option.score for option in meta.options}
            assert scores == pytest.approx(
                {"True": math.log(0.3), "False": math.log(0.55), "Unknown": math.log(0.15 * 0.9) / 2}, abs=1e-6
            )


def test_an_option_is_scored_as_the_tokens_it_has_behind_the_prompt() -> None:
    """`xyz` is [xy, z]: an option cut off from its prompt would have been [yz]."""
    vocab = {"<eos>": 0, "x": 1, "y": 2, "z": 3, "xy": 4, "yz": 5, "q": 6}
    backend = Backend(models.BPE(vocab, [("x", "y"), ("y", "z")]))
    letters = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>"))

    @ft.function
    def program(s):
        s += "qx" + ft.select("end", ["yz", "q"])

    with fake_local(letters, lambda history, token: float(token == 4)) as local:
        state = program.run(backend=local)
        assert isinstance(local._model._source, FakeSource)
        # q, then the tokens that foretell z and the other q: what nothing follows is not computed
        (batch,) = runner_of(local).batches
        assert batch.ids == [6, 1, 4]
        assert state["end"] == "yz"
        assert state.text() == "qxyz"
        assert list(state.tokens()) == letters.encode("qxyz") == [6, 4, 3]
        assert [len(option.token_logprobs) for option in state.meta("end").options] == [2, 2]
