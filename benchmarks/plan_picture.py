"""Draws the attention plan of one step as the engine makes it: `python -m forktree.benchmarks.plan_picture FILE.svg`.

Four requests with the same trunk: one decodes, one verifies a draft, one computes a run that its constraint forced,
one scores the options of a select. Their chunks go through `build_batch` and `plan_attention`, and what is drawn is
read from the plan, so the picture in the documentation (`docs/engine.md`) is what the code does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from forktree.backend.engine.batch import StepBatch, build_batch
from forktree.backend.engine.continuations import Continuations, merge_runs
from forktree.backend.engine.messages import EngineRequest
from forktree.backend.engine.request import Sequence
from forktree.backend.engine.scheduler import Chunk
from forktree.backend.engine.speculation import Draft
from forktree.kernels.attention_plan import AttentionPlan, plan_attention

PAGE_SIZE, SPLIT, NUM_TRUNK = 8, 16, 40
_WORDS = [
    "·",
    "is",
    "the",
    "cat",
    "sat",
    "on",
    '"',
    "age",
    '":',
    "Is",
    "it",
    "so",
    "?",
    "yes",
    ",",
    "please",
    ".",
    "no",
]
_WORDS += ["thanks", "never"]
_WHO = ("A decodes", "B verifies a draft of 3", "C: a forced run", "D: a select")

_LEFT, _TOP, _CELL, _ROW, _GAP = 236, 64, 12, 19, 12
_INK, _FAINT, _PAPER = "#1f2933", "#7b8794", "#ffffff"
_COLORS = {"shared": ("#dbe9f9", "#8db8e8"), "own": ("#e3f1de", "#9fce8c"), "slots": ("#fdeacb", "#f0b95f")}
_LEGEND = {"shared": "read once for several requests", "own": "pages of one request", "slots": "a way down the trie"}


class Item(NamedTuple):
    """One item of a plan: slots of a split, and (row, tokens of it that the row sees)."""

    pages: list[int]
    unit: int
    start: int
    readers: list[tuple[int, int]]

    @property
    def num_tokens(self) -> int:
        return max(count for _, count in self.readers)


def make_step() -> StepBatch:
    """The rows of the step that is drawn."""
    options, _ = merge_runs(
        [_ids("yes , please"), _ids("yes ."), _ids("no , thanks"), _ids("no , never"), _ids("no .")]
    )
    trunk = list(range(NUM_TRUNK // PAGE_SIZE))
    decoding = _sequence(0, [0] * 6 + _ids("is"), [*trunk, 5])
    drafting = _sequence(1, [0] * 9 + _ids("the"), [*trunk, 6, 7])
    forced = _sequence(2, [0] * 4 + _ids('" age ":'), [*trunk, 8])
    select = _sequence(3, _ids("Is it so ?"), [*trunk, 9, 10], options)
    return build_batch(
        [
            _chunk(decoding, 1),
            _chunk(drafting, 1)._replace(draft=Draft(tuple(_ids("cat sat on")), 2)),
            _chunk(forced, 3),
            _chunk(select, len(select.ids) - NUM_TRUNK),
        ]
    )


def _ids(words: str) -> list[int]:
    return [_WORDS.index(word) for word in words.split()]


def _sequence(id: int, tail: list[int], pages: list[int], options: Continuations | None = None) -> Sequence:
    ids = (*[0] * NUM_TRUNK, *tail)
    request = EngineRequest(ids=ids, on_event=lambda event: None, continuations=options)
    seq = Sequence(id, request, output_limit=0 if options else 20)
    seq.pages = pages
    return seq


def _chunk(seq: Sequence, num_tokens: int) -> Chunk:
    return Chunk(seq, len(seq.ids) - num_tokens, num_tokens)


def plan_of(step: StepBatch) -> AttentionPlan:
    forward = step.forward
    return plan_attention(
        forward.page_tables,
        forward.seq_of_row,
        forward.positions,
        PAGE_SIZE,
        SPLIT,
        trees=forward.trees,
        places=forward.places,
    )


def read_items(plan: AttentionPlan) -> list[Item]:
    """The items of a plan; an item's split is found from the place of its partial results."""
    pages, page_start = plan.item_pages.tolist(), plan.item_page_start.tolist()
    rows, counts, pairs = plan.entry_row.tolist(), plan.entry_count.tolist(), plan.entry_pair.tolist()
    pair_start, start, units = plan.row_pair_start.tolist(), plan.item_start.tolist(), plan.item_unit.tolist()
    items = []
    for index in range(plan.num_items):
        entries = range(start[index], start[index + 1])
        split = pairs[entries[0]] - pair_start[rows[entries[0]]]
        readers = [(rows[entry], counts[entry]) for entry in entries]
        held = pages[page_start[index] : page_start[index + 1]]
        items.append(Item(held, units[index], split * plan.split, readers))
    return items


def count_read(items: Iterable[Item]) -> tuple[int, int]:
    """Tokens of KV read item by item, and if every row read its own."""
    items = list(items)
    return sum(item.num_tokens for item in items), sum(count for item in items for _, count in item.readers)


