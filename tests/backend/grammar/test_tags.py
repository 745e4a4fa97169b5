"""Structural tags: free text holds no trigger but that of a tag, and special tokens are in reach where markup says."""

from __future__ import annotations

import random
import re

import pytest
from grammar_walks import MERGES, TOY, accepts_by_tokens, brute_mask, legal, random_text
from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.grammar.budget import within
from forktree.backend.grammar.constraints import Choices, Regex, Schema, Substring, Tags, constraint_from_spec
from forktree.backend.grammar.healing import healed
from forktree.backend.grammar.matcher import IllegalTokenError
from forktree.backend.grammar.triggers import Triggers
from forktree.backend.vocabulary import Vocabulary, marked
from forktree.lang.errors import ConstraintError
from forktree.lang.tags import Tag

CALL = Tag("<call>", Schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}), "</call>")
SPECIALS = {256 + len(MERGES): "<call>", 257 + len(MERGES): "</call>", 258 + len(MERGES): "<x>"}
CALL_ID, END_ID, OTHER_ID = SPECIALS
EOS = 259 + len(MERGES)
SPECIAL_TOY = Vocabulary(
    (*(bytes([b]) for b in range(256)), *MERGES, None, None, None, None),
    frozenset([EOS]),
    markup=SPECIALS,
)


def test_free_text_holds_a_trigger_only_to_enter_its_tag() -> None:
    tags = Tags([CALL])
    legal_texts = ["", "hello", "a < b, <cal", '<<call>{"a":1}</call>', 'x<call>{"a":1}</call>y<call>{"a":2}</call>']
    assert all(tags.accepts(text) for text in legal_texts)
    for text in ("<call>", "<call>x", '<call>{"a":1}', '<call>{"a":1}</call><call>'):
        assert not tags.accepts(text)
    assert tags.accepts_prefix('<call>{"a":')
    assert not tags.accepts_prefix('<call>{"b"')


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), min_size=1, max_size=3, unique=True),
    st.text(alphabet="ab<>1", max_size=14),
)
def test_one_tag_after_another_equals_a_regex(begins: list[str], text: str) -> None:
    if any(one != other and one in other for one in begins for other in begins):
        with pytest.raises(ConstraintError, match="holds the trigger"):
            Tags([Tag(begin, Choices(["1"]), ">") for begin in begins])
        return
    tags = Tags([Tag(begin, Choices(["1"]), ">") for begin in begins])
    found, at = True, 0
    while found and (match := re.compile("|".join(map(re.escape, begins))).search(text, at)):
        # the trigger that ends first is the one that counts
        starts = [(text.find(begin, at) + len(begin), begin) for begin in begins if begin in text[at:]]
        end = min(starts)[0]
        found = text[end : end + 2] == "1>"
        at = end + 2
        assert match is not None
    assert tags.accepts(text) == found


def test_masks_are_exact_and_walks_end_in_legal_texts() -> None:
    tags = Tags([CALL, Tag("{n", Regex("[0-9]+"), "}"), Tag('"', None, "12")], at_least=1)
    rng = random.Random(1)
    for seed in range(12):
        matcher, data = tags.compile(TOY), b""
        for _ in range(12):
            assert set(legal(matcher)) == brute_mask(tags, data)
            token = rng.choice([token for token in legal(matcher) if token not in TOY.eos_ids])
            matcher.advance(token)
            data += TOY.token_bytes[token] or b""
        text = random_text(Tags([CALL], at_most=1, text_after=False), random.Random(seed))
        assert text is None or text.count("<call>") <= 1


def test_the_number_of_tags_is_kept() -> None:
    one = '<call>{"a":1}</call>'
    assert [n for n in range(5) if Tags([CALL], at_least=2).accepts("-".join([one] * n))] == [2, 3, 4]
    assert [n for n in range(5) if Tags([CALL], at_most=2).accepts("-".join([one] * n))] == [0, 1, 2]
    ended = Tags([CALL], at_least=1, at_most=1, text_after=False)
    assert ended.accepts("so " + one)
    assert not ended.accepts(one + " ")
    assert not ended.accepts("so")
    matcher = ended.compile(TOY)
    matcher.advance_bytes(b"so " + one.encode())
    assert matcher.must_end()


