"""What `ft.Verbatim` does to the fields that a small model extracts: `python benchmarks/extraction.py [--rows FILE]`.

Company, date and total of scanned receipts, asked for in one JSON object, with every field

    str         any text of at most 60 characters
    verbatim    a literal piece of the receipt
    words       one that begins and ends with whole words

    right      share of fields equal to what a person found (case and blanks aside)
    literal    share of fields that stand in the receipt

`--masks` measures the constraint instead: 64 documents of 2,000 characters, each with a schema of three such fields;
milliseconds to compile it and for each mask on the way through an output.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

import forktree as ft

ROWS = Path(__file__).parent / "data" / "receipts.jsonl"
FIELDS = ("company", "date", "total")
INSTRUCTION = "You read scanned shop receipts and copy facts from them."
QUESTION = "What are the company, the date and the total amount of this receipt?"
Bounded = Field(min_length=1, max_length=60)


class Free(BaseModel):
    company: Annotated[str, Bounded]
    date: Annotated[str, Bounded]
    total: Annotated[str, Bounded]


class Verbatim(BaseModel):
    company: Annotated[str, ft.Verbatim(), Bounded]
    date: Annotated[str, ft.Verbatim(), Bounded]
    total: Annotated[str, ft.Verbatim(), Bounded]


class Words(BaseModel):
    company: Annotated[str, ft.Verbatim(unit="word"), Bounded]
    date: Annotated[str, ft.Verbatim(unit="word"), Bounded]
    total: Annotated[str, ft.Verbatim(unit="word"), Bounded]


WAYS: dict[str, type[BaseModel]] = {"str": Free, "verbatim": Verbatim, "words": Words}


@ft.function
def extract(s: ft.State, text: str, way: str) -> BaseModel:
    s += ft.system(INSTRUCTION)
    s += ft.user(f"{text}\n\n{QUESTION}")
    document = None if way == "str" else text
    facts = ft.gen("facts", schema=WAYS[way], document=document, temperature=0, max_tokens=160)
    s += ft.assistant("Here are the facts of the receipt as JSON: " + facts)
    return s["facts"]


def measure(rows: Sequence[dict[str, Any]], way: str) -> dict[str, Any]:
    """Shares of fields, and how long it took."""
    started = time.perf_counter()
    results = extract.map([{"text": row["text"], "way": way} for row in rows])
    seconds = time.perf_counter() - started
    right = dict.fromkeys(FIELDS, 0)
    literal = 0
    for row, result in zip(rows, results, strict=True):
        for field in FIELDS if result.ok else ():
            value = getattr(result.value, field)
            right[field] += _plain(value) == _plain(str(row["gold"][field]))
            literal += value in row["text"]
    count = len(rows)
    return {
        "way": way,
        **{field: right[field] / count for field in FIELDS},
        "right": sum(right.values()) / count / len(FIELDS),
        "literal": literal / count / len(FIELDS),
        "incomplete": sum(not result.ok for result in results),
        "seconds": seconds,
    }


def measure_masks(rows: Sequence[dict[str, Any]], model: str) -> None:
    """Prints the times of compiling and of masks, all of them new."""
    rng = random.Random(0)
    documents = ["\n".join(row["text"] for row in rng.sample(rows, 4))[:2000] for _ in range(64)]
    with ft.Local(model) as local:
        local.tokenize("")
        tokenizer = local._model.tokenizer()
    vocabulary = tokenizer.vocabulary
    ft.Schema({"type": "string"}).compile(vocabulary).mask()  # what is made once for a vocabulary
    compiled, masks = [], []
    for document in documents:
        starts = [rng.randrange(len(document) - 30) for _ in FIELDS]
        values = {field: document[at : at + 25].strip() or "1" for field, at in zip(FIELDS, starts, strict=True)}
        started = time.perf_counter()
        schema = Verbatim.model_json_schema() | {"additionalProperties": False}
        for field in schema["properties"].values():
            field |= ft.Verbatim(document).to_schema()
        matcher = ft.Schema(schema).compile(vocabulary)
        compiled.append(time.perf_counter() - started)
        for token in tokenizer.encode(json.dumps(values, ensure_ascii=False, separators=(",", ":"))):
            started = time.perf_counter()
            matcher.mask()
            masks.append(time.perf_counter() - started)
            matcher.advance(token)
    for name, times in (("compile", compiled), ("mask", masks)):
        ordered = [1e3 * one for one in sorted(times)]
        p50, p90, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99))
        print(f"{name:8} n={len(ordered):5}  p50 {p50:6.2f}  p90 {p90:6.2f}  p99 {p99:6.2f}  max {ordered[-1]:6.2f} ms")


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROWS, help='JSONL of {"text": …, "gold": {…}}')
    parser.add_argument("--limit", type=int, default=None, help="only the first so many")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--masks", action="store_true", help="times of compiling and of masks, and no model")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines()][: options.limit]
    if options.masks:
        measure_masks(rows, options.model)
        return
    with ft.Local(options.model) as local:
        ft.use(local.load())
        print(f"{len(rows)} receipts, {options.model}")
        print(f"{'':10}" + "".join(f"{name:>11}" for name in (*FIELDS, "right", "literal", "incomplete", "seconds")))
        for way in WAYS:
            found = measure(rows, way)
            shares = "".join(f"{found[name]:11.1%}" for name in (*FIELDS, "right", "literal"))
            print(f"{way:10}{shares}{found['incomplete']:11}{found['seconds']:11.1f}", flush=True)


if __name__ == "__main__":
    main()
