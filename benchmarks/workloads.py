"""The six workloads, as token ids, the same for every engine.

    W1  decode: 1, 4, 16, 64 prompts of 64 tokens, 64 new tokens each
    W2  prefill: one prompt of 2,048 tokens, and 16 of 512
    W3  few-shot: 64 questions of 40 tokens behind 1,500 shared tokens; 8 new tokens, or a choice of 4 options
    W4  fork: 8 programs of 600 tokens, 8 branches of 48 new tokens each, then a summary of 64
    W5  JSON: 32 notes of 150 tokens behind 300 shared tokens, one object each
    W6  chat: 16 sessions of 4 turns, 60 tokens in and 40 out

Everything is deterministic (own text generator, fixed seeds) and has exact token counts under the built-in
model's tokenizer. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import json
import random
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from forktree.backend.model.store import resolve_model


@functools.cache
def tokenizer() -> Tokenizer:
    """The built-in model's tokenizer, fetched with the model on first use."""
    return Tokenizer.from_file(str(resolve_model("smollm2-135m") / "tokenizer.json"))


def ids(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False).ids


def text(token_ids: list[int]) -> str:
    return tokenizer().decode(list(token_ids), skip_special_tokens=False)


# --------------------------------------------------------------------------- text generator
_SUBJ = [
    "The harbour",
    "A small bakery",
    "The mountain railway",
    "Our regional museum",
    "The night market",
    "A retired engineer",
    "The city library",
    "An old orchard",
    "The weather station",
    "A travelling circus",
    "The river ferry",
    "The chess club",
    "A village school",
    "The repair shop",
    "The botanical garden",
]
_VERB = [
    "opened",
    "received",
    "measured",
    "rebuilt",
    "described",
    "repaired",
    "collected",
    "sold",
    "counted",
    "delivered",
    "recorded",
    "painted",
    "moved",
    "tested",
    "catalogued",
]
_OBJ = [
    "forty wooden crates",
    "a new copper roof",
    "several rare maps",
    "the eastern bridge",
    "two hundred visitors",
    "a set of brass instruments",
    "fresh bread and apples",
    "an unusual winter storm",
    "three hundred letters",
    "a broken steam pump",
    "the annual report",
    "a collection of seeds",
    "its oldest lantern",
    "nine blue boats",
]
_TAIL = [
    "before the first snow of November",
    "with help from the local council",
    "although the road was closed",
    "and everyone talked about it for weeks",
    "after a long discussion about money",
    "during the summer festival",
    "because the previous one had been lost",
    "while the children watched from the square",
    "at a cost of about 1,250 crowns",
    "without telling the newspapers",
    "on a quiet Tuesday morning",
]
_FACTS = [
    ("France", "Paris"),
    ("Japan", "Tokyo"),
    ("Egypt", "Cairo"),
    ("Norway", "Oslo"),
    ("Peru", "Lima"),
    ("Kenya", "Nairobi"),
    ("Canada", "Ottawa"),
    ("Cuba", "Havana"),
    ("Greece", "Athens"),
    ("Spain", "Madrid"),
    ("Italy", "Rome"),
    ("Iraq", "Baghdad"),
    ("Chile", "Santiago"),
    ("Ghana", "Accra"),
    ("Poland", "Warsaw"),
    ("Austria", "Vienna"),
    ("Portugal", "Lisbon"),
    ("Ireland", "Dublin"),
    ("Sweden", "Stockholm"),
]


def prose(seed: int, n_tokens: int) -> list[int]:
    """Exactly n_tokens ids of plain English, different for every seed from the first words on."""
    rng = random.Random(seed)
    out: list[int] = []
    while len(out) < n_tokens:
        s = " ".join(
            f"{rng.choice(_SUBJ)} {rng.choice(_VERB)} {rng.choice(_OBJ)} {rng.choice(_TAIL)}." for _ in range(8)
        )
        out += ids((" " if out else f"Note {seed}. ") + s)
    return out[:n_tokens]


# --------------------------------------------------------------------------- W1, W2
@dataclass
class Batch:
    prompts: list[list[int]]
    max_new: int


def w1(n: int, prompt_tokens: int = 64, new_tokens: int = 64) -> Batch:
    return Batch([prose(1000 + i, prompt_tokens) for i in range(n)], new_tokens)


def w2_long() -> Batch:
    return Batch([prose(2000, 2048)], 1)


def w2_many() -> Batch:
    return Batch([prose(2100 + i, 512) for i in range(16)], 1)


# --------------------------------------------------------------------------- W3
@dataclass
class FewShot:
    prefix: list[int]
    questions: list[list[int]]
    choices: list[list[list[int]]]  # per question, 4 choices of 3 tokens each
    max_new: int = 8


def _question(rng: random.Random) -> tuple[str, str]:
    country, capital = rng.choice(_FACTS)
    others = [c for _, c in rng.sample(_FACTS, 6) if c != capital][:3]
    opts = [*others, capital]
    rng.shuffle(opts)
    letters = "ABCD"
    q = (
        f"Question: Which city is the seat of government of {country}, as visitor {rng.randint(100, 999)} asked?\n"
        + "\n".join(f"{letters[i]}. {o}" for i, o in enumerate(opts))
        + "\nAnswer:"
    )
    return q, f" {letters[opts.index(capital)]}"