def test_a_tag_without_a_constraint_is_text_up_to_its_first_end() -> None:
    tags = Tags([Tag("[", None, "]]")], at_most=1, text_after=False)
    assert tags.accepts("see [a]b] ]]")
    assert tags.accepts("[]]]") is False
    assert tags.accepts("[é道]]")
    assert not tags.accepts("[a]")


def test_a_trigger_leads_to_one_of_the_tags_that_begin_with_it() -> None:
    tags = Tags([Tag(f"<f={name}>", Regex("[0-9]"), "</f>") for name in ("one", "two")], triggers=["<f="])
    assert tags.accepts("a <f=one>1</f> <f=two>2</f> <f")
    assert not tags.accepts_prefix("<f=three")
    free = Tags([Tag(f"<f={name}>", Regex("[0-9]"), "</f>") for name in ("one", "two")])
    assert free.accepts("<f=three>")


def test_free_text_is_whole_characters() -> None:
    tags = Tags([CALL])
    assert tags.accepts("道😀")
    state = tags.automaton.run(tags.automaton.start, b"\xe9\x81")
    assert state is not None
    assert not state.nullable
    assert tags.automaton.run(tags.automaton.start, b"\xed\xa0\x80") is None
    assert accepts_by_tokens(tags, 'é<call>{"a":1}</call>道')


def test_a_special_token_is_in_reach_where_its_tag_says_and_its_text_is_not() -> None:
    matcher = Tags([CALL]).compile(SPECIAL_TOY)
    assert CALL_ID in legal(matcher)
    assert END_ID not in legal(matcher)
    assert OTHER_ID not in legal(matcher)
    for byte in b"<call":
        matcher.advance(byte)
    assert ord(">") not in legal(matcher)
    matcher.advance(CALL_ID)
    assert legal(matcher) == [ord("{"), MERGES.index(b'{"') + 256]
    for byte in b'{"a":1':
        matcher.advance(byte)
    assert END_ID not in legal(matcher)
    matcher.advance(ord("}"))
    assert legal(matcher) == [END_ID]
    with pytest.raises(IllegalTokenError):
        matcher.advance(ord("<"))
    matcher.advance(END_ID)
    assert matcher.is_complete()
    assert CALL_ID in legal(matcher)
    matcher.rollback(2)
    assert not matcher.is_complete()


def test_special_tokens_stay_out_of_reach_inside_a_content() -> None:
    matcher = Tags([Tag("<call>", Schema({"type": "string"}), "</call>")]).compile(SPECIAL_TOY)
    matcher.advance(CALL_ID)
    matcher.advance(ord('"'))
    assert not set(SPECIALS) & set(legal(matcher))
    for byte in b"<call></call><x>":
        matcher.advance(byte)
    assert not set(SPECIALS) & set(legal(matcher))


def test_other_constraints_never_see_special_tokens() -> None:
    for constraint in (Regex("(?s:.*)"), Substring("<call><x>"), Schema({})):
        matcher = constraint.compile(SPECIAL_TOY)
        assert not set(SPECIALS) & set(legal(matcher))


def test_a_byte_that_no_text_has_never_stands_for_a_special_token() -> None:
    assert marked(SPECIAL_TOY).token_bytes[0xFF] is None
    matcher = Tags([CALL]).compile(SPECIAL_TOY)
    assert 0xFF not in legal(matcher)
    with pytest.raises(IllegalTokenError):
        matcher.advance(0xFF)


