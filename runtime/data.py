"""Data with references in it: what a traced program assigns, returns and formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forktree.lang import ir
from forktree.runtime.values import Value, combine

if TYPE_CHECKING:
    from forktree.runtime.run import Run


def value_of_data(data: Any, run: Run) -> Value:
    """The data with every variable replaced by its value, once all of them are there."""
    references = _variables(data)
    if not references:
        return Value.ready(data)
    values = [run.cursors[node.branch].names[node.name] for node in references]
    all_ready = combine(values)
    result = Value()

    def look() -> None:
        if result.is_set:
            return
        if all_ready.failure is not None:
            result.fail(all_ready.failure)
        else:
            found = dict(zip(map(id, references), values, strict=True))
            assert all_ready.meta is not None
            result.set_lazily(lambda: _substitute(data, found), all_ready.meta)

    all_ready.on_set(look)
    return result


def _variables(data: Any) -> list[ir.Variable]:
    match data:
        case ir.Variable():
            return [data]
        case ir.Sequence(items=items) | (tuple() | list() as items):
            return [node for item in items for node in _variables(item)]
        case dict():
            return [node for item in data.values() for node in _variables(item)]
    return []


def _substitute(data: Any, found: dict[int, Value]) -> Any:
    match data:
        case ir.Variable():
            value = follow(found[id(data)].get(), data.path)
            return show(value, data) if data.conversion or data.format_spec else value
        case ir.Sequence(items=items):
            return "".join(item.text if isinstance(item, ir.Text) else str(_substitute(item, found)) for item in items)
        case tuple():
            return tuple(_substitute(item, found) for item in data)
        case list():
            return [_substitute(item, found) for item in data]
        case dict():
            return {key: _substitute(item, found) for key, item in data.items()}
    return data


def follow(value: Any, path: tuple[ir.Key, ...]) -> Any:
    """Attributes and keys of a value. Raises what Python raises when one is missing."""
    for key in path:
        if isinstance(key, str) and not isinstance(value, dict):
            value = getattr(value, key)
        else:
            value = value[key]
    return value


def show(value: Any, node: ir.Variable | ir.Argument) -> str:
    """The value as the f-string would have written it."""
    if node.conversion == "r":
        value = repr(value)
    return format(value, node.format_spec)
