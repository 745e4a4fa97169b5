"""Real receipts, read into typed objects: the program behind `forktree demo`.

Scanned receipts come as noisy OCR text. The trunk of each program is the instruction and one receipt; behind it
three branches go on alone: one extracts the facts as JSON, one says what was bought, one judges how it was paid.
The model is small, so it chooses rather than copies: the JSON's fields are constrained to what a receipt really
holds, its first lines, its dates and its amounts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

import forktree as ft

DATA = Path(__file__).parent / "data"
KINDS = ("food", "fuel", "parking", "shopping")
PAYMENTS = ("in cash", "by card")
INSTRUCTION = "You read scanned shop receipts and copy facts from them."
QUESTION = "What are the company, the date and the total amount of this receipt?"


class Receipt(BaseModel):
    """What to find in a receipt."""

    company: str
    date: str
    total: float


@dataclass(frozen=True, slots=True)
class Scan:
    """One scanned receipt and what a person found in it."""

    text: str
    gold: Receipt


def load_scans() -> list[Scan]:
    """The receipts that come with the package."""
    rows = map(json.loads, (DATA / "receipts.jsonl").read_text(encoding="utf-8").splitlines())
    return [Scan(row["text"], Receipt.model_validate(row["gold"])) for row in rows]


def facts_schema(text: str) -> dict[str, object]:
    """A JSON Schema whose company is one of the first lines, whose date and total stand in the receipt."""
    found = {
        "company": [line.strip() for line in text.splitlines()[:3] if re.search("[A-Za-z]{3}", line)],
        "date": re.findall(r"\b\d{1,2}/\d{1,2}/\d{2,4}\b", text),
        "total": re.findall(r"\b\d+\.\d\d\b", text),
    }
    return {
        "type": "object",
        "properties": {field: {"enum": _distinct(values)} for field, values in found.items()},
        "required": list(found),
        "additionalProperties": False,
    }


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


@ft.function
def read_receipt(s: ft.State, text: str) -> dict[str, object]:
    s += ft.system(INSTRUCTION)
    s += ft.user(f"{text}\n\n{QUESTION}")

    facts, kind, payment = s.fork(3)
    facts += ft.assistant(
        "Here are the facts of the receipt as JSON: " + ft.gen("facts", schema=facts_schema(text), temperature=0)
    )
    kind += ft.assistant("What was bought: " + ft.select("kind", KINDS))
    payment += ft.assistant("It was paid " + ft.select("payment", PAYMENTS))
    s.join(facts, kind, payment)
    return {"receipt": Receipt.model_validate(s["facts"]), "kind": s["kind"], "payment": s["payment"]}


def right_fields(found: Receipt, gold: Receipt) -> dict[str, bool]:
    """Which fields agree with what a person found (case and blanks aside)."""

    def plain(text: str) -> str:
        return " ".join(text.casefold().split())

    return {
        "company": plain(found.company) == plain(gold.company),
        "date": found.date == gold.date,
        "total": abs(found.total - gold.total) < 0.005,
    }