def test_a_healed_output_may_go_on_into_a_tag() -> None:
    matcher = healed(b"th", Tags([CALL], at_least=1).compile(SPECIAL_TOY), SPECIAL_TOY)
    assert MERGES.index(b"the") + 256 in legal(matcher)
    matcher.advance(MERGES.index(b"the") + 256)
    assert CALL_ID in legal(matcher)
    matcher.advance(CALL_ID)
    assert ord("{") in legal(matcher)


def test_contents_of_every_kind_share_one_automaton() -> None:
    tags = Tags(
        [
            Tag("A:", Schema({"additionalProperties": {"$ref": "#"}, "type": "object"}), ";"),
            Tag("B:", {"type": "object", "additionalProperties": {"type": "integer"}}, ";"),
            Tag("C:", Choices(["one", "two"]), ";"),
            Tag("D:", Schema({"enum": ["x", 1]}), ";"),
            Tag("E:", int, ";"),
        ]
    )
    assert tags.accepts('A:{"k":{}};B:{"k":1};C:two;D:"x";E:12;')
    assert not tags.accepts('A:{"k":1};')
    assert not tags.accepts('B:{"k":{}};')
    assert not tags.accepts('B:{"k":1,"k":2};')
    assert not tags.accepts('A:{"k":{"l":{},"l":{}}};')
    assert tags.accepts('B:{"k":1,"l":2};')
    assert constraint_from_spec(tags.spec) == tags


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Tags([]), "must not be empty"),
        (lambda: Tags([Tag("")]), "begin must not be empty"),
        (lambda: Tags([Tag("<a>")]), "needs a content, an end, or both"),
        (lambda: Tags(["<a>"]), "list of ft.Tag"),
        (lambda: Tags([CALL], triggers=["x"]), "some tag begins with"),
        (lambda: Tags([CALL], triggers="<"), "list of texts"),
        (lambda: Tags([CALL], at_least=2, at_most=1), "at_most is 1"),
        (lambda: Tags([CALL], at_least=-1), "at_least must be a count"),
        (lambda: Tags([CALL], text_after=False), "goes with at_most"),
        (lambda: Tags([Tag("<a>", Regex("(?=x)"), "</a>")]), "look"),
        (lambda: Tags([Tag("<a>", {"minimum": 3, "maximum": 2, "type": "number"}, "</a>")]), "nothing"),
    ],
)
def test_what_is_no_tag_is_refused(make, reason: str) -> None:
    with pytest.raises(ConstraintError, match=reason):
        make()


def test_triggers_find_every_pattern_that_ends_at_a_place() -> None:
    triggers = Triggers([tuple("ab"), tuple("bab"), tuple("b")])
    node, found = 0, []
    for char in "abab":
        node = triggers.after(node, char)
        found.append(sorted(triggers.found(node)))
    assert found == [[], [0, 2], [], [0, 1, 2]]
    assert set(triggers.symbols(node)) == {"a", "b"}


@pytest.mark.parametrize("vocabulary", [TOY, SPECIAL_TOY], ids=["text", "special tokens"])
@pytest.mark.parametrize(
    "content",
    [
        {"type": "object", "properties": {"a": {"enum": ["yes"]}}, "required": ["a"]},
        Substring("the foobar", unit="word"),
    ],
    ids=["an open object", "words"],
)
def test_tags_close_within_a_budget(vocabulary: Vocabulary, content: object) -> None:
    tags = Tags([Tag("<call>", content, "</call>")], at_least=1)
    least = tags.compile(vocabulary).completion().cost
    for seed in range(12):
        rng, taken = random.Random(seed), []
        matcher = within(tags.compile(vocabulary), vocabulary, least + seed % 5)
        while not matcher.must_end():
            token = rng.choice(legal(matcher))
            if token in vocabulary.eos_ids:
                break
            matcher.advance(token)
            taken.append(token)
        text = b"".join(vocabulary.token_bytes[one] or vocabulary.markup[one].encode() for one in taken).decode()
        assert tags.accepts(text)
        assert len(taken) <= least + seed % 5
