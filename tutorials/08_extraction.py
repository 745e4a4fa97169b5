"""Lesson 8: extraction that copies and does not invent.

A model that is asked for a field of a document may write something that the document does not say. `ft.Verbatim` takes
that away: the field is a literal piece of the document, always. What is left to the model is which piece.

    python tutorials/08_extraction.py
"""

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

import forktree as ft

ROWS = (Path(ft.__file__).parent / "tutorials/data/receipts.jsonl").read_text(encoding="utf-8").splitlines()
RECEIPTS = [json.loads(row) for row in ROWS[:6]]

# --- One piece ----------------------------------------------------------------------------------------------
#
# A Verbatim with its document, as the type of a value: the JSON string that comes out is a piece of the note.

NOTE = "The meeting with Dr. Osei was moved from Tuesday to Friday, at 15:30 in room B."
Piece = Annotated[str, ft.Verbatim(NOTE, unit="word"), Field(min_length=1, max_length=40)]


@ft.function
def find(s, question):
    s += ft.user(f"{NOTE}\n\n{question}")
    s += ft.assistant("The answer is " + ft.gen("piece", schema=Piece, temperature=0))


piece = find.run("With whom is the meeting?")["piece"]
print(repr(piece), piece in NOTE)

# --- A field ------------------------------------------------------------------------------------------------
#
# In a class, `ft.Verbatim()` marks the fields that are copied, and `document=` says from what. The type is written
# once and serves every document. `unit="word"` takes whole words only, so that no amount loses a digit. The empty
# text is a piece of everything: `min_length=1` asks for something.

Copied = Annotated[str, ft.Verbatim(unit="word"), Field(min_length=1, max_length=60)]


class Facts(BaseModel):
    company: Copied
    date: Copied
    total: Copied


class Free(BaseModel):
    company: str
    date: str
    total: str


@ft.function
def read(s, text, copies):
    s += ft.system("You read scanned shop receipts and copy facts from them.")
    s += ft.user(f"{text}\n\nWhat are the company, the date and the total amount of this receipt?")
    how = {"schema": Facts, "document": text} if copies else {"schema": Free}
    s += ft.assistant("Here are the facts as JSON: " + ft.gen("facts", max_tokens=100, temperature=0, **how))
    return s["facts"]


def count(copies):
    """How many fields stand in their receipt, and how many are what a person found there."""
    literal = right = 0
    for receipt, result in zip(RECEIPTS, read.map([(row["text"], copies) for row in RECEIPTS]), strict=True):
        for field in Facts.model_fields if result.ok else ():
            value = getattr(result.value, field)
            literal += value in receipt["text"]
            right += value.casefold() == receipt["gold"][field].casefold()
    return literal, right


for copies in (False, True):
    literal, right = count(copies)
    name = "verbatim" if copies else "free text"
    print(f"{name:9}  of {3 * len(RECEIPTS)} fields {literal:2} stand in the receipt, {right:2} are right")

# --- One document, one type ---------------------------------------------------------------------------------
#
# A Verbatim may also bring its document along, in a type or in a schema as a dict.

schema = {
    "type": "object",
    "properties": {"who": ft.Verbatim(NOTE, unit="word"), "sure": {"type": "boolean"}},
    "required": ["who", "sure"],
    "additionalProperties": False,
}
print(
    ft.Schema(schema).accepts('{"who":"Dr. Osei","sure":true}'),
    ft.Schema(schema).accepts('{"who":"Dr. Who","sure":true}'),
)

# --- Free text with a strict stretch in it ------------------------------------------------------------------
#
# `ft.Tags` leaves the model free until it opens a tag; inside, the tag's constraint holds. Here there is one tag, and
# the answer ends with it. `substring_of=` and `ft.Substring` are pieces of a document as plain text, without quotes.

copied = ft.Substring(NOTE, unit="word")
tags = ft.Tags([ft.Tag("<quote>", copied, "</quote>")], at_least=1, at_most=1, text_after=False)
EXAMPLE = "The shop opens at nine.\nWhen does it open? The note says: <quote>at nine</quote>"


@ft.function
def quote(s):
    s += f"{EXAMPLE}\n\n{NOTE}\nWhen is the meeting? The note says:"
    s += ft.gen("answer", constraint=tags, max_tokens=60, temperature=0)


state = quote.run()
print(state.meta("answer").text, "| complete:", state.meta("answer").is_complete)