def w3(n_questions: int = 64, prefix_tokens: int = 1500, question_tokens: int = 40) -> FewShot:
    rng = random.Random(3)
    shots = "The following are multiple choice questions with answers.\n\n"
    while len(pre := ids(shots)) < prefix_tokens:
        shots += "".join(q + a + "\n\n" for q, a in (_question(rng) for _ in range(4)))
    tail = ids("\nAnswer:")
    questions, choices = [], []
    for _ in range(n_questions):
        q, _ = _question(rng)
        body = ids(q[: -len("\nAnswer:")])
        if len(body) < question_tokens - len(tail):
            body = body + ids(" or none of these, say experts in the capital")
        questions.append(body[: question_tokens - len(tail)] + tail)
        cs = []
        for letter in "ABCD":
            cs.append((ids(f" {letter}.") + ids(" " + rng.choice(_FACTS)[1]))[:3])
        choices.append(cs)
    return FewShot(pre[-prefix_tokens:], questions, choices)


# --------------------------------------------------------------------------- W4
@dataclass
class ForkProgram:
    context: list[int]
    branches: list[list[int]]  # what each branch appends before generating
    join: list[int]  # appended after context + all branches
    branch_new: int = 48
    summary_new: int = 64

    def join_prompt(self, generated: list[list[int]]) -> list[int]:
        out = list(self.context)
        for b, g in zip(self.branches, generated, strict=True):
            out += b + list(g)
        return out + self.join


def w4(n_programs: int = 8, context_tokens: int = 600, n_branches: int = 8) -> list[ForkProgram]:
    nl = ids("\n\n")
    return [
        ForkProgram(
            context=prose(4000 + p, context_tokens),
            branches=[nl + ids(f"Aspect {b + 1}:") for b in range(n_branches)],
            join=nl + ids("In short, all of the above says that"),
        )
        for p in range(n_programs)
    ]


# --------------------------------------------------------------------------- W5
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "category": {"type": "string", "enum": ["trade", "culture", "transport", "weather", "education"]},
        "year": {"type": "integer"},
        "public": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "place": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "distance_km": {"type": "integer"}},
            "required": ["name", "distance_km"],
            "additionalProperties": False,
        },
    },
    "required": ["title", "category", "year", "public", "tags", "place"],
    "additionalProperties": False,
}


def bounded_schema() -> dict:
    """The same schema with string lengths bounded, so that every peer can end inside 160 tokens."""
    s = json.loads(json.dumps(SCHEMA))
    s["properties"]["title"]["maxLength"] = 40
    s["properties"]["tags"]["items"]["maxLength"] = 16
    s["properties"]["place"]["properties"]["name"]["maxLength"] = 24
    s["properties"]["year"].update(minimum=0, maximum=2100)
    s["properties"]["place"]["properties"]["distance_km"].update(minimum=0, maximum=5000)
    return s


@dataclass
class JsonTask:
    prompts: list[list[int]]
    schema: dict
    max_new: int = 160
    shared: int = 0  # tokens every prompt shares
    docs: list[list[int]] = field(default_factory=list)


_INSTRUCTION = """You read a short news note and answer with one JSON object and nothing else.

The object has exactly these fields, in this order:
- "title": a short title for the note, at most six words.
- "category": one of "trade", "culture", "transport", "weather", "education".
- "year": the year that the note speaks of, as an integer; use 1990 when it names none.
- "public": true when the note concerns a public body, else false.
- "tags": up to three short lower-case words that describe the note.
- "place": an object with "name", the main place of the note, and "distance_km", its distance to the capital as an integer.

Rules: write no comments, no trailing commas and no text outside the object. Keep every string short.

Example note: The river ferry carried 300 letters across the bay in 1987, and the council paid for a new engine.
Example answer: {"title": "Ferry gets new engine", "category": "transport", "year": 1987, "public": true, "tags": ["ferry", "council"], "place": {"name": "the bay", "distance_km": 40}}
"""


def w5(n_docs: int = 32, doc_tokens: int = 150, instruction_tokens: int = 300, bounded: bool = True) -> JsonTask:
    head = ids("<|im_start|>system\n" + _INSTRUCTION)
    pad = ids("\nBe brief and exact. Read the whole note before you answer, and copy names as they are written.")
    while len(head) < instruction_tokens - 12:
        head += pad
    head = head[: instruction_tokens - 12] + ids("<|im_end|>\n<|im_start|>user\nNote: ")
    docs = [prose(5000 + i, doc_tokens) for i in range(n_docs)]
    tail = ids("<|im_end|>\n<|im_start|>assistant\n")
    return JsonTask(
        [head + d + tail for d in docs], bounded_schema() if bounded else SCHEMA, shared=len(head), docs=docs
    )


def json_valid(out: str, schema: dict) -> bool:
    import jsonschema

    try:
        jsonschema.validate(json.loads(out), schema)
        return True
    except Exception:
        return False


# --------------------------------------------------------------------------- W6
@dataclass
class Chat:
    turns: list[list[int]]  # what the user side appends at each turn (60 tokens, markup included)
    new: int = 40


def w6(n_sessions: int = 16, n_turns: int = 4, user_tokens: int = 60) -> list[Chat]:
    head, tail = ids("<|im_start|>user\n"), ids("<|im_end|>\n<|im_start|>assistant\n")
    first_close = ids("<|im_end|>\n")
    chats = []
    for s in range(n_sessions):
        turns = []
        for t in range(n_turns):
            pre = (first_close if t else []) + head
            turns.append(pre + prose(6000 + 10 * s + t, user_tokens - len(pre) - len(tail)) + tail)
        chats.append(Chat(turns))
    return chats
