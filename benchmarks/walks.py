"""Schemas walked token by token: is each token of an accepted text legal, and is what a walk writes valid?

    python -m forktree.benchmarks.walks --schemas FILE.jsonl [FILE.jsonl …] [--faults FILE.jsonl]

For every row of a file (`grammar_rows.py`) and a tokenizer:

    verdict    every valid instance is accepted in one of its forms, no invalid one is
    spelled    each token of an accepted text is in the mask where it stands, for the tokenizer's own tokens and for
               random ones that spell the same bytes, and the output may end behind them
    written    a random walk over the masks never stands without a token, `advance` takes what the mask has and
               refuses what it lacks, and where the walk ends the text is accepted, parses, and satisfies the schema

jsonschema is the judge of what is written: with exact decimals, and patterns searched by Python's `re`, whose `.` and
`$` differ from ECMA's at line ends, so that what it says of texts with line ends does not count.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
from jsonschema.validators import extend, validator_for

from forktree.backend.grammar.constraints import Constraint, Schema
from forktree.backend.grammar.matcher import Matcher
from forktree.backend.vocabulary import Vocabulary
from forktree.benchmarks.grammar_rows import Row, load_rows
from forktree.lang.errors import ConstraintError

MAX_FREE_TOKENS = 24
MAX_ENDING_TOKENS = 4000
NUM_PROBES = 3
LINE_ENDS = re.compile("[\n\r\u2028\u2029]")  # where Python's `.` and `$` mean something else than ECMA's

Order = Literal["schema", "any"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One claim that does not hold. `kind` is a claim of this module's docstring, `detail` what was seen."""

    row: str
    order: str
    kind: str
    detail: str
    text: str = ""


class Spelling:
    """A vocabulary, and the ways to write a text in it."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self.vocabulary = vocabulary
        self.own = encode
        self._ids: dict[bytes, int] = {data: token for token, data in enumerate(vocabulary.token_bytes) if data}
        self._longest = max(map(len, self._ids))

    def random(self, text: str, rng: random.Random) -> list[int] | None:
        """Random tokens that spell the text; None where the choice led to bytes that no token spells."""
        data, at, out = text.encode("utf-8"), 0, []
        while at < len(data):
            sizes = [n for n in range(1, min(self._longest, len(data) - at) + 1) if data[at : at + n] in self._ids]
            if not sizes:
                return None
            size = rng.choice(sizes)
            out.append(self._ids[data[at : at + size]])
            at += size
        return out


def check_row(
    row: Row, spelling: Spelling, order: Order, *, num_splits: int, num_walks: int, seed: int = 0
) -> list[Fault]:
    """All claims for one schema.

    Raises:
        ConstraintError: the schema is refused.
    """
    constraint = Schema(row.schema, order=order)
    rng = random.Random(f"{row.name} {seed}")
    faults = list(_check_verdicts(constraint, row, order))
    for forms in row.valid:
        for text in [text for text in forms if constraint.accepts(text)][:1]:
            faults += (
                Fault(row.name, order, "spelled", what, text)
                for what in _spell(constraint, text, spelling, num_splits, rng)
            )
    validator = oracle(row.schema)
    for _ in range(num_walks):
        faults += (
            Fault(row.name, order, "written", what, text) for what, text in _write(constraint, spelling, validator, rng)
        )
    return faults


def _check_verdicts(constraint: Constraint, row: Row, order: Order) -> Iterator[Fault]:
    for forms in row.valid:
        if not any(map(constraint.accepts, forms)):
            yield Fault(row.name, order, "verdict", "a valid instance is rejected", forms[-1])
    for forms in row.invalid:
        for text in [text for text in forms if constraint.accepts(text)][:1]:
            yield Fault(row.name, order, "verdict", "an invalid instance is accepted", text)


def _spell(constraint: Constraint, text: str, spelling: Spelling, num_splits: int, rng: random.Random) -> Iterator[str]:
    """What is wrong with the masks along a text that is accepted."""
    ways = [spelling.own(text), *(spelling.random(text, rng) for _ in range(num_splits))]
    for tokens in ways:
        if tokens is not None and (wrong := misstep(constraint.compile(spelling.vocabulary), tokens)):
            yield wrong


def misstep(matcher: Matcher, tokens: list[int]) -> str | None:
    """The first token that is not legal where it stands; None where all are and the output may end behind them."""
    for at, token in enumerate(tokens):
        if not matcher.mask()[token // 32] >> (token % 32) & 1:
            return f"token {token}, number {at}, is not in the mask"
        matcher.advance(token)
    return None if matcher.is_complete() else "the output may not end behind its last token"


def _write(constraint: Constraint, spelling: Spelling, validator: Any, rng: random.Random) -> Iterator[tuple[str, str]]:
    """One random walk: what is wrong with it, and the text so far."""
    vocabulary = spelling.vocabulary
    matcher = constraint.compile(vocabulary)
    data = b""
    for _ in range(rng.randrange(MAX_FREE_TOKENS)):
        legal, illegal = _sides(matcher)
        if not len(legal):
            yield "no token is legal", data.decode("utf-8", "replace")
            return
        if wrong := _disagreement(matcher, rng.choices(legal, k=NUM_PROBES), rng.choices(illegal, k=NUM_PROBES)):
            yield wrong, data.decode("utf-8", "replace")
        texts = [token for token in rng.choices(legal, k=8) if token not in vocabulary.eos_ids]
        if not texts:
            break
        matcher.advance(texts[0])
        data += vocabulary.token_bytes[texts[0]] or b""
    for token in _ending(matcher):
        if not matcher.mask()[token // 32] >> (token % 32) & 1:
            yield f"token {token} of the ending is not in the mask", data.decode("utf-8", "replace")
            return
        matcher.advance(token)
        data += vocabulary.token_bytes[token] or b""
    if matcher.is_complete():
        yield from ((wrong, data.decode("utf-8", "replace")) for wrong in _judge(constraint, data, validator))


def _sides(matcher: Matcher) -> tuple[list[int], list[int]]:
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[: matcher.masks.trie.vocabulary.size]
    return np.flatnonzero(bits).tolist(), np.flatnonzero(bits == 0).tolist()


def _disagreement(matcher: Matcher, legal: list[int], illegal: list[int]) -> str | None:
    for token in legal:
        matcher.copy().advance(token)
    for token in illegal:
        try:
            matcher.copy().advance(token)
        except ConstraintError:
            continue
        return f"token {token} is not in the mask, and advance takes it"
    return None


def _ending(matcher: Matcher) -> list[int]:
    """Tokens of a short way to end from here; [] where none is known to be short."""
    plan, tokens = matcher.completion(), []
    while plan is not None and plan.token >= 0 and len(tokens) < MAX_ENDING_TOKENS:
        tokens.append(plan.token)
        plan = plan.after
    return tokens


def _judge(constraint: Constraint, data: bytes, validator: Any) -> Iterator[str]:
    try:
        text = data.decode("utf-8")
        value = loads(text)
    except ValueError as error:
        yield f"the output does not parse: {error}"
        return
    if not constraint.accepts(text):
        yield "the walk ended, and `accepts` says no"
    try:
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except (re.error, RecursionError, jsonschema.exceptions._WrappedReferencingError):
        return  # the judge cannot follow
    if error is not None and not LINE_ENDS.search(_strings(value)):
        yield f"not valid: {error.message[:200]} (at {'/'.join(map(str, error.absolute_schema_path))})"


def _strings(value: Any) -> str:
    """All keys and texts of a value, joined."""
    match value:
        case str():
            return value
        case list():
            return " ".join(map(_strings, value))
        case dict():
            return " ".join(part for key, item in value.items() for part in (key, _strings(item)))
    return ""


def loads(text: str) -> Any:
    """Strict JSON with exact numbers.

    Raises:
        ValueError: it is no JSON, or a key comes twice, or a number is none of JSON's.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError(f"a key comes twice: {[name for name, _ in pairs]}")
        return dict(pairs)

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=Decimal)


