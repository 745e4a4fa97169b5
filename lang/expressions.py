"""What a program appends: `gen`, `select`, roles, images, markup.

Every constructor checks its arguments at once, so a mistake points at the line that made it. A constraint
itself is checked by whoever compiles it, when it is made.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from forktree.lang import ir
from forktree.lang.constraints import (
    ChoicesSpec,
    ConstraintSpec,
    GrammarSpec,
    HasSpec,
    RegexSpec,
    SchemaSpec,
    SubstringSpec,
)
from forktree.lang.errors import ConstraintError, LanguageError, ParameterError
from forktree.lang.keywords import keyword_checked, unknown_keyword
from forktree.lang.reasoning import Reasoning, reasoned
from forktree.lang.sampling import Sampling
from forktree.lang.tool_head import definitions_of
from forktree.lang.tools import output_from_parallel_tools, output_from_tools
from forktree.lang.types import Output, output_from_dtype, output_from_schema, output_from_spec
from forktree.lang.verbatim import bound_spec

_NO_SAMPLING = Sampling()
_METHODS: tuple[str, ...] = get_args(ir.SelectMethod)


def gen(
    name: str | None = None,
    *,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    n: int | None = None,
    ignore_eos: bool | None = None,
    logprobs: int | bool | None = None,
    heal: bool = True,
    on_budget: ir.OnBudget = "cut",
    choices_method: ir.SelectMethod | Callable[..., Any] | None = None,
    return_logprob: bool | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    parallel: bool | int = False,
    document: str | None = None,
    reasoning: bool | Reasoning = False,
    **constraint: Any,
) -> ir.Gen | ir.Select:
    """The model continues the text; the value is read as `s[name]`.

    At most one constraint: `regex=`, `choices=`, `schema=`, `grammar=`, `substring_of=`, `tools=`, `dtype=` or
    `constraint=` with a constraint object. With `schema=` or `dtype=` the value is typed, and reading it raises
    IncompleteError when the output was cut before it was legal. What is not given is the run's default, then
    the model's own.

    With `schema=` and `document=` every `Verbatim` in the schema that has no document of its own is a piece of this.

    With `reasoning=True` (or a `Reasoning`) the model thinks first, in the markup of its chat template. The constraint
    is for the answer that follows; that alone is the value and the text. `s.meta(name).reasoning` is what it thought.

    With `tools=` the value is one `ToolCall`; with `parallel=True`, or the most calls as a number, a list of them.

    With `choices_method=` the choices are scored rather than generated: it is `select`, which appends a whole option,
    so that what bounds or shapes a generation has no bearing. `return_logprob` and
    `top_logprobs_num` are SGLang's spelling of `logprobs`; entries always carry their text, whatever
    `return_text_in_logprobs` says.

    Raises:
        LanguageError: an unknown name, or two constraints.
        ConstraintError: the constraint itself is wrong.
        ParameterError: a sampling parameter is out of range.
    """
    source = ir.caller_source()
    _check_name(name, "gen", source)
    if choices_method is not None:
        if temperature or (n or 1) != 1:
            what = f"temperature={temperature}" if temperature else f"n={n}"
            raise LanguageError(f"choices_method takes the one likeliest choice, so drop {what}{ir.at(source)}")
        return _select_in_gen(name, constraint, choices_method, source)
    if on_budget not in get_args(ir.OnBudget):
        raise LanguageError(f'on_budget must be "cut" or "close", not {on_budget!r}{ir.at(source)}')
    if not isinstance(heal, bool):
        raise LanguageError(f"heal must be True or False, not {heal!r}{ir.at(source)}")
    if constraint:
        _check_known(constraint, source)
    if return_logprob and logprobs is None:
        logprobs = top_logprobs_num or 0
    given: dict[str, Any] = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
        "logit_bias": logit_bias,
        "seed": seed,
        "n": n,
        "ignore_eos": ignore_eos,
        "logprobs": logprobs,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if stop_regex is not None:
        _check_pattern(stop_regex, "stop_regex=")
    sampling = _sampling_of(given, name, source) if given else _NO_SAMPLING
    if parallel is not False:
        output: Output | None = _parallel_calls(constraint, parallel, source)
    else:
        output = _output_of(constraint, source) if constraint else None
    if document is not None:
        output = _bound_output(output, document, source)
    output = reasoned(output, reasoning)
    if on_budget == "close" and output is None:
        raise LanguageError(
            f'on_budget="close" ends a constraint in time, and this gen has none: give regex=, schema= or another, '
            f"or drop it{ir.at(source)}"
        )
    return ir.Gen(name, sampling, output, on_budget, heal, source)


def _sampling_of(given: dict[str, Any], name: str | None, source: ir.Source | None) -> Sampling:
    try:
        return Sampling(**given)
    except ValueError as error:
        what = "gen" if name is None else f"gen({name!r})"
        raise ParameterError(f"{what}: {error}{ir.at(source)}") from None


def gen_int(name: str | None = None, *, max_tokens: int = 128, **options: Any) -> ir.Gen | ir.Select:
    """`gen(dtype=int)` with SGLang's default of 128 tokens."""
    return gen(name, max_tokens=max_tokens, dtype=int, **options)


