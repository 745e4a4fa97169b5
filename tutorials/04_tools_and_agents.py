"""Lesson 4: tools and agents.

A tool is a Python function. `gen(tools=[…])` constrains the model to one call of one of them, with a name that
exists and arguments of the right types; the call comes out ready to run. An agent is a program that runs it,
appends what came back, and goes on.

    python tutorials/04_tools_and_agents.py
"""

import json
import operator
from typing import Annotated, Literal

from pydantic import Field

import forktree as ft

# --- Tools --------------------------------------------------------------------------------------------------
#
# Annotations say what an argument may be: a type, a Literal, or a type with bounds or a pattern. They become the
# constraint, so the model cannot write anything else. The docstring is for the prompt.

Sign = Literal["+", "-", "*", "/"]
Unit = Literal["km", "miles", "kg", "pounds"]
Country = Annotated[str, Field(pattern="^[A-Z][a-z]{1,15}$")]

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
FACTORS = {("km", "miles"): 0.6214, ("miles", "km"): 1.6093, ("kg", "pounds"): 2.2046, ("pounds", "kg"): 0.4536}
MILLIONS = {"Brazil": 216.4, "Canada": 40.1, "France": 68.4, "Japan": 124.5, "Kenya": 55.1}


def calculate(left: float, sign: Sign, right: float) -> float:
    """Add, subtract, multiply or divide two numbers."""
    return OPERATIONS[sign](left, right)


def convert(amount: Annotated[float, Field(ge=0)], unit: Unit, to: Unit) -> float:
    """Convert a length or a weight to another unit."""
    if (unit, to) not in FACTORS:
        raise ValueError(f"{unit} cannot be converted to {to}")
    return amount * FACTORS[unit, to]


def population(country: Country) -> float:
    """Look up how many million people live in a country."""
    if country not in MILLIONS:
        raise LookupError(f"no entry for {country}")
    return MILLIONS[country]


TOOLS = [calculate, convert, population]


def result_of(tool, **arguments):
    """What the tool gave back, as text. A tool that raises has a result too: its message."""
    try:
        return f"{round(tool(**arguments), 2):g}"
    except (ArithmeticError, LookupError, ValueError) as error:
        return f"error: {error}"


# --- One call -----------------------------------------------------------------------------------------------
#
# `ft.tools(TOOLS)`, before the first turn, tells the model what there is: names, docstrings and arguments, where its
# own chat template writes them. This small model's has no place for tools, so they stand in the system turn. Worked
# examples help it more than any description; they show calls, results (each a turn of its own, `ft.tool`) and answers.

EXAMPLES = [
    ("How many people live in Kenya?", population, {"country": "Kenya"}, "55.1 million people"),
    ("How many people live in Oz?", population, {"country": "Oz"}, "I do not know."),
    ("What is 10 pounds in kg?", convert, {"amount": 10, "unit": "pounds", "to": "kg"}, "4.54 kg"),
    ("What is 4.5 / 3?", calculate, {"left": 4.5, "sign": "/", "right": 3}, "1.5"),
]


@ft.function
def show_examples(s):
    s += ft.tools(TOOLS)
    s += ft.system("Answer with the help of these functions.")
    for question, tool, arguments, answer in EXAMPLES:
        s += ft.user(question)
        s += ft.assistant(json.dumps({"name": tool.__name__, "arguments": arguments}, separators=(",", ":")))
        s += ft.tool(result_of(tool, **arguments))
        s += ft.assistant(answer)


@ft.function
def call_one(s, question):
    s.call(show_examples)  # another program's body, on this state
    s += ft.user(question)
    s += ft.assistant(ft.gen("call", tools=TOOLS, max_tokens=64, temperature=0))


state = call_one.run("What is 17 * 23?")
call = state["call"]
print("written:", state.meta("call").text)
print("typed:  ", call.name, dict(call.arguments))
print("run:    ", call())

# --- An agent -----------------------------------------------------------------------------------------------
#
# The result goes back and the model answers. What the program knows it writes itself: the answer begins with the
# result, and the model adds what it counts. Where the tool raised, the answer is one of two.

