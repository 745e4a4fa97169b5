"""A boundary in the middle of a token is healed, once, and a fork leaves its trunk as it is."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render_parts import branch_of, chat, piece_tokenizer, pieces_of, toy_tokenizer

from forktree.backend.render import Prompt, Renderer
from forktree.backend.tokenizer import Tokenizer
from forktree.runtime.protocol import Branch, ForkMark, Generated, RoleBegin, RoleEnd, Text


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return toy_tokenizer()


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    return piece_tokenizer()


@pytest.fixture
def renderer(toy) -> Renderer:
    return Renderer(toy)


# --- healing ---------------------------------------------------------------------------------------------------


def test_the_last_ordinary_token_is_withdrawn_before_a_generation(toy, renderer):
    prompt = renderer.prompt(branch_of(Text("Name: ")))
    assert (pieces_of(toy, prompt.ids), prompt.prefix, prompt.num_withdrawn) == (["Name", ":"], b" ", 1)
    assert renderer.prompt(branch_of(Text("Name: ")), heal=False).ids == tuple(toy.encode("Name: "))


def test_a_token_that_nothing_extends_is_not_withdrawn(toy, renderer):
    assert renderer.prompt(branch_of(Text("Name: Ada"))) == Prompt(tuple(toy.encode("Name: Ada")))


def test_the_only_token_is_not_withdrawn(toy, renderer):
    assert renderer.prompt(branch_of(Text(" "))) == Prompt(tuple(toy.encode(" ")))


def test_special_generated_and_template_tokens_are_never_withdrawn(toy, renderer):
    generated = Generated(" ", tuple(toy.encode(" ")))
    for segments in (
        [Text("x"), generated],
        [Text("x"), generated, ForkMark()],
        [Text("x<|im_end|>", markup=True)],
        [RoleBegin("assistant")],
        [RoleBegin("assistant"), ForkMark()],
    ):
        assert renderer.prompt(branch_of(*segments)).num_withdrawn == 0
        assert renderer.prompt(branch_of(*segments)).ids == renderer.ids(branch_of(*segments))


def test_text_after_a_template_is_withdrawn_but_not_the_template(toy, renderer):
    prompt = renderer.prompt(branch_of(RoleBegin("assistant"), Text("Name: ")))
    assert prompt.prefix == b" "
    assert pieces_of(toy, prompt.ids)[-2:] == ["Name", ":"]


def test_what_was_appended_and_when_does_not_change_the_prompt(renderer):
    at_once = renderer.prompt(branch_of(Text("Name: ")))
    earlier = branch_of(Text("Name"))
    renderer.ids(earlier)  # rendered on the way
    assert renderer.prompt(branch_of(Text(": "), on=earlier)) == at_once


# --- forks -----------------------------------------------------------------------------------------------------


def test_a_branch_heals_against_its_trunk_and_leaves_the_trunk_alone(toy, renderer):
    trunk = branch_of(Text("Name: "))
    before = renderer.ids(trunk)
    one, two = branch_of(ForkMark(), Text("Ada"), on=trunk), branch_of(ForkMark(), Text("x"), on=trunk)
    assert pieces_of(toy, renderer.ids(one)) == ["Name", ":", " Ada"]
    assert pieces_of(toy, renderer.ids(two)) == ["Name", ":", " ", "x"]
    assert renderer.ids(trunk) == before


def test_a_branch_without_text_of_its_own_is_the_trunk(renderer):
    trunk = branch_of(Text("Name: "))
    assert renderer.ids(branch_of(ForkMark(), ForkMark(), on=trunk)) == renderer.ids(trunk)
    assert renderer.prompt(branch_of(ForkMark(), on=trunk)) == renderer.prompt(trunk)


def test_a_fork_keeps_the_tokens_of_the_trunk_but_its_last(toy, renderer):
    trunk = branch_of(Text("Name: A"))
    assert pieces_of(toy, renderer.ids(branch_of(ForkMark(), Text("da"), on=trunk))) == ["Name", ":", " Ada"]
    ends_in_word = branch_of(Text("N"))
    assert pieces_of(toy, renderer.ids(branch_of(ForkMark(), Text("ame"), on=ends_in_word))) == ["Name"]
    two_tokens = branch_of(Text("NNa"))
    assert pieces_of(toy, renderer.ids(branch_of(ForkMark(), Text("me"), on=two_tokens))) == ["N", "Name"]


def test_forks_in_forks_heal_each_against_the_one_before(toy, renderer):
    inner = branch_of(Text("Name:"), ForkMark(), Text(" A"), ForkMark(), Text("d"), ForkMark(), Text("a"))
    assert pieces_of(toy, renderer.ids(inner)) == ["Name", ":", " Ada"]


def test_a_fork_after_a_generation_or_a_special_token_changes_nothing_before_it(toy, renderer):
    for trunk in ([Text("x"), Generated("A", tuple(toy.encode("A")))], [Text("x<|im_end|>", markup=True)]):
        before = renderer.ids(branch_of(*trunk))
        after = renderer.ids(branch_of(*trunk, ForkMark(), Text("da")))
        assert after == (*before, *toy.encode("da"))


def test_a_trunk_that_ends_in_a_character_of_several_tokens_is_healed_by_characters(toy, renderer):
    ids = renderer.ids(branch_of(Text("a🦙"), ForkMark(), Text("b")))
    assert toy.decode(ids) == "a🦙b"
    prompt = renderer.prompt(branch_of(Text("a🦙")))
    assert prompt.num_withdrawn == 0  # no longer token continues its last byte


def test_a_branch_that_begins_with_a_turn_leaves_the_trunk_as_it_is(toy, renderer):
    trunk = branch_of(*chat("system", Text("Name: ")))
    forked = renderer.ids(branch_of(ForkMark(), *chat("user", Text("Ada")), on=trunk))
    assert forked == renderer.ids(branch_of(*chat("user", Text("Ada")), on=trunk))


def test_sentencepiece_text_after_a_generation_gets_no_artificial_blank(pieces):
    renderer = Renderer(pieces)
    generated = Generated(" cat", tuple(pieces.hf.convert_tokens_to_ids(["▁cat"])))
    ids = renderer.ids(branch_of(Text("The"), generated, Text("s.")))
    assert pieces.decode(ids) == "The cats."
    assert pieces.decode(renderer.ids(branch_of(Text("The"), ForkMark(), Text(" cats")))) == "The cats"


# --- purity --------------------------------------------------


FRAGMENTS = st.sampled_from(["Na", "me", " ", "A", "d", "a", ":", "\n", "é", "🦙", "<|im_end|>", " Ada", "s", "x "])
STEPS = st.lists(
    st.one_of(
        FRAGMENTS.map(Text),
        st.just(ForkMark()),
        st.just("generate"),
        st.sampled_from(["user", "assistant"]),
    ),
    max_size=10,
)


def build(renderer: Renderer, steps: list[object], *, look: bool) -> tuple[Branch | None, str]:
    """A branch from steps, and the text that it should show; `look` renders after every step."""
    branch, text, role = None, "", None
    for step in steps:
        if step == "generate":
            prompt = renderer.prompt(branch)
            made = tuple(renderer._tokenizer.encode("da")) if not prompt.num_withdrawn else None
            made = made or _spell(renderer._tokenizer, prompt.prefix + b"da")
            branch, text = Branch(branch, Generated("da", made, prompt.num_withdrawn)), text + "da"
        elif isinstance(step, str):
            if role is not None:
                branch, text = Branch(branch, RoleEnd(role)), text + "\n"
            branch, text, role = Branch(branch, RoleBegin(step)), text + step + "\n", step
        else:
            branch = Branch(branch, step)
            text += step.text if isinstance(step, Text) else ""
        if look:
            renderer.ids(branch)
            renderer.prompt(branch)
    return branch, text


def _spell(tokenizer: Tokenizer, data: bytes) -> tuple[int, ...]:
    singles = {spelt: id for id, spelt in enumerate(tokenizer.token_bytes) if len(spelt) == 1}
    return tuple(singles[bytes([byte])] for byte in data)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_ids_are_a_function_of_the_segments_alone(toy, steps):
    looked, text = build(Renderer(toy), steps, look=True)
    fresh = Renderer(toy).ids(looked)
    assert fresh == Renderer(toy).ids(build(Renderer(toy), steps, look=False)[0])
    shown = toy.decode(fresh)
    assert shown == text or fresh[: len(toy.start_ids)] == toy.start_ids


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(FRAGMENTS, max_size=6), before=st.sampled_from(["", "turn", "generated", "special"]))
def test_text_in_parts_equals_text_at_once_in_both_families(toy, pieces, parts, before):
    for tokenizer in (toy, pieces):
        renderer = Renderer(tokenizer)
        start = {
            "": [],
            "turn": [RoleBegin("user")] if tokenizer is toy else [],
            "generated": [Text("x"), Generated("d", tuple(tokenizer.encode("d")))],
            "special": [Text(tokenizer.hf.eos_token, markup=True)],
        }[before]
        in_parts = renderer.ids(branch_of(*start, *map(Text, parts)))
        at_once = Renderer(tokenizer).ids(branch_of(*start, Text("".join(parts))))
        assert in_parts == at_once
        if parts and before != "special":
            assert tokenizer.decode(in_parts).endswith("".join(parts).lstrip(" "))


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(FRAGMENTS, min_size=1, max_size=6))
def test_forks_never_change_the_text(toy, pieces, parts):
    for tokenizer in (toy, pieces):
        segments = [segment for part in parts for segment in (Text(part), ForkMark())]
        ids = Renderer(tokenizer).ids(branch_of(Text("x"), *segments))
        assert tokenizer.decode(ids) == "x" + "".join(parts)


def test_rendering_is_remembered_as_long_as_the_branch_lives(toy, renderer):
    branch = branch_of(Text("Name"), Generated("x", (1,)))
    renderer.ids(branch)
    assert len(renderer._states) == 2
    del branch
    gc.collect()
    assert len(renderer._states) == 0


def test_a_chain_of_many_thousand_segments_renders(toy, renderer):
    segments = [Text("a"), Generated("d", tuple(toy.encode("d")))] * 3000
    assert len(renderer.ids(branch_of(*segments))) == 6000
