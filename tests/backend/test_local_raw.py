"""Raw prompts, text or ids, are continued as they are."""

from __future__ import annotations

import pytest
from local_fakes import fake_local, hashed, speaker
from local_runs import MERGES
from toy_tokenizers import byte_level

from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import ChoicesSpec
from forktree.lang.errors import ContextLengthError
from forktree.lang.sampling import Sampling


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return Tokenizer(byte_level(MERGES))


def test_raw_prompts_are_continued_as_they_are():
    tokenizer = Tokenizer(
        byte_level(MERGES, specials=["<s>", "</s>"], bos_token="<s>", adds_bos=True, chat_template=None)
    )
    with fake_local(tokenizer, speaker(tokenizer, "Name: Ada", "Q: yes")) as local:
        bos = tokenizer.bos_ids[0]
        done = local.generate(["Name:", [bos, *tokenizer.encode("Q:")], "<s>Q:"], Sampling(max_tokens=9))
        assert [completion.text for completion in done[:2]] == [" Ada", " yes"]
        assert done[0].tokens == tokenizer.encode(" Ada")
        assert done[0].finish_reason == "stop"
        assert done[0].usage.prompt_tokens == 1 + len(tokenizer.encode("Name:"))
        assert done[2].usage.prompt_tokens == 1 + len(tokenizer.encode("<s>Q:"))
        [marked] = local.generate("<s>Q:", markup=True)
        assert (marked.text, marked.usage.prompt_tokens) == (" yes", 3)


def test_raw_prompts_take_n_samples_in_a_row_and_constraints(toy):
    with fake_local(toy, hashed(toy)) as local:
        done = local.generate(["x", "y"], Sampling(n=3, seed=1, temperature=1.0, max_tokens=6))
        assert len(done) == 6
        assert len({completion.text for completion in done[:3]}) == 3
        [chosen] = local.generate(["x"], constraint=ChoicesSpec(("yes", "no")))
        assert chosen.text in ("yes", "no")


@pytest.mark.parametrize(
    ("prompts", "error", "words"),
    [
        ([1, 2], TypeError, "prompt 0 is the number 1"),
        ([["a"]], TypeError, "holds 'a', which is no token id"),
        ([[True]], TypeError, "holds True"),
        ([[10**6]], ValueError, "token id 1000000; this model's are 0 to"),
        (["x", []], ValueError, "prompt 1 is empty"),
        ([""], ValueError, "prompt 0 is empty"),
        (3, TypeError, "not int"),
    ],
)
def test_raw_prompts_are_checked_before_anything_runs(toy, prompts, error, words):
    with fake_local(toy, hashed(toy)) as local:
        with pytest.raises(error, match=words):
            local.generate(prompts)
        assert local.stats().num_steps == 0


def test_one_raw_prompt_that_does_not_fit_lets_the_others_end(toy):
    with fake_local(toy, hashed(toy), max_context=8) as local:
        with pytest.raises(ContextLengthError):
            local.generate(["x" * 20, "xx"], Sampling(max_tokens=2))
        assert local.stats().num_finished == 1


def test_tokenize_and_detokenize_round_trip(toy):
    with fake_local(toy, hashed(toy)) as local:
        text = "Name: 🦙<|im_end|>"
        assert local.detokenize(local.tokenize(text)) == text
        assert local.tokenize("<|im_end|>", markup=True) == [toy.hf.convert_tokens_to_ids("<|im_end|>")]
