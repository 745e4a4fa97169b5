"""Tokens that are probably next, computed in the same step as the one that is due: drafts without a draft model.

A draft is copied from what followed the sequence's last tokens elsewhere: in its own prompt and output, or in what
requests with the same trunk have made, those still running too. Its rows stand behind the sequence's own row, and
the tokens are drawn as ever, one after another: the draw at a row stands as long as every token before it was drafted
as it was drawn. A draw is a function of its row, its seed and its position, and a row's logits do not depend on how
many rows a step has; so the output is that of plain decoding, token for token, and only time is at stake.

*What pays.* A drafted row costs what the pass takes longer for it, and saves, if it stands, a token's share of a
pass of plain decoding over all that is live. So it pays where its chance to stand is above the ratio of the two
(`costs.py`): nearly always for one sequence, seldom for sixty. The chance is measured, for each length of match and
for each request; where it is too small, one draft in many is made all the same, so that better times are noticed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import islice
from typing import NamedTuple

from forktree.backend.engine.costs import Costs, price_of_row
from forktree.backend.engine.ngrams import Match, TokenText
from forktree.backend.engine.request import Sequence

_TRUNK_TOKENS = 32  # requests that begin with the same so many tokens learn from each other
_NUM_TRUNKS = 32
_TRUNK_TEXT = 4096  # tokens that are remembered of one trunk
_NUM_SIBLINGS = 4  # live ones that are looked at
_CONTEXT_TOKENS = 4  # of a prompt's end, remembered before its output
_WEIGHT = 4.0  # how many trials of a request's own weigh as much as what all others have shown
_PROBE_EVERY = 64
_MEMORY = 256.0  # trials after which older ones count half
_LENGTHS = 16


class Draft(NamedTuple):
    """Tokens to verify, and how long the match was that brought the first."""

    tokens: tuple[int, ...]
    length: int

    def first(self, count: int) -> Draft:
        return Draft(self.tokens[:count], self.length)


def count_standing(draft: Seq[int], drawn: Seq[int]) -> int:
    """How many of the first drafted tokens were drawn."""
    for index, (one, two) in enumerate(zip(draft, drawn, strict=False)):
        if one != two:
            return index
    return min(len(draft), len(drawn))


class Chances:
    """How often a drafted token stood, by the length of the match behind it."""

    def __init__(self) -> None:
        self._num_tried = [2.0] * (_LENGTHS + 1)
        self._num_stood = [0.8 + min(length, 8) / 10 for length in range(_LENGTHS + 1)]  # a first guess: 0.5 to 0.8

    def of(self, length: int) -> float:
        at = min(length, _LENGTHS)
        return self._num_stood[at] / self._num_tried[at]

    def note(self, length: int, has_stood: bool) -> None:
        at = min(length, _LENGTHS)
        if self._num_tried[at] >= _MEMORY:
            self._num_tried[at] /= 2
            self._num_stood[at] /= 2
        self._num_tried[at] += 1
        self._num_stood[at] += has_stood


class _Record:
    """What is known of one live sequence."""

    __slots__ = ("num_left_out", "num_stood", "num_tried", "text")

    def __init__(self, text: TokenText) -> None:
        self.text = text
        self.num_tried = self.num_stood = self.num_left_out = 0

    def chance(self, by_length: float) -> float:
        return (self.num_stood + _WEIGHT * by_length) / (self.num_tried + _WEIGHT)


class Speculator:
    """Makes drafts and learns from what became of them. The engine's thread owns it."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._chances = Chances()
        self._records: dict[int, _Record] = {}
        self._siblings: dict[tuple[str, tuple[int, ...]], dict[int, _Record]] = {}
        self._trunks: OrderedDict[tuple[str, tuple[int, ...]], TokenText] = OrderedDict()
        self.num_drafted = 0
        self.num_accepted = 0

    def propose(self, seq: Sequence, most: int, num_live: int, num_rows: int) -> Draft | None:
        """At most `most` tokens for a sequence whose next token is drawn in this step, or None.

        `num_live` sequences are there to be decoded together, and the step has `num_rows` rows so far.
        """
        record = self._records.get(seq.id)
        if record is None:
            record = self._records[seq.id] = _Record(TokenText(seq.ids))
            self._siblings.setdefault(_trunk_of(seq), {})[seq.id] = record
        least = price_of_row(self._costs, num_rows + most / 2, num_live)
        if record.chance(1.0) <= least and record.num_left_out < _PROBE_EVERY:
            record.num_left_out += 1  # hopeless whatever is found
            return None
        text, match = self._search(seq, record)
        if match is None:
            return None
        size = self._count_paying(record, match.length, most, least)
        if size == 0:
            record.num_left_out += 1
            if record.num_left_out <= _PROBE_EVERY:
                return None
            size = 1
        tokens = _possible(seq, text.read(match.end, size))
        if not tokens:
            return None
        record.num_left_out = 0
        return Draft(tokens, match.length)

    def learn(self, seq: Sequence, draft: Draft, drawn: Seq[int]) -> None:
        """What was drawn where a draft had been made; nothing is learned of tokens behind the output's end."""
        num_stood = count_standing(draft.tokens, drawn)
        self.num_drafted += len(draft.tokens)
        self.num_accepted += num_stood
        record = self._records.get(seq.id)
        for index in range(min(num_stood + 1, len(draft.tokens), len(drawn))):
            has_stood = index < num_stood
            self._chances.note(draft.length + index, has_stood)
            if record is not None:
                record.num_tried += 1
                record.num_stood += has_stood

    def leave(self, seq: Sequence) -> None:
        """A sequence has ended: its output is there for those with the same trunk."""
        if self._records.pop(seq.id, None) is not None:
            siblings = self._siblings[_trunk_of(seq)]
            del siblings[seq.id]
            if not siblings:
                del self._siblings[_trunk_of(seq)]
        if not seq.output_ids:
            return
        key = _trunk_of(seq)
        trunk = self._trunks.pop(key, None) or TokenText([])
        new = seq.ids[max(0, seq.num_prompt - _CONTEXT_TOKENS) :]
        if len(trunk.ids) + len(new) > _TRUNK_TEXT:
            trunk = TokenText(trunk.ids[-_TRUNK_TEXT // 2 :])
        trunk.ids += new[: _TRUNK_TEXT // 2]
        self._trunks[key] = trunk
        if len(self._trunks) > _NUM_TRUNKS:
            self._trunks.popitem(last=False)

    def forget(self) -> None:
        """Forget the outputs of sequences that have ended."""
        self._trunks.clear()

    def _search(self, seq: Sequence, record: _Record) -> tuple[TokenText, Match | None]:
        """The best match in the sequence's own text, or a longer one in what its siblings made or are making."""
        key, tail = _trunk_of(seq), seq.ids[-_LENGTHS:]
        best, match = record.text, record.text.find(tail)
        for text in self._others(key, seq.id):
            found = text.find(tail)
            if found is not None and (match is None or found.length > match.length):
                best, match = text, found
        return best, match

    def _others(self, key: tuple[str, tuple[int, ...]], own_id: int) -> Iterator[TokenText]:
        """What siblings have made: those that have ended, then some of those that are live."""
        trunk = self._trunks.get(key)
        if trunk is not None:
            yield trunk
        others = (record.text for id, record in self._siblings[key].items() if id != own_id)
        yield from islice(others, _NUM_SIBLINGS)

    def _count_paying(self, record: _Record, length: int, most: int, least: float) -> int:
        """How many tokens have a chance above `least` to stand, the ones before them included."""
        chance, size = 1.0, 0
        while size < most:
            chance *= record.chance(self._chances.of(length + size))
            if chance <= least:
                break
            size += 1
        return size


def _trunk_of(seq: Sequence) -> tuple[str, tuple[int, ...]]:
    return seq.request.namespace, seq.request.ids[:_TRUNK_TOKENS]


def _possible(seq: Sequence, tokens: Seq[int]) -> tuple[int, ...]:
    """The first of `tokens` that the constraint allows, up to one that ends the output.

    A constraint that is broken fails again, and is told of, when it is asked in earnest.
    """
    stops = seq.request.stop_token_ids
    size = next((index for index, token in enumerate(tokens) if token in stops), len(tokens))
    if seq.matcher is None:
        return tuple(tokens[:size])
    legal: list[int] = []
    try:
        matcher = seq.matcher.copy()
        for token in tokens[:size]:
            if matcher.must_end():
                break
            matcher.advance(token)
            legal.append(token)
    except Exception:  # an illegal token, or a fault
        return tuple(legal)
    return tuple(legal)
