from __future__ import annotations

import pytest
from toy_tokenizers import byte_level

from forktree.backend.engine.messages import SamplerParams
from forktree.backend.local_requests import model_defaults, plan, sampler_params
from forktree.backend.render import Prompt
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.constraints import RegexSpec
from forktree.lang.errors import ModelError
from forktree.lang.sampling import Sampling


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return Tokenizer(byte_level())


def test_a_model_that_says_nothing_is_greedy():
    assert model_defaults({}) == Sampling(temperature=0.0)
    assert sampler_params(model_defaults({}), 0).temperature == 0.0


def test_the_models_own_sampling_applies_where_the_program_says_nothing():
    config = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1}
    defaults = model_defaults(config)
    params = sampler_params(Sampling(top_k=5, seed=1).over(defaults))
    assert params == SamplerParams(temperature=0.6, top_p=0.9, top_k=5, repetition_penalty=1.1, seed=1)
    assert model_defaults({"do_sample": False, "temperature": 0.6}).temperature == 0.0
    assert model_defaults({"do_sample": True}).temperature == 1.0


def test_a_generation_config_out_of_range_is_named():
    with pytest.raises(ModelError, match=r"generation_config.json is not usable: top_p must be"):
        model_defaults({"top_p": 3})


def test_a_zero_repetition_or_nucleus_is_not_taken_for_not_given():
    params = sampler_params(Sampling(top_p=0.0, temperature=0.0, top_k=-1))
    assert (params.top_p, params.top_k) == (0.0, 0)


def test_the_first_sample_keeps_the_seed_and_the_others_get_their_own():
    seeds = [sampler_params(Sampling(seed=7), index).seed for index in range(100)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 100
    assert seeds == [sampler_params(Sampling(seed=7), index).seed for index in range(100)]
    assert sampler_params(Sampling(seed=8), 1).seed not in seeds


def test_prompts_of_one_seed_get_their_own():
    """Else rows of a batch would have the same luck at the same position."""
    seeds = [sampler_params(Sampling(seed=7), 0, (index, 1, 2)).seed for index in range(100)]
    assert len(set(seeds)) == 100
    assert seeds == [sampler_params(Sampling(seed=7), 0, (index, 1, 2)).seed for index in range(100)]
    assert sampler_params(Sampling(seed=8), 0, (0, 1, 2)).seed not in seeds
    assert sampler_params(Sampling(seed=7), 1, (0, 1, 2)).seed not in seeds


def test_without_a_seed_every_request_draws_its_own():
    assert sampler_params(Sampling()).seed != sampler_params(Sampling()).seed


def test_end_tokens_are_ignored_when_asked_but_never_under_a_constraint(toy):
    prompt = Prompt((1,))
    assert plan(prompt, Sampling(), toy).stop_token_ids == toy.eos_ids
    assert plan(prompt, Sampling(stop_token_ids=(5,)), toy).stop_token_ids == toy.eos_ids | {5}
    assert plan(prompt, Sampling(ignore_eos=True, stop_token_ids=(5,)), toy).stop_token_ids == {5}
    constrained = plan(prompt, Sampling(ignore_eos=True), toy, spec=RegexSpec("a"))
    assert constrained.stop_token_ids == toy.eos_ids


def test_a_prefix_alone_needs_a_matcher_until_it_is_written(toy):
    work = plan(Prompt((1,), b" ", 1), Sampling(), toy)
    assert work.constraint is None
    assert not work.matcher.is_free()
    work.matcher.advance(toy.encode(" ")[0])
    assert work.matcher.is_free()
