"""Lesson 2: choices and constraints.

A constraint is a promise about the whole output: a finished one satisfies it, always. `select` is different: it
scores each option as a whole and takes the likeliest. What a constraint promises is the form: the built-in model is
small (135 million parameters), so the content may well be wrong.

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
    s += "The French Revolution began in the year 1789. World War I began in the year 1914. "
    s += f"{event} in the year" + ft.gen("year", regex=" [0-9]{4}", temperature=0) + "."


print(year_of.run("The Berlin Wall fell")["year"])

# --- A Python type ------------------------------------------------------------------------------------------
#
# `dtype=int` writes digits and gives back an int. `choices=` takes exactly one of some texts.


@ft.function
def count(s, question):
    s += ft.user(f"{question} Answer with a number.")
    s += ft.assistant("The answer is " + ft.gen("number", dtype=int, max_tokens=8, temperature=0))


number = count.run("How many legs does a spider have?")["number"]
print(number, type(number).__name__)

# --- JSON ---------------------------------------------------------------------------------------------------
#
# `schema=` takes a pydantic model, a dataclass, a TypedDict or a JSON Schema. A Python type gives back its own kind.


class City(BaseModel):
    name: str
    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]
    is_capital: bool


@ft.function
def describe(s, city):
    s += ft.user(f"Describe the city of {city} as JSON: its name, its continent, and whether it is a capital.")
    s += ft.assistant(ft.gen("city", schema=City, max_tokens=60, temperature=0))


print(repr(describe.run("Paris")["city"]))

# --- What happens when there is no room ---------------------------------------------------------------------
#
# An output that `max_tokens` cut is marked, and its typed value raises instead of pretending.


@ft.function
def too_short(s):
    s += "A city as JSON: " + ft.gen("city", schema=City, max_tokens=4, temperature=0)


try:
    print(too_short.run()["city"])
except ft.IncompleteError as error:
    print("cut:", repr(error.text))

# A constraint that could not be honoured in full is refused when it is made.
try:
    ft.Regex(r"(a)\1")
except ft.ConstraintError as error:
    print(error.reason, "at", error.pointer)