def gen_string(name: str | None = None, *, max_tokens: int = 128, **options: Any) -> ir.Gen | ir.Select:
    """`gen(dtype=str)` with SGLang's default of 128 tokens."""
    return gen(name, max_tokens=max_tokens, dtype=str, **options)


@keyword_checked(LanguageError)
def select(
    name: str | None = None,
    options: Iterable[str] | None = None,
    *,
    method: ir.SelectMethod = "token_length_normalized",
    choices: Iterable[str] | None = None,
    choices_method: ir.SelectMethod | Callable[..., Any] | None = None,
    temperature: float = 0.0,
) -> ir.Select:
    """The likeliest option is appended; `s[name]` is its text, `s.meta(name)` has every option's figures.

    Options may be prefixes of one another. A duplicate is the same option: the first wins, and it counts once in
    the probabilities. An empty option has nothing to score: it is chosen only when there is no other.

    Args:
        method: how to compare options of different length; see `runtime/choices.py`.
        choices, choices_method, temperature: SGLang's spelling; a temperature other than 0 is refused.
    """
    source = ir.caller_source()
    _check_name(name, "select", source)
    if temperature:
        raise LanguageError(f"select takes the likeliest option, so temperature must be 0, not {temperature}")
    given = options if options is not None else choices
    texts = _check_options(given, "select", source)
    return ir.Select(name, texts, _method_name(choices_method or method, source), source)


def system(expr: object = "") -> ir.Sequence:
    """A system turn."""
    return role("system", expr)


def user(expr: object = "") -> ir.Sequence:
    """A user's turn."""
    return role("user", expr)


def assistant(expr: object = "") -> ir.Sequence:
    """The model's turn."""
    return role("assistant", expr)


def tool(expr: object = "") -> ir.Sequence:
    """A turn with a tool's result."""
    return role("tool", expr)


def tools(items: Iterable[Any]) -> ir.Tools:
    """Describes tools to the model: Python functions, or dicts with name, description and parameters.

    It goes before the first turn, and the model's own chat template writes it where it writes tools. A template that
    has no place for them has one line of JSON a tool written into the system turn, or where it takes none into the
    first turn. What the model may call is said where it calls: `gen(tools=…)`.
    """
    return ir.Tools(definitions_of(items), ir.caller_source())


def role(name: str, expr: object = "") -> ir.Sequence:
    """A turn of the role `name`. No expression gives an empty turn."""
    source = ir.caller_source()
    _check_role(name, source)
    return ir.Sequence((ir.RoleBegin(name, source), *ir.nodes_of(expr), ir.RoleEnd(name, source)))