def draw(step: StepBatch) -> str:
    """The plan of a step as the text of an SVG file."""
    items = read_items(plan_of(step))
    canvas = _Canvas(step)
    for index, item in enumerate(items):
        canvas.add_item(index, item)
    canvas.add_rows(items)
    canvas.add_axis()
    canvas.add_caption(items)
    return canvas.text()


class _Canvas:
    """The elements of a picture, in the order in which they are painted."""

    def __init__(self, step: StepBatch) -> None:
        self._step = step.forward
        self._elements: list[str] = []
        self._end = max(self._step.positions) + 1
        self._bottom = self._y(len(self._step.ids) - 1) + _ROW
        self._right = self._x(self._end)

    def text(self) -> str:
        width, height = self._right + 250, self._bottom + 92
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        )
        head += 'font-family="Helvetica, Arial, sans-serif" font-size="12">'
        paper = f'<rect width="{width}" height="{height}" fill="{_PAPER}"/>'
        return "\n".join([head, paper, *self._elements, "</svg>", ""])

    def add_item(self, index: int, item: Item) -> None:
        rows = [row for row, _ in item.readers]
        light, dark = _COLORS[self._kind(item)]
        left, top, bottom = self._x(item.start), self._y(rows[0]), self._y(rows[-1]) + _ROW
        self._rect(left, top, item.num_tokens * _CELL, bottom - top, light)
        for row, count in item.readers:
            self._rect(left, self._y(row) + 3, count * _CELL, _ROW - 6, dark)
        self._rect(left, top, item.num_tokens * _CELL, bottom - top, "none", _INK)
        label = f"{index}: pages {' '.join(map(str, item.pages))}" if item.unit > 1 else f"{index}"
        if item.num_tokens < 8:
            label = f"{index}"
        self._write(left + 4, top + 13, label, "start", bold=True)

    def add_rows(self, items: list[Item]) -> None:
        """On the left who computes what token at which position; on the right what is merged."""
        step, (left, right) = self._step, (_LEFT - 8, self._right + 16)
        for row, (token, position, seq) in enumerate(zip(step.ids, step.positions, step.seq_of_row, strict=True)):
            y = self._y(row) + 14
            if row == 0 or step.seq_of_row[row - 1] != seq:
                self._write(12, y, _WHO[seq], "start", bold=True)
            self._write(left, y, f"{_WORDS[token]}  @{position}", "end")
            self._rect(self._x(position), self._y(row) + 3, _CELL, _ROW - 6, _INK)
            merged = [str(index) for index, item in enumerate(items) if row in dict(item.readers)]
            ending = "  → logits" if row in step.logit_rows else ""
            self._write(right, y, " ⊕ ".join(merged) + ending, "start")

    def add_axis(self) -> None:
        for position in range(0, self._end + 1, SPLIT):
            self._line(self._x(position), _TOP - 14, self._bottom + 6)
            self._write(self._x(position), _TOP - 18, str(position), "middle", color=_FAINT)
        self._write(_LEFT - 8, _TOP - 18, "row: token @position", "end", color=_FAINT)
        self._write(self._right + 16, _TOP - 18, "merged, in order of splits", "start", color=_FAINT)
        title = f"Keys and values by absolute position, in splits of {SPLIT} tokens (pages of {PAGE_SIZE})"
        self._write(self._x(0), 22, title, "start", bold=True)

    def add_caption(self, items: list[Item]) -> None:
        shared, alone = count_read(items)
        left, y = self._x(0), self._bottom + 30
        for kind, meaning in _LEGEND.items():
            self._rect(left, y - 10, 14, 12, _COLORS[kind][1])
            self._write(left + 20, y, meaning, "start")
            left += 40 + 6 * len(meaning)
        self._rect(left, y - 10, 14, 12, _INK)
        self._write(left + 20, y, "the row's own token", "start")
        saved = f"{len(items)} items hold {shared} tokens; if each row read its own, it would be {alone}."
        self._write(self._x(0), y + 26, saved, "start")
        self._write(
            self._x(0), y + 46, "A light part of a box is read for other rows of the item.", "start", color=_FAINT
        )

    def _kind(self, item: Item) -> str:
        if item.unit == 1:
            return "slots"
        return "shared" if len({self._step.seq_of_row[row] for row, _ in item.readers}) > 1 else "own"

    def _x(self, position: int) -> int:
        return _LEFT + position * _CELL

    def _y(self, row: int) -> int:
        return _TOP + row * _ROW + self._step.seq_of_row[row] * _GAP

    def _rect(self, x: int, y: int, width: int, height: int, fill: str, stroke: str = "none") -> None:
        self._elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="{stroke}"/>'
        )

    def _line(self, x: int, top: int, bottom: int) -> None:
        self._elements.append(
            f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="{_FAINT}" stroke-dasharray="3 3"/>'
        )

    def _write(self, x: int, y: int, text: str, anchor: str, color: str = _INK, bold: bool = False) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self._elements.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}"{weight}>{escape(text)}</text>'
        )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(make_step()), encoding="utf-8")
