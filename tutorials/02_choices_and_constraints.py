"""Lesson 2: choices and constraints.

A constraint is a promise about the whole output: a finished one satisfies it, always. `select` is different: it
scores each option as a whole and takes the likeliest.

    python tutorials/02_choices_and_constraints.py
"""

from typing import Literal

from pydantic import BaseModel

import forktree as ft

# --- select -------------------------------------------------------------------------------------------------


@ft.function
def sentiment(s, review):
    s += ft.user(f"Is this review positive or negative?\n\n{review}")
    s += ft.assistant("It is " + ft.select("label", ["positive", "negative"]))


state = sentiment.run("The room was clean and the staff could not have been kinder.")
print(state["label"])
for option in state.meta("label").options:
    print(f"  {option.text:10} log-probability {option.logprob:7.3f}  probability {option.probability:.3f}")

# --- A regular expression -----------------------------------------------------------------------------------


@ft.function
def year_of(s, event):
    s += f"Event: {event}\nYear:" + ft.gen("year", regex=" [0-9]{4}", temperature=0)


print(year_of.run("the first landing on the Moon")["year"])

# --- A Python type ------------------------------------------------------------------------------------------
#
# `dtype=int` writes digits and gives back an int. `choices=` takes exactly one of some texts.


@ft.function
def count(s, question):
    s += f"Q: {question}\nA: " + ft.gen("number", dtype=int, max_tokens=8, temperature=0)


number = count.run("How many legs does a spider have?")["number"]
print(number, type(number).__name__)

# --- JSON ---------------------------------------------------------------------------------------------------
#
# `schema=` takes a pydantic model, a dataclass, a TypedDict or a JSON Schema. A Python type gives back its own kind.


class Animal(BaseModel):
    name: str
    diet: Literal["plants", "meat", "both"]
    legs: int


@ft.function
def describe(s, animal):
    s += ft.user(f"Describe a {animal} as JSON with its name, diet and number of legs.")
    s += ft.assistant(ft.gen("animal", schema=Animal, max_tokens=60, temperature=0))


print(repr(describe.run("horse")["animal"]))

# --- What happens when there is no room ---------------------------------------------------------------------
#
# An output that `max_tokens` cut is marked, and its typed value raises instead of pretending.


@ft.function
def too_short(s):
    s += "An animal as JSON: " + ft.gen("animal", schema=Animal, max_tokens=4, temperature=0)


try:
    print(too_short.run()["animal"])
except ft.IncompleteError as error:
    print("cut:", repr(error.text))

# A constraint that could not be honoured in full is refused when it is made.
try:
    ft.Regex(r"(a)\1")
except ft.ConstraintError as error:
    print(error.reason, "at", error.pointer)