def role_begin(name: str) -> ir.RoleBegin:
    """Opens a turn; `role_end` closes it."""
    source = ir.caller_source()
    _check_role(name, source)
    return ir.RoleBegin(name, source)


def role_end(name: str) -> ir.RoleEnd:
    """Closes the open turn."""
    source = ir.caller_source()
    _check_role(name, source)
    return ir.RoleEnd(name, source)


def markup(text: str) -> ir.Text:
    """Text whose special-token spellings count as special tokens. Anywhere else text is only text."""
    if not isinstance(text, str):
        raise LanguageError(f"markup takes text, not {text!r}{ir.at(ir.caller_source())}")
    return ir.Text(text, markup=True, source=ir.caller_source())


_MEDIA_TYPES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


def image(content: bytes | str | Path) -> ir.Image:
    """An image: its encoded bytes, or the path of its file.

    Raises:
        LanguageError: the bytes are not PNG, JPEG, GIF or WebP.
        OSError: the file cannot be read.
    """
    source = ir.caller_source()
    if isinstance(content, str | Path):
        content = Path(content).read_bytes()
    if not isinstance(content, bytes | bytearray):
        raise LanguageError(f"image() takes encoded bytes or a file's path, not {content!r}{ir.at(source)}")
    content = bytes(content)
    for magic, media_type in _MEDIA_TYPES:
        if content.startswith(magic):
            return ir.Image(content, media_type, source)
    raise LanguageError(f"image() takes PNG, JPEG, GIF or WebP; these bytes begin {content[:8]!r}{ir.at(source)}")


def _check_name(name: object, what: str, source: ir.Source | None) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise LanguageError(f"{what} takes a variable's name as non-empty text, not {name!r}{ir.at(source)}")


def _check_role(name: object, source: ir.Source | None) -> None:
    if not isinstance(name, str | ir.Symbolic) or (isinstance(name, str) and not name):  # a trace refuses a symbol
        raise LanguageError(f"a role is named by text such as 'user', not {name!r}{ir.at(source)}")


def _check_options(options: object, what: str, source: ir.Source | None) -> tuple[str, ...]:
    if isinstance(options, str):
        meant = f"list({_shortened(options)}), if each character is one, or [{_shortened(options)}]"
        raise LanguageError(f"{what} takes a list of options, not one text; write {meant}{ir.at(source)}")
    if not isinstance(options, Iterable):
        raise LanguageError(f"{what} takes a list of options, not {options!r}{ir.at(source)}")
    if isinstance(options, ir.Symbolic):
        raise LanguageError(f"{what} needs options that are known when the program is traced{ir.at(source)}")
    texts = tuple(options)
    if not texts:
        raise LanguageError(f"{what} needs at least one option{ir.at(source)}")
    for text in texts:
        if not isinstance(text, str):
            raise LanguageError(f"{what} takes text options, not {text!r}; write str(option){ir.at(source)}")
    return texts


def _method_name(method: object, source: ir.Source | None) -> ir.SelectMethod:
    name = method if isinstance(method, str) else getattr(method, "__name__", repr(method))
    if name not in _METHODS:
        raise LanguageError(f"{name!r} is not a select method; there are {', '.join(_METHODS)}{ir.at(source)}")
    return name  # type: ignore[return-value]


def _select_in_gen(name: str | None, constraint: dict[str, Any], method: object, source: ir.Source | None) -> ir.Select:
    if set(constraint) != {"choices"}:
        raise LanguageError(f"choices_method goes with choices= alone, not with {sorted(constraint)}{ir.at(source)}")
    options = _check_options(constraint["choices"], "choices=", source)
    return ir.Select(name, options, _method_name(method, source), source)


def _check_known(constraint: dict[str, Any], source: ir.Source | None) -> None:
    for key in constraint:
        if key not in _MAKERS:
            parameters = [*inspect.signature(gen).parameters][1:-1]
            message = unknown_keyword("gen", key, [*_MAKERS, *parameters])
            raise LanguageError(f"{message}{ir.at(source)}")


