"""A branch as turns, and what cannot be said in turns."""

from __future__ import annotations

import pytest

from forktree.backend.clients.turns import Conversation, Part, Turn, conversation_of
from forktree.lang.errors import RoleError, UnsupportedError
from forktree.runtime.protocol import Branch, ForkMark, Generated, Image, RoleBegin, RoleEnd, Segment, Text, Tools

USER = (RoleBegin("user"), Text("Hi"), RoleEnd("user"))
OPEN = RoleBegin("assistant")


def told(*segments: Segment, loose="refuse") -> Conversation:
    branch = None
    for segment in segments:
        branch = Branch(branch, segment)
    return conversation_of(branch, loose)


def test_turns_and_what_the_assistant_has_begun() -> None:
    conversation = told(RoleBegin("system"), Text("S"), RoleEnd("system"), *USER, OPEN, Text("It is "), Generated("a"))
    assert [(turn.role, turn.text) for turn in conversation.turns] == [("system", "S"), ("user", "Hi")]
    assert conversation.begun == "It is a"
    assert conversation.plain is None


def test_without_roles_it_is_plain_text() -> None:
    assert told(Text("Once"), ForkMark(), Generated(" upon"), Text(" a")).plain == "Once upon a"
    assert told().plain == ""


def test_a_fork_marks_where_what_is_shared_ends() -> None:
    (turn,) = told(RoleBegin("user"), Text("trunk"), ForkMark(), Text("leaf"), RoleEnd("user"), OPEN).turns
    assert turn == Turn("user", (Part("trunk", ends_shared=True), Part("leaf")))


def test_empty_turns_and_blanks_between_turns_are_not_said() -> None:
    conversation = told(RoleBegin("user"), Text(" \n"), RoleEnd("user"), Text("\n"), *USER, Text("\n"), OPEN)
    assert [turn.text for turn in conversation.turns] == ["Hi"]


def test_images_stand_between_texts() -> None:
    image = Image(b"png")
    (turn,) = told(RoleBegin("user"), Text("a"), image, Text("b"), Text("c"), RoleEnd("user"), OPEN).turns
    assert turn.parts == (Part("a"), Part(image=image), Part("bc"))


def test_tools_are_kept_beside_the_turns() -> None:
    assert told(Tools("[]"), *USER, OPEN).tools == ("[]",)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((Text("loose words"), *USER, OPEN), "text outside of turns beside turns: 'loose words'"),
        ((*USER,), r"outside of a turn.*write assistant\(gen"),
        ((RoleBegin("user"), Text("Hi")), "inside a turn of 'user'"),
        ((Image(b""),), "an image outside of a turn"),
        ((*USER, OPEN, Image(b"")), "an image in a turn of the assistant"),
    ],
)
def test_what_a_chat_service_cannot_be_told_is_refused(segments, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        told(*segments)


def test_a_turn_inside_a_turn_is_a_role_error() -> None:
    with pytest.raises(RoleError, match="opens inside a turn of 'user'"):
        told(RoleBegin("user"), OPEN)


def test_loose_text_is_the_users_where_that_was_asked_for() -> None:
    conversation = told(Text("Once"), Generated(" upon"), Text(" a"), loose="user")
    assert [(turn.role, turn.text) for turn in conversation.turns] == [
        ("user", "Once"),
        ("assistant", " upon"),
        ("user", " a"),
    ]