EXCUSES = ["I do not know.", "That is impossible."]


@ft.function
def agent(s, question):
    s.call(call_one, question)
    result = result_of(s["call"])
    s += ft.tool(result)
    if result.startswith("error"):
        s += ft.assistant(ft.select("answer", EXCUSES))
        return s["answer"]
    s += ft.assistant(result + ft.gen("unit", regex="( [a-z]{2,10}){0,3}", temperature=0))
    return result + s["unit"]


QUESTIONS = [
    "What is 144 / 12?",
    "What is 26 km in miles?",
    "How many people live in Brazil?",
    "How many people live in Norway?",  # raises: the table has no Norway
    "What is 3 miles in kg?",  # raises: a length is no weight
]
for outcome in agent.map([(question,) for question in QUESTIONS], on_error="raise"):
    print()
    for message in outcome.state.messages()[-4:]:
        print(f"{message['role']:>10}: {message['content']}")

# --- Calls that are not legal -------------------------------------------------------------------------------
#
# A name that is not there, or an argument that the tool does not take, cannot be written: the constraint holds,
# whatever the model would like. A scripted backend shows it, and is how to test an agent of your own.

print()
for written in (
    '{"name":"launch","arguments":{}}',
    '{"name":"population","arguments":{"city":"Nairobi"}}',
    '{"name":"convert","arguments":{"amount":-1,"unit":"km","to":"miles"}}',
):
    try:
        agent.run("…", backend=ft.Fake([written]))
    except ft.BackendError as error:
        print(error)

# --- A ReAct loop -------------------------------------------------------------------------------------------
#
# Thought, Action, Observation, as plain text. The program writes the labels, and each piece in between has its own
# constraint, so a transcript is always well formed and an action is read with one `split`.

TRANSCRIPT = """Actions: population[country], calculate[expression], finish[answer].

Question: How many people live in Oz?
Thought: I need the population of Oz.
Action: population[Oz]
Observation: error: no entry for Oz
Thought: The population of Oz is not known.
Action: finish[unknown]

Question: How many more people live in Canada than in Peru?
Thought: I need the population of Canada.
Action: population[Canada]
Observation: 40.1
Thought: I need the population of Peru.
Action: population[Peru]
Observation: 34
Thought: I need 40.1 - 34.
Action: calculate[40.1 - 34]
Observation: 6.1
Thought: 6.1 million more people live in Canada than in Peru.
Action: finish[6.1 million]

"""
LEGAL = r"(population|finish)\[[A-Za-z0-9. ]{1,30}\]|calculate\[[0-9.]{1,9} [-+*/] [0-9.]{1,9}\]"


def evaluate(expression):
    left, sign, right = expression.split()
    return calculate(float(left), sign, float(right))


def observe(name, argument):
    """What an action leads to."""
    match name:
        case "population":
            return result_of(population, country=argument)
        case "calculate":
            return result_of(evaluate, expression=argument)
        case _:
            return f"error: no action {name}"


@ft.function
def react(s, question, action=LEGAL, max_steps=5):
    s += TRANSCRIPT + f"Question: {question}\n"
    for _ in range(max_steps):
        s += "Thought:" + ft.gen("thought", stop="\n", max_tokens=30, temperature=0)
        s += "\nAction: " + ft.gen("action", regex=action, temperature=0)
        name, argument = s["action"].removesuffix("]").split("[")
        if name == "finish":
            return argument
        s += f"\nObservation: {observe(name, argument)}\n"
    return None


QUESTIONS = [
    "How many more people live in Japan than in France?",
    "How many people live in Norway?",
    "What is the weather in Paris?",
]
for outcome in react.map([(question,) for question in QUESTIONS[:2]], on_error="raise"):
    print()
    print(outcome.state.text().removeprefix(TRANSCRIPT))
    print("=>", outcome.value)

# A constraint on the form alone lets the model name any action. A wrong one is answered like any other error.

ANY = r"[a-z]{1,20}\[[A-Za-z0-9. ]{1,30}\]"
print()
print(react.run(QUESTIONS[2], action=ANY).text().removeprefix(TRANSCRIPT))
