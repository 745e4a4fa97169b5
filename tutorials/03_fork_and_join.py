"""Lesson 3: fork and join.

Branches share their trunk: its tokens are computed once, however many branches go on from it, and the branches
run together. `join` brings their variables back.

    python tutorials/03_fork_and_join.py
"""

import forktree as ft

TOPIC = "a small museum of clocks in a mountain village"

# --- Branches -----------------------------------------------------------------------------------------------


@ft.function
def three_views(s, topic):
    s += ft.system("You write one short sentence.")
    s += ft.user(f"Write about {topic}.")
    people = ("visitor", "clockmaker", "mayor")
    branches = s.fork(len(people))
    for branch, who in zip(branches, people, strict=True):
        branch += ft.assistant(f"The {who} says: " + ft.gen("view", max_tokens=24, temperature=0))
    s.join(*branches)
    return s["view"]  # a name that several branches set comes back as a list, in branch order


for view in three_views.run(TOPIC).ret_value:
    print("-", view)

# --- Branches that do different things ----------------------------------------------------------------------
#
# A name that one branch sets comes back as its value. The branches' text stays with them.


@ft.function
def review(s, text):
    s += ft.user(f"A guest wrote: {text}\nIs the guest happy or angry, and what is it about?")
    mood, subject = s.fork(2)
    mood += ft.assistant("The guest is " + ft.select("mood", ["happy", "angry"]))
    subject += ft.assistant("It is about the " + ft.select("subject", ["room", "food", "staff"]))
    s.join(mood, subject)
    return f"{s['mood']}, about the {s['subject']}"


print(review.run("The soup was cold and nobody came when we called. Terrible!").ret_value)

# --- Many rows ----------------------------------------------------------------------------------------------
#
# `map` runs a program over rows, many at a time; a row that fails is that row's result. What rows share (here four
# examples) is computed once.


@ft.function
def opposite(s, word):
    s += "hot -> cold\nhigh -> low\nup -> down\nbig -> small\n" + f"{word} ->"
    s += ft.gen("opposite", max_tokens=4, stop="\n", temperature=0)
    return s["opposite"].strip()


backend = ft.Local()
ft.use(backend)
words = ["early", "light", "open", "rich", "young", "day"]
before = backend.stats()
for result in opposite.map([{"word": word} for word in words]):
    print(f"{result.row['word']:6} {result.value if result.ok else result.error}")
after = backend.stats()
computed = after.prefill_tokens - before.prefill_tokens
cached = after.cached_tokens - before.cached_tokens
print(f"prompt tokens: {computed} computed, {cached} taken from the cache")
