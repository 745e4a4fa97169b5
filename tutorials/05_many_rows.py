"""Lesson 5: many rows.

`map` runs a program once for each row, many at a time. Rows share what they share of the prompt, a row that fails
is that row's result, and with a journal a run that was cut off goes on where it was.

    python tutorials/05_many_rows.py
"""

import asyncio
import json
import tempfile
from collections import Counter
from enum import Enum
from pathlib import Path

import forktree as ft

# --- A program and its rows ---------------------------------------------------------------------------------
#
# Commands that people gave to a voice assistant, and what they were for. A row is a dict of the program's
# arguments (or a tuple). An Enum as `dtype` is a choice whose value is typed.


class Kind(Enum):
    AddToPlaylist = "add to a playlist"
    BookRestaurant = "book a restaurant"
    GetWeather = "weather"
    PlayMusic = "play music"
    RateBook = "give a rating"
    SearchCreativeWork = "search for a work"
    SearchScreeningEvent = "cinema times"


EXAMPLES = [
    ("Give the current essay five points.", Kind.RateBook),
    ("Will it be foggy in Dunedin ND?", Kind.GetWeather),
    ("I want to hear the album Picchio Dal Pozzo from Con Hunley", Kind.PlayMusic),
    ("Add John Tesh to my salsa classics playlist", Kind.AddToPlaylist),
    ("Book a table at Georgetown Cupcake in GA for two people", Kind.BookRestaurant),
    ("Can you locate the work, Warlock 2: The Exiled?", Kind.SearchCreativeWork),
    ("Can I see The Cup Winner at the closest movie house", Kind.SearchScreeningEvent),
]
SHOTS = "".join(f"Command: {text}\nKind: {kind.value}\n\n" for text, kind in EXAMPLES)


@ft.function
def classify(s, command):
    if not command.strip():
        raise ValueError("the command is empty")
    s += SHOTS + f"Command: {command}\nKind: " + ft.gen("kind", dtype=Kind, temperature=0)
    return s["kind"]


lines = (Path(__file__).parent / "data" / "commands.jsonl").read_text(encoding="utf-8").splitlines()
commands = [json.loads(line) for line in lines]
rows = [{"command": command["text"]} for command in commands]
gold = [Kind[command["intent"]] for command in commands]

# --- map ----------------------------------------------------------------------------------------------------
#
# `progress=True` draws a bar with the rate and an estimate. The results come in the order of the rows. All rows
# begin with the same examples, so nearly all of every prompt is taken from the cache.

backend = ft.Local()
ft.use(backend)
results = classify.map(rows, progress=True)
num_right = sum(result.value is kind for result, kind in zip(results, gold, strict=True))
print(f"{num_right} of {len(rows)} commands are of the kind that a person said")
for kind, count in Counter(result.value for result in results).most_common():
    print(f"  {count:3} {kind.value}")
stats = backend.stats()
print(f"prompt tokens: {stats.prefill_tokens} computed, {stats.cached_tokens} taken from the cache")

# --- Rows that fail -----------------------------------------------------------------------------------------
#
# An error is the result of its row, and the others go on. `on_error="raise"` stops at the first instead.

print()
broken = [*rows[:2], {"command": "   "}, {"text": "the program has no such parameter"}]
for result in classify.map(broken):
    print(result.index, result.value if result.ok else repr(result.error))

# --- One after another, and in the order of finishing ---------------------------------------------------------
#
# `imap` hands out each result as soon as its turn comes and holds only a few, so a million rows need no more memory
# than a hundred; the rows may come from a generator. `ordered=False` does not wait for slower ones.
# `concurrency` bounds how many rows run at a time.

print()
for result in classify.imap(({"command": row["command"]} for row in rows[:6]), concurrency=3, ordered=False):
    print(result.index, result.value.value)

# In an async program or server: `amap`, and `aimap` for `async for`.

results = asyncio.run(classify.amap(rows[:6]))
print([result.value.name for result in results])

# --- A journal ----------------------------------------------------------------------------------------------
#
# With `journal=` each finished row is committed to an SQLite file before anybody sees it. A run that was killed,
# at any moment, is started again with the same call: rows that were finished come from the file, at no cost, and
# the rest run. `concurrency` makes that worth it: of rows that all run at once, none has finished when it stops.

print()
with tempfile.TemporaryDirectory() as folder:
    journal = Path(folder) / "commands.db"

    for result in classify.imap(rows, journal=journal, concurrency=4):
        if result.index == 19:
            break  # the run ends here, in the middle of the rows
    print("stopped after row", result.index)

    results = classify.map(rows, journal=journal, progress=True)
    print(sum(result.replayed for result in results), "of", len(results), "rows came from the journal")
    print(results[0].replayed, results[0].value, "-", results[0].state["kind"].value)

    # A journal belongs to its program and rows: the code, all data and files of yours that it refers to, the sampling
    # and the model. A change is refused and named, so that nothing old passes for new. `ft.Journal` says what to do
    # instead: "rerun" every row of the changed program, or "keep" what is there and run just the rows that are new.

    changed = classify.using(seed=1)
    try:
        changed.map(rows, journal=journal)
    except ft.LanguageError as error:
        print(error)
    results = changed.map(rows, journal=ft.Journal(journal, on_change="keep"))
    print(sum(result.replayed for result in results), "rows kept")

    more = [*rows, {"command": "open the window"}]
    results = changed.map(more, journal=ft.Journal(journal, on_change="keep"))
    print(sum(not result.replayed for result in results), "row was new")
