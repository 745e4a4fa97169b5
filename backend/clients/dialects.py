"""What differs between services, one table each. Whoever finds a difference writes it here and nowhere else.

A dialect is data: which fields a service takes, under which names, and by which mechanism it does what a request
may ask for. What a dialect does not list, the backend refuses at submission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

from forktree.lang.errors import UnsupportedError

Names = Mapping[str, str]
_NO_NAMES: Names = MappingProxyType({})

_COMMON = MappingProxyType({name: name for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")})
_SEED = MappingProxyType({**_COMMON, "seed": "seed"})
_ENGINE = MappingProxyType(
    {
        **_SEED,
        **{
            name: name
            for name in (
                "top_k",
                "min_p",
                "repetition_penalty",
                "min_tokens",
                "ignore_eos",
                "stop_token_ids",
                "logit_bias",
            )
        },
    }
)
"""What engines take besides OpenAI's own parameters, under its own name in `Sampling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one service wants to be spoken to.

    Attributes:
        service: its name in messages.
        base_url: where it is, if it has one place.
        hosts: host names that tell it; `port`: the usual one of a server that one runs oneself.
        key_variables: environment variables that hold its key, in order; `needs_key`: it answers nobody without one.
        sampling: parameters that it takes, from `Sampling`'s name to its own.
        budget: its name of `max_tokens`.
        max_stops: most stop strings; None is no limit.
        schema: how a JSON Schema is asked for: its own strict schemas, an engine's (any schema, enforced), the same in
            the field of JSON mode, JSON without a schema, a forced call of a tool, or not at all.
        native: kinds of specification that it enforces under a field of its own; with `native_under` they are in an
            object of that name.
        has_tools: a call of a tool can be forced.
        continues: it goes on with a turn that the program has begun: what the body says for it, and `continues_mark`
            what the message says. None: it cannot.
        begun_elsewhere: what to say besides of what goes on with a begun turn there, where this does not.
        trims_prefix: it refuses a blank at the end of a begun turn.
        merges_turns: turns of one role in a row must be one.
        completions: it continues plain text.
        logprobs: it returns log-probabilities, with at most `max_top_logprobs` alternatives.
        scoring: how options are scored: by the log-probabilities of a prompt that it echoes, or by the likeliest
            first tokens.
        images: it can see.
        reasoning: fields of a message that hold what the model thought.
        streams_usage: it takes `stream_options`.
        closes: it ends a constrained output within the budget, where it is asked to.
    """

    name: str
    service: str
    base_url: str | None = None
    hosts: tuple[str, ...] = ()
    port: int | None = None
    key_variables: tuple[str, ...] = ()
    needs_key: bool = False
    sampling: Names = field(default_factory=lambda: _SEED)
    budget: str = "max_tokens"
    max_stops: int | None = None
    schema: Literal["strict", "enforced", "json_mode", "object", "tool", "asked"] = "enforced"
    native: Names = field(default_factory=lambda: _NO_NAMES)
    native_under: str | None = None
    has_tools: bool = True
    continues: Mapping[str, Any] | None = None
    begun_elsewhere: str = ""
    continues_mark: Mapping[str, Any] = field(default_factory=lambda: _NO_NAMES)
    trims_prefix: bool = False
    merges_turns: bool = False
    completions: bool = False
    logprobs: bool = True
    max_top_logprobs: int = 20
    scoring: Literal["echo", "first_token"] | None = None
    images: bool = True
    reasoning: tuple[str, ...] = ()
    streams_usage: bool = True
    closes: bool = False


OPENAI = Dialect(
    name="openai",
    service="OpenAI",
    base_url="https://api.openai.com/v1",
    hosts=("api.openai.com",),
    key_variables=("OPENAI_API_KEY",),
    needs_key=True,
    sampling=MappingProxyType({**_SEED, "logit_bias": "logit_bias"}),
    budget="max_completion_tokens",
    max_stops=4,
    schema="strict",
    scoring="first_token",
)

ANTHROPIC = Dialect(
    name="anthropic",
    service="Anthropic",
    base_url="https://api.anthropic.com",
    hosts=("api.anthropic.com",),
    key_variables=("ANTHROPIC_API_KEY",),
    needs_key=True,
    sampling=MappingProxyType({"temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}),
    schema="tool",
    continues=MappingProxyType({}),
    trims_prefix=True,
    merges_turns=True,
    logprobs=False,
    streams_usage=False,
)

GEMINI = Dialect(
    name="gemini",
    service="Gemini",
    base_url="https://generativelanguage.googleapis.com/v1beta/openai",
    hosts=("generativelanguage.googleapis.com",),
    key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    needs_key=True,
    sampling=MappingProxyType({"temperature": "temperature", "top_p": "top_p"}),
    max_stops=5,
    schema="strict",
    logprobs=False,
)

DEEPSEEK = Dialect(
    name="deepseek",
    service="DeepSeek",
    base_url="https://api.deepseek.com/beta",  # turns that the program has begun are continued there alone
    hosts=("api.deepseek.com",),
    key_variables=("DEEPSEEK_API_KEY",),
    needs_key=True,
    sampling=_COMMON,
    max_stops=16,
    schema="object",
    continues=MappingProxyType({}),
    continues_mark=MappingProxyType({"prefix": True}),
    scoring="first_token",
    images=False,
    reasoning=("reasoning_content",),
)

VLLM = Dialect(
    name="vllm",
    service="vLLM",
    port=None,
    key_variables=("VLLM_API_KEY",),
    sampling=_ENGINE,
    native=MappingProxyType({"RegexSpec": "regex", "ChoicesSpec": "choice"}),
    native_under="structured_outputs",
    continues=MappingProxyType({"continue_final_message": True, "add_generation_prompt": False}),
    completions=True,
    scoring="echo",
    reasoning=("reasoning_content", "reasoning"),
)

SGLANG = Dialect(
    name="sglang",
    service="SGLang",
    port=30000,
    key_variables=("SGLANG_API_KEY",),
    sampling=MappingProxyType({**_ENGINE, "stop_regex": "stop_regex"}),
    native=MappingProxyType({"RegexSpec": "regex"}),
    continues=MappingProxyType({"continue_final_message": True}),
    completions=True,
    scoring="echo",
    reasoning=("reasoning_content",),
)

LLAMA_CPP = Dialect(
    name="llama.cpp",
    service="llama.cpp",
    port=8080,
    key_variables=("LLAMA_API_KEY",),
    sampling=MappingProxyType(
        {
            **_SEED,
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repeat_penalty",
            "ignore_eos": "ignore_eos",
        }
    ),
    has_tools=False,  # it takes them only when it was started with --jinja: calls are asked for as JSON
    continues=MappingProxyType({}),
    completions=True,
    scoring="first_token",
    reasoning=("reasoning_content",),
)

LLAMA_CPP_PYTHON = Dialect(
    name="llama-cpp-python",
    service="llama-cpp-python's server",
    sampling=MappingProxyType(
        {
            **_SEED,
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repeat_penalty",
            "logit_bias": "logit_bias",
        }
    ),
    schema="json_mode",
    has_tools=False,  # only some chat formats force them: calls are asked for as JSON
    completions=True,
    scoring="first_token",  # its echo tells log-probabilities of other tokens than it names
    images=False,
    streams_usage=False,
)
"""Another program than llama.cpp's own server: it answers under any model's name, and begins a new turn behind one that
has begun."""

OLLAMA = Dialect(
    name="ollama",
    service="Ollama",
    base_url="http://localhost:11434/v1",
    port=11434,
    sampling=_SEED,
    has_tools=False,  # it takes tools and ignores tool_choice: calls are asked for as JSON
    continues=MappingProxyType({}),
    completions=True,
    logprobs=False,
    reasoning=("reasoning", "reasoning_content"),
)

FORKTREE = Dialect(
    name="forktree",
    service="the forktree server",
    key_variables=("FORKTREE_API_KEY",),
    sampling=_ENGINE,
    native=MappingProxyType({"RegexSpec": "regex", "ChoicesSpec": "choices", "GrammarSpec": "grammar"}),
    begun_elsewhere="; ft.Remote(url) runs such a program on the same server as it is",
    completions=True,  # its chat route begins turns itself; programs that begin one go whole to /v1/programs
    scoring="echo",
    images=False,
    closes=True,
    reasoning=("reasoning_content",),
)

COMPATIBLE = Dialect(
    name="compatible",
    service="the service",
    key_variables=("OPENAI_API_KEY",),
    max_stops=4,
    schema="object",
    completions=True,
    scoring="first_token",
)
"""Any other service that speaks OpenAI's interface: what nearly all of them take."""

DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        each.name: each
        for each in (
            OPENAI,
            ANTHROPIC,
            GEMINI,
            DEEPSEEK,
            VLLM,
            SGLANG,
            LLAMA_CPP,
            LLAMA_CPP_PYTHON,
            OLLAMA,
            FORKTREE,
            COMPATIBLE,
        )
    }
)


def dialect_of(name: str | None, base_url: str | None) -> Dialect:
    """The dialect by its name; without one the dialect that the address tells, OpenAI's where there is none.

    Raises:
        UnsupportedError: no dialect has this name.
    """
    if name is not None:
        if name not in DIALECTS:
            raise UnsupportedError(f"dialect={name!r} is none of {sorted(DIALECTS)}")
        return DIALECTS[name]
    if base_url is None:
        return OPENAI
    parts = urlsplit(base_url)
    for dialect in DIALECTS.values():
        if parts.hostname in dialect.hosts or (dialect.port is not None and parts.port == dialect.port):
            return dialect
    return COMPATIBLE
