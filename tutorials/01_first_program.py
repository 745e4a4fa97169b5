"""Lesson 1: a first program.

A program is a Python function under `@ft.function`. Its first parameter is the state: whatever is appended to it
becomes the prompt, and `gen` lets the model go on. Run this file; it needs nothing but the built-in model.

    python tutorials/01_first_program.py
"""

import forktree as ft

# --- Text and generation ------------------------------------------------------------------------------------
#
# `s += …` appends. `ft.gen("name", …)` generates and keeps what came as a variable.


@ft.function
def complete(s, beginning):
    s += beginning
    s += ft.gen("ending", max_tokens=12, temperature=0)


state = complete.run("The capital of France is")
print(repr(state["ending"]))

# The state knows its whole text, and what each generation took. One token less went in than the text has: the last
# one is withdrawn and generated again, so that the model may choose how the word goes on ("healing").
print(repr(state.text()))
meta = state.meta("ending")
print(meta.finish_reason, meta.prompt_tokens, "tokens in,", meta.completion_tokens, "out")

# --- Roles --------------------------------------------------------------------------------------------------
#
# Chat models read turns. `system`, `user` and `assistant` write them as the model's own chat template does.


@ft.function
def ask(s, question):
    s += ft.system("You answer in one short sentence.")
    s += ft.user(question)
    s += ft.assistant(ft.gen("answer", max_tokens=40, temperature=0))
    return s["answer"]


state = ask.run("What is the capital of France?")
print(state.ret_value)
print(state.messages())

# --- More than one turn -------------------------------------------------------------------------------------
#
# The state goes on. Nothing that was computed is computed again: the second question only pays for itself.


@ft.function
def two_questions(s, first, second):
    s += ft.user(first)
    s += ft.assistant(ft.gen("first", max_tokens=40, temperature=0))
    s += ft.user(second)
    s += ft.assistant(ft.gen("second", max_tokens=40, temperature=0))


state = two_questions.run("Name a colour.", "Name another one.")
meta = state.meta("second")
print(f"second prompt: {meta.prompt_tokens} tokens, {meta.cached_tokens} of them cached")

# --- Streaming ----------------------------------------------------------------------------------------------
#
# `stream` returns at once; the text is printed as it is made.

state = ask.stream("Why is the sky blue?")
for piece in state.text_iter("answer"):
    print(piece, end="", flush=True)
print()

# --- What ran -----------------------------------------------------------------------------------------------
#
# Every run records its program.

print(state.program)
