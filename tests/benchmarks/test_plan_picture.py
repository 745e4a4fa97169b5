"""The picture in docs/engine.md is what the plan says."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from forktree.benchmarks.plan_picture import NUM_TRUNK, SPLIT, count_read, draw, make_step, plan_of, read_items

PICTURE = Path(__file__).parents[2] / "docs" / "engine-plan.svg"
REDRAW = "draw it again: python -m forktree.benchmarks.plan_picture docs/engine-plan.svg"


def test_the_picture_is_the_one_that_the_code_draws():
    assert PICTURE.read_text(encoding="utf-8") == draw(make_step()), REDRAW
    assert ElementTree.fromstring(draw(make_step())).tag.endswith("svg")


def test_whole_splits_of_the_trunk_are_one_item_for_all_rows():
    step = make_step()
    items = read_items(plan_of(step))
    whole = [item for item in items if len(item.readers) == len(step.forward.ids)]
    assert [(item.start, item.num_tokens) for item in whole] == [(0, 16), (16, 16)]
    assert NUM_TRUNK // SPLIT == 2


def test_the_caption_counts_what_is_read():
    step = make_step()
    shared, alone = count_read(read_items(plan_of(step)))
    assert alone == sum(position + 1 for position in step.forward.positions)
    assert f"hold {shared} tokens; if each row read its own, it would be {alone}." in draw(step)
