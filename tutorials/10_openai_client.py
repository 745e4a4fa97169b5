"""Lesson 10: a server, and the client that you have already.

`forktree serve` speaks OpenAI's protocol, so whatever speaks to OpenAI speaks to it: in five lines.

    pip install 'forktree[server,openai]'
    python tutorials/10_openai_client.py
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path

import openai
from pydantic import BaseModel
from serving import served

KEY = "a-key-of-yours"


def five_lines(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
    answer = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=24
    )
    print(answer.choices[0].message.content)


# --- A long prompt that all requests share ------------------------------------------------------------------
#
# The rules of a code review, and two examples. The first request computes them, all others find them in the cache:
# nothing is to be set, and `cached_tokens` tells.

RULES = "You review Python code. Answer with the rule that is broken, and how to mend it.\n" + "".join(
    f"Rule {number}. {rule}\n"
    for number, rule in enumerate(
        [
            "A name says what a thing is for. Bad: `def f(x)`. Good: `def mean(values)`.",
            "A default argument is never a list or a dict: it is made once, and every call changes it.",
            "A file is opened with `with`, so that it is closed whatever happens.",
            "An exception is caught by its class, where something is done about it; never `except: pass`.",
            "Counts begin with num_, predicates with is_ or has_.",
            "An error says what was wrong, what was seen and what would be right.",
            "A function does one thing; if its name needs an `and`, it is two functions.",
            "A comment gives a reason; what the code does, the code says.",
        ]
        * 4,
        1,
    )
)
SNIPPETS = [
    "def load(path):\n    return open(path).read()",
    "def add(item, into=[]):\n    into.append(item)\n    return into",
    "try:\n    run()\nexcept:\n    pass",
]


def review_code(client: openai.OpenAI) -> None:
    for snippet in SNIPPETS:
        begun = time.perf_counter()
        stream = client.chat.completions.create(
            model="smol",
            messages=[{"role": "system", "content": RULES}, {"role": "user", "content": snippet}],
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        first_ms, usage = None, None
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content and first_ms is None:
                first_ms = 1000 * (time.perf_counter() - begun)
            usage = chunk.usage or usage
        cached = usage.prompt_tokens_details.cached_tokens
        print(f"first text after {first_ms:5.0f} ms; {cached} of {usage.prompt_tokens} prompt tokens were cached")


# --- Questions about the same documents ---------------------------------------------------------------------
#
# Retrieval finds passages; the answer's form is a pydantic model, so that it is one, always. Passages in a fixed order
# before the question make one prefix of all questions that find the same ones.

DOCUMENTS = {
    "opening": "The museum opens at 10:00 and closes at 18:00. On Mondays it is closed.",
    "tickets": "A ticket costs 12 euros, 6 for students. Children under twelve enter free.",
    "tours": "Guided tours start at 11:00 and 15:00 in the hall and take an hour.",
}


class Answer(BaseModel):
    source: str
    answer: str


def find(question: str, count: int = 2) -> list[str]:
    """The documents that share most words with the question, in the order of their names."""
    words = set(question.lower().strip("?").split())
    ranked = sorted(DOCUMENTS, key=lambda name: -len(words & set(DOCUMENTS[name].lower().replace(".", "").split())))
    return sorted(ranked[:count])


def ask_documents(client: openai.OpenAI) -> None:
    for question in ("When does the museum open?", "What does a ticket cost for students?"):
        names = find(question)
        passages = "\n".join(f"[{name}] {DOCUMENTS[name]}" for name in names)
        schema = Answer.model_json_schema()
        schema["properties"]["source"] = {"enum": names}  # it can name no other
        schema["properties"]["answer"]["maxLength"] = 80
        schema["additionalProperties"] = False
        answer = client.chat.completions.create(
            model="smol",
            messages=[{"role": "user", "content": f"{passages}\n\n{question}"}],
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
            max_tokens=80,
            temperature=0,
        )
        print(Answer.model_validate_json(answer.choices[0].message.content))


# --- A document that is too long ----------------------------------------------------------------------------
#
# Cut it by the model's own tokens, ask of each piece, and choose among what the pieces say. /tokenize and /detokenize
# stand beside /v1.


def read_in_chunks(client: openai.OpenAI, url: str, chunk_tokens: int = 150) -> None:
    days = (f"On day {day} the ship sailed {70 + 13 * day % 40} miles." for day in range(1, 31))
    root = client.with_options(base_url=url)
    ids = root.post("/tokenize", body={"prompt": " ".join(days)}, cast_to=dict)["tokens"]
    pieces = [ids[start : start + chunk_tokens] for start in range(0, len(ids), chunk_tokens)]
    texts = [root.post("/detokenize", body={"tokens": piece}, cast_to=dict)["prompt"] for piece in pieces]
    found = []
    for text in texts:
        answer = client.chat.completions.create(
            model="smol",
            messages=[{"role": "user", "content": f"{text}\n\nWhich is the largest number of miles?"}],
            extra_body={"regex": "[0-9]{2,3} miles"},
            max_tokens=8,
            temperature=0,
        )
        found.append(answer.choices[0].message.content)
    print(
        f"{len(ids)} tokens in {len(pieces)} pieces: {found}; the largest: {max(found, key=lambda one: int(one[:-6]))}"
    )


# --- Many at once -------------------------------------------------------------------------------------------
#
# With asyncio, and with a file of requests in OpenAI's batch format, one a line. The server computes them together. A
# request that fails is that line's answer.


async def answer_line(client: openai.AsyncOpenAI, line: str) -> str:
    asked = json.loads(line)
    told = {"id": f"batch_req_{asked['custom_id']}", "custom_id": asked["custom_id"], "response": None, "error": None}
    try:
        response = await client.chat.completions.with_raw_response.create(**asked["body"])
        told["response"] = {"status_code": response.status_code, "body": json.loads(response.text)}
    except openai.APIStatusError as error:
        told["response"] = {"status_code": error.status_code, "body": {"error": error.body}}
    except openai.APIConnectionError as error:
        told["error"] = {"code": type(error).__name__, "message": str(error)}
    return json.dumps(told)


async def run_batch(url: str, requests: Path, answers: Path) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        lines = requests.read_text(encoding="utf-8").splitlines()
        done = await asyncio.gather(*(answer_line(client, line) for line in lines))
    answers.write_text("".join(f"{line}\n" for line in done), encoding="utf-8")


def batch(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        requests, answers = Path(folder) / "requests.jsonl", Path(folder) / "answers.jsonl"
        with requests.open("w", encoding="utf-8") as file:
            for number, colour in enumerate(["red", "green", "blue", ""]):
                body = {"model": "smol", "messages": [{"role": "user", "content": f"Name a {colour} thing."}]}
                body |= {"max_tokens": 8 if colour else 0, "temperature": 0}
                line = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
                file.write(json.dumps(line) + "\n")
        asyncio.run(run_batch(url, requests, answers))
        for line in answers.read_text(encoding="utf-8").splitlines():
            told = json.loads(line)
            print(told["custom_id"], told["response"]["status_code"])


# --- What goes wrong ----------------------------------------------------------------------------------------
#
# The client raises its own exceptions; those of too many requests and of a server that is not there it retries itself.


def handle_errors(url: str) -> None:
    def ask(key: str = KEY, content: str = "Hello", **options) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, **options) as client:
            messages = [{"role": "user", "content": content}]
            client.chat.completions.create(model="smol", messages=messages, max_tokens=200)

    attempts = {
        "a wrong key": lambda: ask(key="wrong"),
        "more than the context": lambda: ask(content="again and " * 9000),
        "no patience": lambda: ask(timeout=0.01),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
        except openai.APIStatusError as error:
            print(f"{what}: {type(error).__name__}, {error.code}")
        except openai.APITimeoutError as error:
            print(f"{what}: {type(error).__name__}")


def main(url: str) -> None:
    five_lines(url)
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        review_code(client)
        ask_documents(client)
        read_in_chunks(client, url)
    batch(url)
    handle_errors(url)


with served(KEY) as address:
    main(address)