def _search(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    del schema
    if validator.is_type(instance, "string") and not any(re.search(pattern, instance, flag) for flag in (re.ASCII, 0)):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def oracle(schema: Any) -> Any:
    """jsonschema's validator of the schema's own draft, with exact numbers and searched patterns."""
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    return extend(kind, {"pattern": _search})(json.loads(json.dumps(schema), parse_float=Decimal))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=Path, nargs="+", required=True, help="JSON Lines of schemas")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer: a name, a folder or a hub id")
    parser.add_argument("--orders", default="schema,any", help="key orders (default: schema,any)")
    parser.add_argument("--splits", type=int, default=2, help="random tokenisations of each text (default: 2)")
    parser.add_argument("--walks", type=int, default=3, help="random walks of each schema (default: 3)")
    parser.add_argument("--limit", type=int, help="the first so many rows of each file")
    parser.add_argument("--faults", type=Path, help="write each fault to this file, as JSON Lines")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)  # of patterns that the judge compiles
    rows = [row for path in options.schemas for row in load_rows(path, options.limit)]
    counts = run(rows, load_spelling(options.model), options)
    print(", ".join(f"{number} {what}" for what, number in sorted(counts.items())))
    sys.exit(1 if counts["faults"] else 0)


def run(rows: list[Row], spelling: Spelling, options: argparse.Namespace) -> Counter[str]:
    """Check all rows; print each fault as it is found."""
    counts: Counter[str] = Counter()
    found = options.faults.open("w", encoding="utf-8") if options.faults else None
    for row in rows:
        for order in options.orders.split(","):
            try:
                faults = check_row(row, spelling, order, num_splits=options.splits, num_walks=options.walks)
            except ConstraintError as error:
                faults = []
                counts["refused"] += 1
                del error
            else:
                counts["compiled"] += 1
                counts["texts"] += len(row.valid)
                counts["walks"] += options.walks
            counts["faults"] += len(faults)
            for fault in faults:
                print(f"{fault.row} ({fault.order}) {fault.kind}: {fault.detail}: {fault.text[:120]!r}", flush=True)
                if found is not None:
                    found.write(json.dumps(asdict(fault)) + "\n")
                    found.flush()
    if found is not None:
        found.close()
    return counts


def load_spelling(model: str) -> Spelling:
    """The tokenizer of a model, or of a folder that holds a tokenizer alone."""
    from transformers import AutoTokenizer

    from forktree.backend.model.store import resolve_model
    from forktree.backend.tokenizer import Place, Tokenizer

    folder = Path(model) if Path(model).is_dir() else resolve_model(model)
    tokenizer = Tokenizer(AutoTokenizer.from_pretrained(folder))
    return Spelling(tokenizer.vocabulary, lambda text: tokenizer.encode(text, place=Place.INSIDE))


if __name__ == "__main__":
    main()
