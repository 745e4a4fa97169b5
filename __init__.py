"""forktree: a structured-generation language and runtime. One tree, from the program to the kernel.

    import forktree as ft

    @ft.function
    def capital(s, country):
        s += ft.user(f"What is the capital of {country}?")
        s += ft.assistant(ft.gen("answer", max_tokens=32))

    print(capital.run("France")["answer"])

Names load when they are first used: importing this package loads neither torch nor transformers nor numpy. With
no `use()`, the first run makes a `Local()`: the built-in model, on this machine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from forktree.lang.errors import (
    AuthenticationError,
    BackendError,
    ConstraintError,
    ContextLengthError,
    EngineError,
    ForktreeError,
    IncompleteError,
    JournalError,
    LanguageError,
    ModelError,
    ParameterError,
    RateLimitError,
    RoleError,
    RunCancelledError,
    ServerError,
    TimeoutError,
    TraceError,
    UndefinedVariableError,
    UnsupportedError,
)
from forktree.lang.expressions import (
    assistant,
    gen,
    gen_int,
    gen_string,
    image,
    markup,
    role,
    role_begin,
    role_end,
    select,
    system,
    tool,
    tools,
    user,
)
from forktree.lang.hoist import hoist_constants
from forktree.lang.independent import fork_independent, independent_generations
from forktree.lang.passes import drop_unread, merge_text, share_trunk
from forktree.lang.ported import (
    MOVED,
    assistant_begin,
    assistant_end,
    greedy_token_selection,
    system_begin,
    system_end,
    token_length_normalized,
    unconditional_likelihood_normalized,
    user_begin,
    user_end,
)
from forktree.lang.reasoning import Reasoning
from forktree.lang.sampling import Sampling
from forktree.lang.tags import Tag
from forktree.lang.tools import Tool, ToolCall
from forktree.lang.verbatim import Verbatim
from forktree.runtime.defaults import get_defaults, use
from forktree.runtime.function import Function, function
from forktree.runtime.journal import Journal
from forktree.runtime.map import Result
from forktree.runtime.pin import pin
from forktree.runtime.plan import Plan, Prices
from forktree.runtime.ported import flush_cache, get_server_info, set_default_backend
from forktree.runtime.programs import Program
from forktree.runtime.protocol import Pin, TokenLogprob
from forktree.runtime.record import Meta, OptionMeta
from forktree.runtime.report import RunReport, explain_run
from forktree.runtime.state import State
from forktree.runtime.trace import SYMBOLIC

if TYPE_CHECKING:
    from forktree.backend.anthropic import Anthropic
    from forktree.backend.endpoint import RuntimeEndpoint
    from forktree.backend.fake import Fake
    from forktree.backend.grammar.constraints import Choices, Grammar, Regex, Schema, Substring, Tags
    from forktree.backend.local import Local
    from forktree.backend.openai import OpenAI
    from forktree.backend.remote import Remote
    from forktree.backend.replay import Replay
    from forktree.runtime.protocol import Backend

__version__ = "0.1.0"

_LAZY = {
    "Anthropic": "forktree.backend.anthropic",
    "Choices": "forktree.backend.grammar.constraints",
    "Fake": "forktree.backend.fake",
    "Grammar": "forktree.backend.grammar.constraints",
    "Local": "forktree.backend.local",
    "OpenAI": "forktree.backend.openai",
    "Regex": "forktree.backend.grammar.constraints",
    "Remote": "forktree.backend.remote",
    "Replay": "forktree.backend.replay",
    "RuntimeEndpoint": "forktree.backend.endpoint",
    "Schema": "forktree.backend.grammar.constraints",
    "Substring": "forktree.backend.grammar.constraints",
    "Tags": "forktree.backend.grammar.constraints",
}

__all__ = [
    "SYMBOLIC",
    "Anthropic",
    "AuthenticationError",
    "BackendError",
    "Choices",
    "ConstraintError",
    "ContextLengthError",
    "EngineError",
    "Fake",
    "ForktreeError",
    "Function",
    "Grammar",
    "IncompleteError",
    "Journal",
    "JournalError",
    "LanguageError",
    "Local",
    "Meta",
    "ModelError",
    "OpenAI",
    "OptionMeta",
    "ParameterError",
    "Pin",
    "Plan",
    "Prices",
    "Program",
    "RateLimitError",
    "Reasoning",
    "Regex",
    "Remote",
    "Replay",
    "Result",
    "RoleError",
    "RunCancelledError",
    "RunReport",
    "RuntimeEndpoint",
    "Sampling",
    "Schema",
    "ServerError",
    "State",
    "Substring",
    "Tag",
    "Tags",
    "TimeoutError",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "TraceError",
    "UndefinedVariableError",
    "UnsupportedError",
    "Verbatim",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "drop_unread",
    "explain_run",
    "flush_cache",
    "fork_independent",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "hoist_constants",
    "image",
    "independent_generations",
    "markup",
    "merge_text",
    "pin",
    "role",
    "role_begin",
    "role_end",
    "select",
    "set_default_backend",
    "share_trunk",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "tools",
    "unconditional_likelihood_normalized",
    "use",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> Any:
    if name in MOVED:
        raise AttributeError(f"forktree has no {name}; use {MOVED[name]}")
    if name not in _LAZY:
        raise AttributeError(f"module 'forktree' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"])


def _make_default_backend() -> Backend:
    from forktree.backend.local import Local

    return Local()


get_defaults().set_factory(_make_default_backend)
