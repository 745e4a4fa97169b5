"""Intersections of patterns: our lazy terms beside interegular's automata.

    python benchmarks/algebra.py

For each N the intersection of `[a-z]{1,N}` and `.*x.*` is made and asked for one member. interegular enumerates
every state before the first byte; terms hold counts as counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import interegular

from forktree.backend.grammar.automaton import Automaton
from forktree.backend.grammar.regex_syntax import parse_python
from forktree.backend.grammar.regex_terms import whole_match
from forktree.backend.grammar.terms import Terms


def with_terms(one: str, other: str, text: str) -> bool:
    terms = Terms()
    both = terms.both([whole_match(terms, parse_python(pattern)) for pattern in (one, other)])
    automaton = Automaton(terms, both)
    state = automaton.run(automaton.start, text.encode())
    return state is not None and state.nullable


def with_interegular(one: str, other: str, text: str) -> bool:
    first, second = (interegular.parse_pattern(pattern).to_fsm() for pattern in (one, other))
    return bool((first & second).accepts(text))


def best_ms(run: Callable[[], bool], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        assert run()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def main() -> None:
    print("| N | terms, ms | interegular, ms |\n|---|---|---|")
    for n in (20, 200, 2000):
        patterns = (f"[a-z]{{1,{n}}}", ".*x.*")
        ours = best_ms(lambda p=patterns: with_terms(*p, "abxyz"))
        theirs = best_ms(lambda p=patterns: with_interegular(*p, "abxyz"), repeats=3)
        print(f"| {n} | {ours:.2f} | {theirs:.1f} |", flush=True)


if __name__ == "__main__":
    main()
