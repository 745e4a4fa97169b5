"""A branch as token ids: a pure function of its chain of segments, computed once a node.

    segment          what it does to the ids
    ───────────────────────────────────────────────────────────────────────────────────────────────────────
    Text             joins the open run of text; with markup, the special tokens that it spells stand alone
    Tools            nothing yet: the template's text of the turns that follow says what tools there are
    RoleBegin, End   the template's text: its special tokens stand alone, its other text joins the run
    Generated        closes the run, takes `num_withdrawn` of its tokens away, and stands for ever
    ForkMark         closes the run; the branch's first text takes the run's last token back into its own run

A run is tokenised as one. At its borders *healing* keeps tokens from breaking a word: the last token of
ordinary text (never a special, a generated one or one that holds text of the template) is taken back and
tokenised together with what follows a fork, or generated again as a required prefix (`prompt`).

A closed turn waits: how the template closes it may depend on whether another turn follows, so `RoleEnd` and a
`RoleBegin` right behind it are written together, and alone it is written as at a conversation's end.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from forktree.backend.chat import ChatTemplate
from forktree.backend.token_chain import TokenChain
from forktree.backend.tokenizer import Place, Run, Tokenizer
from forktree.lang.errors import RoleError, UnsupportedError
from forktree.runtime.protocol import Branch, ForkMark, Generated, Image, RoleBegin, RoleEnd, Segment, Text, Tools


class Ending(NamedTuple):
    """The end of closed ids that is ordinary text and may be taken back.

    Attributes:
        text: whole characters.
        num_tokens: the tokens that spell it, the fewest that do.
        place: where `text` stands.
    """

    text: str
    num_tokens: int
    place: Place


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One stretch of an open run, behind the others."""

    before: Piece | None
    text: str
    is_template: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Closed:
    """All tokens of a branch, its run closed.

    Attributes:
        ids: the tokens.
        ending: what a branch's first text may take back; None is nothing.
        can_withdraw_last: the last token is ordinary text.
    """

    ids: TokenChain
    ending: Ending | None = None
    can_withdraw_last: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A branch on its way to tokens.

    Attributes:
        closed: tokens before the open run.
        run: the open run, or None.
        place: where a run stands that begins now.
        is_started: something has been written, so BOS is there if it is wanted.
        roles: the turns so far, the open one last.
        is_open: the last turn is open.
        is_closing: the last turn was closed, and nothing was written for that yet.
        tools: definitions that the template describes, as JSON text.
    """

    closed: Closed = Closed(TokenChain())
    run: Piece | None = None
    place: Place = Place.START
    is_started: bool = False
    roles: tuple[str, ...] = ()
    is_open: bool = False
    is_closing: bool = False
    tools: str | None = None


class Prompt(NamedTuple):
    """What a generation continues.

    Attributes:
        ids: the prompt; never empty.
        prefix: bytes that the output begins with and that are not part of its value.
        num_withdrawn: tokens of the branch that `ids` lacks, whose bytes `prefix` is.
    """

    ids: tuple[int, ...]
    prefix: bytes = b""
    num_withdrawn: int = 0


class Options(NamedTuple):
    """Texts to score behind one prompt.

    Attributes:
        ids: the tokens of prompt and option, one tuple an option, each tokenised as a whole.
        score_from: the first position at which any of them differs from the prompt; at least 1. All are
            scored from there on, so that their probabilities are of the same event space. An empty option is
            the prompt itself.
    """

    ids: tuple[tuple[int, ...], ...]
    score_from: int


class Renderer:
    """Renders branches for one tokenizer and its chat template. Safe to use from any thread.

    Every method raises RoleError for turns that the template refuses, ModelError where there is no template,
    and UnsupportedError for images.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.RLock()  # guards the memos, so that a trunk is rendered once
        self._states: weakref.WeakKeyDictionary[Branch, State] = weakref.WeakKeyDictionary()
        self._closed: weakref.WeakKeyDictionary[Branch, Closed] = weakref.WeakKeyDictionary()

    def ids(self, branch: Branch | None) -> tuple[int, ...]:
        """The tokens of a branch; empty for an empty one."""
        return self._close_branch(branch).ids.to_tuple()

    def prompt(self, branch: Branch | None, *, heal: bool = True) -> Prompt:
        """What a generation continues, with the last token withdrawn where it should be healed."""
        closed = self._close_branch(branch)
        if not len(closed.ids):
            return Prompt(self._tokenizer.start_ids)
        ids = closed.ids.to_tuple()
        if not (heal and closed.can_withdraw_last and len(ids) > 1):
            return Prompt(ids)
        prefix = self._tokenizer.vocabulary.token_bytes[ids[-1]]
        if prefix is None or not self._tokenizer.can_extend(prefix):
            return Prompt(ids)
        return Prompt(ids[:-1], prefix, 1)

    def options(self, branch: Branch | None, options: Sequence[str]) -> Options:
        """What is scored for each option, as if it were appended as text."""
        prompt = self.ids(branch)
        wholes = [self.ids(Branch(branch, Text(option))) if option else prompt for option in options]
        bos = self._tokenizer.bos_ids
        known = [len(bos)] if bos and all(ids[: len(bos)] == bos for ids in wholes) else []
        shared = [_num_shared(prompt, ids) for ids, option in zip(wholes, options, strict=True) if option]
        score_from = max([min(shared, default=len(prompt)), *known])
        if score_from > 0:
            return Options(tuple(wholes), score_from)
        start = self._tokenizer.start_ids
        return Options(tuple(start + ids for ids in wholes), len(start))

    # --- nodes ---------------------------------------------------------------------------------------------

    def _close_branch(self, branch: Branch | None) -> Closed:
        if branch is None:
            return Closed(TokenChain())
        with self._lock:
            closed = self._closed.get(branch)
            if closed is None:
                closed = self._closed[branch] = self._close(self._settle(self._state(branch)))
            return closed

    def _state(self, branch: Branch | None) -> State:
        """The state of a branch, from the nearest node that is known."""
        unknown: list[Branch] = []
        node = branch
        while node is not None and node not in self._states:
            unknown.append(node)
            node = node.parent
        state = State() if node is None else self._states[node]
        for node in reversed(unknown):
            state = self._states[node] = self._after(node, state)
        return state

    def _after(self, node: Branch, state: State) -> State:
        """The state after one more segment; `state` is that of the node's parent."""
        segment: Segment = node.segment
        match segment:
            case Text(text, markup):
                return self._add_text(self._settle(state), text, markup) if text else state
            case RoleBegin(role):
                return self._begin_role(state, role)
            case RoleEnd(role):
                return self._end_role(state, role)
            case Generated():
                return self._add_generated(self._settle(state), self._close_branch(node.parent), segment)
            case ForkMark():
                return self._mark_fork(self._settle(state), self._close_branch(node.parent))
            case Tools(definitions):
                return self._add_tools(state, definitions)
            case Image():
                raise UnsupportedError("this model reads text only: take the image out, or use a backend that can see")
            case _:
                assert_never(segment)

    # --- segments ------------------------------------------------------------------------------------------

    def _add_text(self, state: State, text: str, markup: bool) -> State:
        items: list[int | str] = self._tokenizer.split_markup(text) if markup else [text]
        if not state.is_started:
            state = self._start(state, items)
        return self._add_items(state, items, is_template=False)

    def _start(self, state: State, items: list[int | str]) -> State:
        """The tokenizer's own BOS, unless the text spells it."""
        bos = self._tokenizer.bos_ids
        if bos and items[:1] == [bos[0]]:
            bos = ()
        return replace(state, closed=Closed(state.closed.ids.extended(bos)), is_started=True)

    def _add_tools(self, state: State, definitions: str) -> State:
        if state.roles:
            raise RoleError("tools are described at the conversation's head: append tools() once, before any turn")
        special = next((item for item in self._tokenizer.split_markup(definitions) if isinstance(item, int)), None)
        if special is not None:
            spelled = self._tokenizer.token_bytes[special].decode("utf-8", "replace")
            raise RoleError(f"a tool's description spells the special token {spelled}, and text never becomes one")
        return replace(state, tools=definitions)

    def _chat(self, state: State) -> ChatTemplate:
        chat = self._tokenizer.chat
        return chat if state.tools is None else chat.with_tools(state.tools)

    def _begin_role(self, state: State, role: str) -> State:
        if state.is_open:
            raise RoleError(
                f"a turn of {role!r} begins while the turn of {state.roles[-1]!r} is open: close that one first"
            )
        chat = self._chat(state)
        opening = chat.between(state.roles, role) if state.is_closing else chat.begin(state.roles, role)
        items = self._tokenizer.split_markup(opening.text)
        if state.is_started and not state.roles and tuple(items[:1]) == self._tokenizer.bos_ids[:1]:
            items = items[1:]  # text came before the first turn, and BOS before it
        state = replace(state, is_started=True, roles=(*state.roles, role), is_open=True, is_closing=False)
        state = self._add_items(state, items, is_template=True)
        return self._add_items(state, [opening.lead] if opening.lead else [], is_template=False)

    def _end_role(self, state: State, role: str) -> State:
        if not state.is_open or state.roles[-1] != role:
            what = f"the open turn is of {state.roles[-1]!r}" if state.is_open else "no turn is open"
            raise RoleError(f"a turn of {role!r} ends, but {what}")
        return replace(state, is_open=False, is_closing=True)

    def _settle(self, state: State) -> State:
        """Write how the last turn closes, if that is still to be written."""
        if not state.is_closing:
            return state
        text = self._chat(state).end(state.roles[:-1], state.roles[-1])
        state = replace(state, is_closing=False)
        return self._add_items(state, self._tokenizer.split_markup(text), is_template=True)

    def _add_generated(self, state: State, closed: Closed, segment: Generated) -> State:
        """A generation whose ids do not fit here (it was made by a backend without ids, or healed another
        text's end than the one that is here) is spelled anew."""
        if (not segment.ids and segment.text) or not self._can_withdraw(closed, segment):
            state = self._add_text(state, segment.text, False) if segment.text else state
            ids = self._close(state).ids
        else:
            start = () if len(closed.ids) else self._tokenizer.start_ids
            ids = closed.ids.without_last(segment.num_withdrawn).extended((*start, *segment.ids))
        return replace(state, closed=Closed(ids), run=None, place=Place.INSIDE, is_started=True)

    def _can_withdraw(self, closed: Closed, segment: Generated) -> bool:
        """What the generation withdrew is here: ordinary text, whose bytes its own tokens begin with."""
        count = segment.num_withdrawn
        if count == 0:
            return True
        if not closed.can_withdraw_last or count > len(closed.ids):
            return False
        spell = self._tokenizer.token_bytes
        withdrawn = b"".join(spell[id] for id in closed.ids.last(count))
        return b"".join(spell[id] for id in segment.ids).startswith(withdrawn)

    def _mark_fork(self, state: State, closed: Closed) -> State:
        if state.run is None:
            return state
        return replace(state, closed=closed, run=None, place=Place.INSIDE)

    def _add_items(self, state: State, items: list[int | str], *, is_template: bool) -> State:
        for item in items:
            if isinstance(item, int):
                ids = self._close(state).ids.extended((item,))
                state = replace(state, closed=Closed(ids), run=None, place=Place.AFTER_SPECIAL)
            else:
                state = replace(state, run=Piece(state.run, item, is_template))
        return state

    # --- runs ----------------------------------------------------------------------------------------------

    def _close(self, state: State) -> Closed:
        """Tokenise the open run, together with what it takes back of the ids before it."""
        if state.run is None:
            return state.closed
        pieces = list(_in_order(state.run))
        ids, place = state.closed.ids, state.place
        if ending := state.closed.ending:
            ids, place = ids.without_last(ending.num_tokens), ending.place
            pieces.insert(0, Piece(None, ending.text))
        text = "".join(piece.text for piece in pieces)
        run = self._tokenizer.encode_run(text, place)
        if not run.ids:
            return replace(state.closed, ids=ids)
        templates = _template_spans(pieces)
        ending = _ending_of(text, run, place, templates)
        return Closed(ids.extended(run.ids), ending, not _touches(run.spans[-1], templates))


def _num_shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _in_order(run: Piece) -> Iterator[Piece]:
    pieces: list[Piece] = []
    piece: Piece | None = run
    while piece is not None:
        pieces.append(piece)
        piece = piece.before
    return reversed(pieces)


def _template_spans(pieces: list[Piece]) -> list[tuple[int, int]]:
    """Where text of the template stands in a run: half-open spans of characters."""
    spans, at = [], 0
    for piece in pieces:
        if piece.is_template:
            spans.append((at, at + len(piece.text)))
        at += len(piece.text)
    return spans


def _touches(span: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in others)


def _ending_of(text: str, run: Run, place: Place, templates: list[tuple[int, int]]) -> Ending | None:
    """The last token, with those before it that share a character with it; None if the template is in it."""
    first = len(run.ids) - 1
    while first > 0 and run.spans[first - 1][1] > run.spans[first][0]:
        first -= 1
    start = run.spans[first][0]
    if any(_touches(span, templates) for span in run.spans[first:]):
        return None
    return Ending(text[start:], len(run.ids) - first, place if first == 0 else Place.INSIDE)
