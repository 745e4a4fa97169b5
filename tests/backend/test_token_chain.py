"""A chain of tokens is a list that shares its beginning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.token_chain import TokenChain


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.one_of(st.lists(st.integers(0, 9), max_size=4), st.integers(0, 6)), max_size=12))
def test_a_token_chain_behaves_like_a_list(steps):
    chain, model, older = TokenChain(), [], []
    for step in steps:
        older.append((chain, tuple(model)))
        if isinstance(step, int):
            count = min(step, len(model))
            chain, model = chain.without_last(count), model[: len(model) - count]
        else:
            chain, model = chain.extended(step), model + step
        assert chain.to_tuple() == tuple(model)
        assert chain.last(3) == tuple(model[-3:])
        assert len(chain) == len(model)
    assert all(chain.to_tuple() == ids for chain, ids in older)


def test_a_token_chain_cannot_lose_what_it_has_not():
    with pytest.raises(ValueError, match="cannot take 2 of 1 tokens away"):
        TokenChain().extended([1]).without_last(2)
