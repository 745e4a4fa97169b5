"""SGLang's spellings of what the language already says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from forktree.lang import ir
from forktree.lang.expressions import role_begin, role_end

token_length_normalized: ir.SelectMethod = "token_length_normalized"
greedy_token_selection: ir.SelectMethod = "greedy_token_selection"
unconditional_likelihood_normalized: ir.SelectMethod = "unconditional_likelihood_normalized"


def system_begin() -> ir.RoleBegin:
    """Opens a system turn."""
    return role_begin("system")


def system_end() -> ir.RoleEnd:
    """Closes the system turn."""
    return role_end("system")


def user_begin() -> ir.RoleBegin:
    """Opens a user's turn."""
    return role_begin("user")


def user_end() -> ir.RoleEnd:
    """Closes the user's turn."""
    return role_end("user")


def assistant_begin() -> ir.RoleBegin:
    """Opens the model's turn."""
    return role_begin("assistant")


def assistant_end() -> ir.RoleEnd:
    """Closes the model's turn."""
    return role_end("assistant")


MOVED: Mapping[str, str] = MappingProxyType(
    {
        "video": "image() takes single frames",
        "separate_reasoning": "gen(reasoning=True), whose meta holds what the model thought",
        "Engine": "Local(), the engine in this process",
        "Runtime": "Local(), the engine in this process",
        "LiteLLM": "OpenAI(model, base_url=...)",
        "VertexAI": "OpenAI(model, base_url=...)",
        "Crusoe": "OpenAI(model, base_url=...)",
        "global_config": "function.using(...) and use(...)",
        "ServerArgs": "Local(...), whose parameters are the engine's",
        "BaseBackend": "forktree.runtime.protocol.Backend",
    }
)
"""Names of SGLang's that have no place here, and what to write instead."""