def _output_of(constraint: dict[str, Any], source: ir.Source | None) -> Output | None:
    given = [key for key, value in constraint.items() if value is not None]
    if len(given) > 1:
        raise LanguageError(f"gen takes one constraint, not {' and '.join(given)}{ir.at(source)}")
    if not given:
        return None
    value = constraint[given[0]]
    if isinstance(value, HasSpec) and not isinstance(value, type):
        return output_from_spec(value.spec)
    if isinstance(value, ir.Symbolic):
        raise LanguageError(f"{given[0]}= must be known when the program is traced{ir.at(source)}")
    return _MAKERS[given[0]](value)


def _parallel_calls(constraint: dict[str, Any], parallel: bool | int, source: ir.Source | None) -> Output:
    is_count = parallel is True or (isinstance(parallel, int) and parallel >= 1)
    if set(constraint) != {"tools"} or not is_count:
        raise LanguageError(
            f"parallel={parallel!r} is True or the most calls, and goes with tools= alone, "
            f"not with {sorted(constraint) or 'nothing'}{ir.at(source)}"
        )
    return output_from_parallel_tools(constraint["tools"], None if parallel is True else parallel)


def _bound_output(output: Output | None, document: object, source: ir.Source | None) -> Output:
    if isinstance(document, ir.Symbolic):
        raise LanguageError(f"document= must be known when the program is traced{ir.at(source)}")
    if output is None or not isinstance(output.spec, SchemaSpec):
        raise LanguageError(f"document= goes with schema=; for one piece alone there is substring_of={ir.at(source)}")
    return replace(output, spec=bound_spec(output.spec, document))


def _check_pattern(pattern: object, what: str = "regex=") -> str:
    if not isinstance(pattern, str):
        raise ConstraintError(f"{what} takes a pattern as text, not {pattern!r}")
    try:
        re.compile(pattern)
    except re.error as error:
        pointer = "" if error.pos is None else f"position {error.pos}"
        raise ConstraintError(f"{what} {pattern!r} is not a pattern: {error.msg}", pointer=pointer) from error
    except (OverflowError, RecursionError) as error:
        raise ConstraintError(f"the pattern {_shortened(pattern)} is too large: {error}") from error
    return pattern


def _shortened(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:79] + "…")


def _output_from_regex(pattern: object) -> Output:
    return Output(RegexSpec(_check_pattern(pattern)))


def _output_from_choices(options: object) -> Output:
    return Output(ChoicesSpec(_check_options(options, "choices=", ir.caller_source())), "choice")


def _output_from_grammar(text: object) -> Output:
    return Output(GrammarSpec(_check_text(text, "grammar=")))


def _output_from_document(text: object) -> Output:
    return Output(SubstringSpec(_check_text(text, "substring_of=")))


def _output_from_object(value: object) -> Output:
    if isinstance(value, ConstraintSpec):
        return output_from_spec(value)
    raise LanguageError(f"constraint= takes a constraint object such as ft.Regex(...), not {value!r}")


def _check_text(text: object, what: str) -> str:
    if not isinstance(text, str):
        raise LanguageError(f"{what} takes text, not {text!r}")
    return text


_MAKERS: Mapping[str, Callable[[Any], Output]] = {
    "regex": _output_from_regex,
    "choices": _output_from_choices,
    "schema": output_from_schema,
    "json_schema": output_from_schema,
    "grammar": _output_from_grammar,
    "substring_of": _output_from_document,
    "tools": output_from_tools,
    "dtype": output_from_dtype,
    "constraint": _output_from_object,
}

__all__ = [
    "assistant",
    "gen",
    "gen_int",
    "gen_string",
    "image",
    "markup",
    "role",
    "role_begin",
    "role_end",
    "select",
    "system",
    "tool",
    "tools",
    "user",
]
