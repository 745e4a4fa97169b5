"""Random sets of numbers, small enough that values near their bounds are often drawn."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from forktree.backend.grammar.number_sets import Numbers

small = st.integers(-60, 60).map(lambda n: Decimal(n).scaleb(-1))
steps = st.sampled_from([Decimal(text) for text in ("1", "0.5", "3", "2.5", "0.1", "20")])


@st.composite
def number_sets(draw: st.DrawFn) -> Numbers:
    if draw(st.booleans()) and draw(st.booleans()):
        return Numbers(only=frozenset(draw(st.lists(small, min_size=1, max_size=3))))
    return Numbers(
        low=draw(st.none() | small),
        high=draw(st.none() | small),
        is_above=draw(st.booleans()),
        is_below=draw(st.booleans()),
        step=draw(st.none() | steps),
        not_steps=frozenset(draw(st.lists(steps, max_size=2))),
        excluded=frozenset(draw(st.lists(small, max_size=2))),
    )
