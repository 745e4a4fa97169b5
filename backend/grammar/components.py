"""Strongly connected components of a graph (Tarjan 1972), without recursion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def components(graph: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The components, each after those that it leads to. Edges to unknown nodes are an error of ours."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in graph:
        if root in order:
            continue
        work: list[tuple[str, Iterator[str]]] = []
        _enter(root, order, low, stack, on_stack, work, graph)
        while work:
            node, edges = work[-1]
            following = next(edges, None)
            if following is None:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == order[node]:
                    found.append(_popped(node, stack, on_stack))
            elif following not in order:
                _enter(following, order, low, stack, on_stack, work, graph)
            elif following in on_stack:
                low[node] = min(low[node], order[following])
    return found


def _enter(
    node: str,
    order: dict[str, int],
    low: dict[str, int],
    stack: list[str],
    on_stack: set[str],
    work: list[tuple[str, Iterator[str]]],
    graph: Mapping[str, Sequence[str]],
) -> None:
    order[node] = low[node] = len(order)
    stack.append(node)
    on_stack.add(node)
    work.append((node, iter(graph[node])))


def _popped(node: str, stack: list[str], on_stack: set[str]) -> list[str]:
    group = []
    while True:
        one = stack.pop()
        on_stack.discard(one)
        group.append(one)
        if one == node:
            return group
