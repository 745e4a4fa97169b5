"""However a program is run, it asks the same and ends the same: random programs, run in every way."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from forktree.backend.fake import Fake
from forktree.lang.errors import ServerError
from forktree.lang.expressions import gen, select, user
from forktree.lang.sampling import Sampling
from forktree.runtime.function import function
from forktree.runtime.programs import Program

NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Ask:
    name: str


@dataclass(frozen=True)
class Fill:
    """Ask with fixed text around, as a form has it."""

    name: str


@dataclass(frozen=True)
class Choose:
    name: str


@dataclass(frozen=True)
class Quote:
    """Append a variable's value, where it is set."""

    name: str


@dataclass(frozen=True)
class Set:
    name: str


@dataclass(frozen=True)
class Branches:
    bodies: tuple
    joins: bool


steps = st.recursive(
    st.builds(Say, st.sampled_from(["x ", "y", " z"]))
    | st.builds(Ask, st.sampled_from(NAMES))
    | st.builds(Fill, st.sampled_from(NAMES))
    | st.builds(Choose, st.sampled_from(NAMES))
    | st.builds(Quote, st.sampled_from(NAMES))
    | st.builds(Set, st.sampled_from(NAMES)),
    lambda inner: st.builds(
        Branches, st.lists(st.lists(inner, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple), st.booleans()
    ),
    max_leaves=12,
)
bodies = st.lists(steps, max_size=6).map(tuple)


def carry_out(s, body: tuple, known: set[str]) -> set[str]:
    """The body on a state on which the names `known` are set; the names that it set."""
    known, own = set(known), set()

    def note(*names: str) -> None:
        known.update(names)
        own.update(names)

    for step in body:
        match step:
            case Say(text):
                s += text
            case Ask(name):
                s += user("?") + gen(name)
                note(name)
            case Fill(name):
                s += "x" + gen(name) + ";"
                note(name)
            case Choose(name):
                s += select(name, ["p", "q"])
                note(name)
            case Quote(name) if name in known:
                s += f"<{s[name]}>"
            case Set(name):
                s[name] = f"set {len(known)}"
                note(name)
            case Branches(inner, joins):
                branches = list(s.fork(len(inner)))
                new: set[str] = set()
                for branch, branch_body in zip(branches, inner, strict=True):
                    new |= carry_out(branch, branch_body, known)
                if joins and not new & known:
                    s.join(*branches)
                    note(*new)
    return own


def answer(request) -> str:
    """Depends on the whole prompt, so that any difference shows."""
    if hasattr(request, "options"):
        return request.options[len(request.prompt) % len(request.options)]
    return f"{request.name}{len(request.prompt)}"


def asked(fake: Fake) -> list[tuple]:
    return sorted((request.name or "", request.prompt, type(request).__name__) for request in fake.requests)


@settings(max_examples=150, deadline=None)
@given(bodies)
def test_body_trace_record_and_json_agree(body) -> None:
    @function
    def program(s):
        carry_out(s, body, set())

    first, second, third, fourth = (Fake(answer) for _ in range(4))
    by_body = program.run(backend=first)
    traced = program.trace()
    by_trace = traced.run(backend=second)
    by_record = by_body.program.run(backend=third)
    by_json = Program.from_json(traced.to_json()).run(backend=fourth)
    for other in (by_trace, by_record, by_json):
        assert other.text() == by_body.text()
        assert other.variables() == by_body.variables()
        assert other.messages() == by_body.messages()
        assert other.tokens() == by_body.tokens()
    assert asked(second) == asked(third) == asked(fourth) == asked(first)


@settings(max_examples=100, deadline=None)
@given(bodies, st.integers(1, 6))
def test_a_failure_anywhere_is_raised_and_nothing_hangs(body, fails_at) -> None:
    made = 0

    def script(request):
        nonlocal made
        made += 1
        if made == fails_at:
            raise ServerError("down")
        return answer(request)

    @function
    def program(s):
        carry_out(s, body, set())

    try:
        program.run(backend=Fake(script))
        assert made < fails_at
    except ServerError:
        assert made >= fails_at


@settings(max_examples=80, deadline=None)
@given(bodies, st.text("xyz ;", min_size=1, max_size=9))
def test_speculation_changes_nothing_but_the_number_of_calls(body, written) -> None:
    """The model writes the same at the same place, however it is asked: `written`, over and over."""

    def write(request):
        if hasattr(request, "options"):
            return answer(request)
        start = len(request.prompt) % len(written)
        return (written * 9)[start : start + 4 * len(written)]

    def run(decorate):
        @decorate
        def program(s):
            carry_out(s, body, set())

        fake = Fake(write, token_ids=False)
        return program.run(backend=fake, sampling=Sampling(stop=(";",))), fake.num_requests

    plain, most = run(function)
    fast, num_requests = run(function(api_speculation=True))
    assert fast.text() == plain.text()
    assert fast.variables() == plain.variables()
    assert fast.messages() == plain.messages()
    # At worst each generation is asked for in vain once, together with those behind it.
    assert num_requests <= most + sum(isinstance(step, Ask | Fill) for step in _every_step(body))


def _every_step(body: tuple):
    for step in body:
        yield step
        if isinstance(step, Branches):
            for inner in step.bodies:
                yield from _every_step(inner)
