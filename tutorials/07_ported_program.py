"""Lesson 7: a ported program.

A program that was written for SGLang's front end runs here when its first line, `import sglang as sgl`, becomes
`import forktree as sgl`. Names, keywords and meanings are the same; below are the usual kinds. Only the line that
chooses a server changes: the model runs in this process.

    python tutorials/07_ported_program.py
"""

import forktree as sgl

sgl.set_default_backend(sgl.Local())  # was: sgl.set_default_backend(sgl.RuntimeEndpoint("http://localhost:30000"))

# --- Few-shot completion ------------------------------------------------------------------------------------
#
# Sampling is a keyword of `run`. A generation that names no budget gets SGLang's 128 tokens.


@sgl.function
def capital(s, country):
    s += "Q: What is the capital of France?\nA: Paris\n"
    s += "Q: What is the capital of Japan?\nA: Tokyo\n"
    s += "Q: What is the capital of " + country + "?\nA:" + sgl.gen("answer", stop="\n")


state = capital.run(country="Italy", temperature=0)
print(state["answer"].strip())
print(state.get_meta_info("answer")["completion_tokens"], "tokens")

# --- Chat ---------------------------------------------------------------------------------------------------
#
# Roles as functions, as `with` blocks, or as split markers. `stream=True` gives a state to iterate.


@sgl.function
def chat(s, first, second):
    s += sgl.system("You answer in one short sentence.")
    s += sgl.user(first)
    s += sgl.assistant(sgl.gen("first_answer", max_tokens=32))
    with s.user():
        s += second
    s += sgl.assistant_begin() + sgl.gen("second_answer", max_tokens=32) + sgl.assistant_end()


state = chat.run(first="What is the Moon?", second="And the Sun?", temperature=0, stream=True)
for piece in state.text_iter("second_answer"):
    print(piece, end="", flush=True)
print()
for message in state.messages():
    print(f"{message['role']:>10}: {message['content']}")

# --- Choices and types --------------------------------------------------------------------------------------
#
# `gen(choices=…)` and `select` score every option; `choices_method` says how. The program goes on in plain Python.


@sgl.function
def use_a_tool(s, question):
    s += "To answer the question '" + question + "' I need a "
    s += sgl.gen("tool", choices=["calculator", "dictionary"], choices_method=sgl.greedy_token_selection)
    if s["tool"] == "calculator":
        s += ". The expression to compute is " + sgl.gen("expression", regex=r"[0-9]+ [-+*/] [0-9]+")
    else:
        s += ". The word to look up is '" + sgl.gen("word", stop="'", max_tokens=8) + "'"
    s += ".\n"


@sgl.function
def hours(s):
    s += "Hours in a day: 24\nDays in a week: " + sgl.gen_int("days") + "\n"
    s += "A week is " + sgl.select("length", choices=["shorter", "longer"]) + " than a month."


print(repr(use_a_tool.run(question="What is 12 * 3?", temperature=0).text()))
print(repr(use_a_tool.run(question="What does 'serene' mean?", temperature=0).text()))
print(repr(hours.run(temperature=0).text()))

# --- Forks and nested programs ------------------------------------------------------------------------------
#
# `join` brings the branches' variables back as lists. A program that is called inside another starts at once, so
# that the two below run together.


@sgl.function
def expand(s, tip):
    s += sgl.user("Write one sentence about this tip for a healthy life: " + tip)
    s += sgl.assistant(sgl.gen("sentence", max_tokens=32, stop="\n"))


@sgl.function
def advise(s, topic):
    s += "Notes on " + topic + ".\n"
    details = [expand(tip=tip) for tip in ("eat well", "sleep enough")]
    forks = s.fork(2)
    forks += lambda i: "The most important thing " + ("to do" if i == 0 else "to avoid") + " is"
    forks += sgl.gen("thing", max_tokens=16, stop=[".", "\n"])
    forks.join()
    s += "To do:" + s["thing"][0] + "\nTo avoid:" + s["thing"][1] + "\n"
    for detail in details:
        s += "- " + detail["sentence"] + "\n"


print(advise.run(topic="a healthy life", temperature=0).text())

# --- Batches ------------------------------------------------------------------------------------------------
#
# `run_batch` returns finished states. A row that failed raises its own error when its state is read.

states = capital.run_batch(
    [{"country": country} for country in ("Spain", "Egypt", "Peru", "Norway")],
    temperature=0,
    max_new_tokens=16,
    num_threads=4,
    progress_bar=True,
)
print([state["answer"].strip() for state in states])

# --- Names that have no place here --------------------------------------------------------------------------

try:
    sgl.Engine(model_path="…")
except AttributeError as error:
    print(error)
