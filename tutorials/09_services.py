"""Lesson 9: other people's servers.

The same program runs on OpenAI, Anthropic, vLLM, SGLang, llama.cpp, Ollama or a forktree server: only the backend
changes. So that this lesson needs no account, the service here is `forktree serve` on this machine.

    python tutorials/09_services.py
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from serving import served

import forktree as ft

# --- A server -----------------------------------------------------------------------------------------------
#
# In a terminal of its own: `forktree serve --port 8000`, and FORKTREE_API_KEY=… before it for a key.

KEY = "a-key-of-yours"

# --- Programs -----------------------------------------------------------------------------------------------
#
# A review of code behind a long prompt that all reviews share.

RULES = [
    "Names say what a thing is for, not how it is made.",
    "A function does one thing; if its name needs an 'and', it is two functions.",
    "An error says what was wrong, what was seen, and what would be right.",
    "Nothing is caught that is not handled.",
    "A comment gives a reason; what the code does, the code says.",
    "Counts begin with num_, predicates with is_ or has_.",
    "A default argument is never a list or a dict.",
    "A file is opened with `with`.",
]
SHARED = "You review code. The rules:\n" + "".join(f"{n}. {rule}\n" for n, rule in enumerate(RULES * 3, 1))

CODE = [
    "def load(p):\n    f = open(p)\n    return f.read()",
    "def add(x, into=[]):\n    into.append(x)\n    return into",
    "try:\n    run()\nexcept Exception:\n    pass",
]


@dataclass
class Review:
    rule: int
    is_serious: bool


@ft.function
def review(s, code):
    s += ft.system(SHARED)
    s += ft.user(f"Which rule does this break?\n{code}\n")
    s += ft.assistant(ft.gen("review", schema=Review, max_tokens=40, temperature=0))
    return s["review"]


@ft.function
def ask(s, question, **options):
    s += ft.system("You answer in one short sentence.")
    s += ft.user(question)
    s += ft.assistant(ft.gen("answer", max_tokens=24, temperature=0, **options))


def main(url: str) -> None:
    # --- A whole program in one round trip ---
    #
    # `Remote` is a forktree server. A traced program goes there whole, runs beside the engine, and comes back as the
    # state that a run here would give. The shared prompt is computed once.

    with ft.Remote(url, api_key=KEY) as remote:
        ft.use(remote)
        for result in review.trace().map([{"code": code} for code in CODE], concurrency=1):
            meta = result.state.meta("review")
            print(result.value, f"{meta.cached_tokens} of {meta.prompt_tokens} prompt tokens were cached")
        print(remote.stats())

    # --- OpenAI's interface ---
    #
    # The same server as any client of OpenAI's sees it. At OpenAI itself this is `ft.OpenAI("gpt-4o-mini")`, with the
    # key in OPENAI_API_KEY. Prices are yours to give: a report of a run or a map counts with them.

    print()
    prices = {"smol": {"input": 0.15, "cached_input": 0.075, "output": 0.60}}
    with ft.OpenAI("smol", f"{url}/v1", KEY, dialect="forktree", prices=prices) as service:
        state = ask.stream("Why is the sky blue?", backend=service)
        for piece in state.text_iter("answer"):
            print(piece, end="", flush=True)
        print()
        results = ask.using(backend=service).map([{"question": "What is rain?"}, {"question": "What is snow?"}])
        report = ft.explain_run(results)
        tokens = f"{report.prompt_tokens} tokens in, {report.decode_tokens} out"
        print(f"{report.num_requests} requests, {tokens}: {report.price:.7f}")

    # --- What goes wrong ---
    #
    # Each has an error of its own. Requests that failed before their answer began are made again, as often as
    # `retries` says, with growing waits that obey Retry-After; what has begun to stream never is.

    print()
    attempts = {
        "a wrong key": ft.OpenAI("smol", f"{url}/v1", "wrong", dialect="forktree"),
        "an unknown model": ft.OpenAI("smal", f"{url}/v1", KEY, dialect="forktree"),
        "a wrong address": ft.OpenAI("smol", url, KEY, dialect="forktree"),
        "nobody there": ft.OpenAI("smol", "http://127.0.0.1:9/v1", KEY, dialect="forktree", retries=0),
        "no patience": ft.OpenAI("smol", f"{url}/v1", KEY, dialect="forktree", timeout=0.001),
    }
    for what, backend in attempts.items():
        with backend:
            try:
                ask.run("Hello?", backend=backend)
            except ft.BackendError as error:
                print(f"{what}: {type(error).__name__}: {error}")

    # --- Prompts that are too long ---
    #
    # With a limit that you know, a prompt is refused before it is sent, or cut as you say: "oldest" turns go, or the
    # "middle" of the longest text. The system's text and the last turn stay.

    print()
    question = "What is this about? " + "The river rises in the hills and runs to the sea. " * 400
    limited = {"context_limit": 600, "dialect": "forktree"}
    with ft.OpenAI("smol", f"{url}/v1", KEY, **limited) as service:
        try:
            ask.run(question, backend=service)
        except ft.ContextLengthError as error:
            print(error)
    with ft.OpenAI("smol", f"{url}/v1", KEY, truncate="middle", **limited) as service:
        state = ask.run(question, backend=service)
        print(f"sent {state.meta('answer').prompt_tokens} tokens of it")

    # --- Limits, and a journal ---
    #
    # `requests_per_minute` and `tokens_per_minute` keep under what the service allows, in every minute. With a journal
    # a map outlives its server, its key and your laptop: run it again, and only what is missing is asked for.

    print()
    with (
        tempfile.TemporaryDirectory() as folder,
        ft.OpenAI("smol", f"{url}/v1", KEY, dialect="forktree", requests_per_minute=600) as service,
    ):
        journal = Path(folder) / "answers.db"
        rows = [{"question": f"Name a thing that is {colour}."} for colour in ("red", "green", "blue")]
        program = ask.using(backend=service)
        program.map(rows[:2], journal=ft.Journal(journal, on_change="keep"))
        results = program.map(rows, journal=ft.Journal(journal, on_change="keep"))
        print([result.replayed for result in results])


with served(KEY) as address:
    main(address)
