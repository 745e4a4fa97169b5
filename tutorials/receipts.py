"""Real receipts, read into typed objects: the program behind `forktree demo`.

Scanned receipts come as noisy OCR text. Every program begins with the same instructions and two worked
examples: that is the trunk. Behind each receipt three branches go on alone: one extracts the facts as JSON, one
says what was bought, one judges how it was paid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

import forktree as ft

DATA = Path(__file__).parent / "data"
KINDS = ("food", "fuel", "parking", "shopping")
PAYMENTS = ("in cash", "by card")


class Receipt(BaseModel):
    """What to find; the lengths keep an answer short, the pattern keeps a date a date."""

    company: Annotated[str, Field(max_length=48)]
    date: Annotated[str, Field(pattern=r"^\d{1,2}/\d{1,2}/\d{2,4}$")]
    total: float


@dataclass(frozen=True, slots=True)
class Scan:
    """One scanned receipt and what a person found in it."""

    text: str
    gold: Receipt


def load_scans(name: str = "receipts.jsonl") -> list[Scan]:
    """The receipts that come with the package, or the worked examples ("receipt_examples.jsonl")."""
    return list(_read(DATA / name))


def _read(path: Path) -> Iterator[Scan]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        gold = row["gold"]
        yield Scan(row["text"], Receipt(company=gold["company"], date=gold["date"], total=float(gold["total"])))


INSTRUCTIONS = (
    "You read scanned shop receipts. Answer with one JSON object that holds the company (the name of the shop, copied "
    "from the top of the receipt), the date (copied) and the total (the amount that was to be paid)."
)


@ft.function
def read_receipt(s: ft.State, text: str) -> dict[str, object]:
    s += ft.system(INSTRUCTIONS)
    for example in load_scans("receipt_examples.jsonl"):
        s += ft.user(example.text)
        s += ft.assistant(example.gold.model_dump_json())
    s += ft.user(text)

    facts, kind, payment = s.fork(3)
    facts += ft.assistant(ft.gen("receipt", schema=Receipt, max_tokens=96, temperature=0))
    kind += ft.assistant("What was bought: " + ft.select("kind", KINDS))
    payment += ft.assistant("It was paid " + ft.select("payment", PAYMENTS))
    s.join(facts, kind, payment)
    return {"receipt": s["receipt"], "kind": s["kind"], "payment": s["payment"]}


def right_fields(found: Receipt, gold: Receipt) -> dict[str, bool]:
    """Which fields agree with what a person found (case and blanks aside)."""

    def plain(text: str) -> str:
        return " ".join(text.casefold().split())

    return {
        "company": plain(found.company) == plain(gold.company),
        "date": found.date == gold.date,
        "total": abs(found.total - gold.total) < 0.005,
    }
