"""The load: conversations behind one long system prompt, each with a question of its own.

    chat      1,000 tokens of instructions, a question of 40, 32 new tokens
    review    2,000 tokens of rules, a change of about 120, 32 new tokens

Everything is deterministic, and no question comes twice in a run: what is found in a cache is the system prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forktree.benchmarks import workloads as W

_SEED = 70_000


@dataclass(frozen=True, slots=True)
class Load:
    """Conversations of one kind.

    Attributes:
        name: of the kind.
        system: what the system's turn says.
        num_question_tokens, num_new_tokens: of each conversation.
    """

    name: str
    system: str
    num_question_tokens: int
    num_new_tokens: int

    def bodies(self, begin: int) -> Iterator[dict[str, Any]]:
        """Requests as OpenAI's protocol has them, without a model, from number `begin` on."""
        for number in itertools.count(begin):
            question = W.text(W.prose(_SEED + number, self.num_question_tokens))
            messages = [{"role": "system", "content": self.system}, {"role": "user", "content": question}]
            yield {"messages": messages, "max_tokens": self.num_new_tokens, "temperature": 0.0}


def chat() -> Load:
    return Load("chat", _instructions(1, 1000), 40, 32)


def review(number: int) -> Load:
    """Every number has rules of its own, so that a first request is a first one."""
    return Load("review", _instructions(10 + number, 2000), 120, 32)


def _instructions(seed: int, num_tokens: int) -> str:
    begin = f"You review changes by these rules, edition {seed}. "
    return begin + W.text(W.prose(_SEED - seed, num_tokens - len(W.ids(begin))))
