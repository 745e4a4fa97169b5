"""Lesson 10: a server, and the client that you have already.

`forktree serve` speaks OpenAI's protocol, so whatever speaks to OpenAI speaks to it: in five lines.

    pip install 'forktree[server,openai]'
    python tutorials/10_openai_client.py
"""

import time

import openai
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
# The rules of a code review, and two examples of what is wanted. The first request computes them, all others find them
# in the cache: nothing is to be set, and `cached_tokens` tells.

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
EXAMPLES = [
    ("def f(a, b):\n    return a * b", "Rule 1: call it `area(width, height)`."),
    ("lines = open('names').read().split()", "Rule 3: `with open('names') as file: lines = file.read().split()`."),
]
SHARED = [{"role": "system", "content": RULES}]
for code, review in EXAMPLES:
    SHARED += [{"role": "user", "content": code}, {"role": "assistant", "content": review}]

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
            messages=[*SHARED, {"role": "user", "content": snippet}],
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
# Retrieval finds passages; the answer is one of their sentences, word for word, so that nothing is made up. Passages in
# a fixed order before the question make one prefix of all questions that find the same ones: the third finds those of
# the first.

DOCUMENTS = {
    "opening": ["The museum opens at 10:00 and closes at 18:00.", "On Mondays the museum is closed."],
    "tickets": ["A ticket costs 12 euros, 6 for students.", "Children under twelve enter free."],
    "tours": ["Guided tours start at 11:00 and 15:00 in the hall.", "A tour takes an hour."],
}


def find(question: str, count: int = 2) -> list[str]:
    """The documents that share most words with the question, in the order of their names."""

    def words(text: str) -> set[str]:
        return set(text.lower().replace(".", "").replace("?", "").split())

    asked = words(question)
    ranked = sorted(DOCUMENTS, key=lambda name: -len(asked & words(" ".join(DOCUMENTS[name]))))
    return sorted(ranked[:count])


def ask_documents(client: openai.OpenAI) -> None:
    for question in ("When is the museum closed?", "What does a ticket cost?", "When does the museum open?"):
        passages = {name: DOCUMENTS[name] for name in find(question)}
        told = "\n".join(f"[{name}] {' '.join(sentences)}" for name, sentences in passages.items())
        source = {sentence: name for name, sentences in passages.items() for sentence in sentences}
        answer = client.chat.completions.create(
            model="smol",
            messages=[{"role": "user", "content": f"{told}\n\n{question} Answer with one of these sentences."}],
            extra_body={"choices": list(source)},  # it can say nothing else
            max_tokens=32,
            temperature=0,
        )
        quote, usage = answer.choices[0].message.content, answer.usage
        cached = f"{usage.prompt_tokens_details.cached_tokens} of {usage.prompt_tokens} prompt tokens were cached"
        print(f"{question} {quote} [{source[quote]}; {cached}]")


# --- A document that is too long ----------------------------------------------------------------------------
#
# Cut it by the model's own tokens, ask the same of each piece, and put together what the pieces say. /tokenize and
# /detokenize stand beside /v1.

DOCUMENT = """
The lighthouse was built in 1871 from granite that was brought by sea. Forty men worked on it for three summers, and in
winter the waves took away what they had not finished. The first lamp burned oil, and a keeper climbed the stairs every
four hours to fill it. In 1923 the lamp became electric. The keepers stayed, since the cable broke in most storms, and
they kept oil in the cellar for such nights. Three families lived on the rock then, with goats and a small garden behind
a wall. The last keeper left in 1988. Since then a computer in the harbour has turned the lamp on and off, and twice a
year two engineers come by helicopter. In summer visitors may climb to the lamp, where they see four islands.
"""


def read_in_chunks(client: openai.OpenAI, url: str, chunk_tokens: int = 84) -> None:
    root = client.with_options(base_url=url)
    ids = root.post("/tokenize", body={"prompt": " ".join(DOCUMENT.split())}, cast_to=dict)["tokens"]
    pieces = [ids[start : start + chunk_tokens] for start in range(0, len(ids), chunk_tokens)]
    texts = [root.post("/detokenize", body={"tokens": piece}, cast_to=dict)["prompt"] for piece in pieces]

    def summarise(text: str) -> str:
        messages = [{"role": "user", "content": f"Summarise in one short sentence:\n{text}"}]
        answer = client.chat.completions.create(
            model="smol", messages=messages, max_tokens=40, temperature=0, stop=[".", "\n"]
        )
        return answer.choices[0].message.content

    notes = [summarise(text) for text in texts]
    print(f"{len(ids)} tokens in {len(pieces)} pieces:", *notes, sep="\n  ")
    print("together:", summarise(". ".join(notes)), sep="\n  ")


def main(url: str) -> None:
    five_lines(url)
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        review_code(client)
        ask_documents(client)
        read_in_chunks(client, url)


with served(KEY) as address:
    main(address)
