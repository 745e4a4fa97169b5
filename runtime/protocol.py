"""The seam between `runtime` and every backend: branches go down, deltas come back.

Everything here is plain data or a Protocol, so that a backend may live in another process. A branch is an
immutable chain of segments; forking copies a reference, so it costs the same for a trunk of any length.

    segment       written by        means
    ─────────────────────────────────────────────────────────────────────────────────────────
    Text          the program       text; with `markup`, special-token spellings count as tokens
    RoleBegin/End the program       a turn opens or closes; the backend writes what its template says
    Generated     a backend         what the model made, as the ids it made, for ever
    ForkMark      the program       closes the run of text, so that branches share the trunk's tokens
    Image         the program       an image, for backends that can see
    Tools         the program       tools that the backend describes as its template does, before the first turn

State is tokens: a backend renders a chain to ids, memoised per segment, and never tokenises again what a
model generated. Adjacent text is tokenised as one run, closed by a generation, a special token or a fork.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from forktree.lang.constraints import ConstraintSpec
from forktree.lang.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Text:
    """Text that the program appended. `markup`: special-token spellings in it are special tokens."""

    text: str
    markup: bool = False


@dataclass(frozen=True, slots=True)
class RoleBegin:
    """A turn of `role` ("system", "user", "assistant", "tool" …) opens."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd:
    """The open turn of `role` closes."""

    role: str


@dataclass(frozen=True, slots=True)
class Generated:
    """What a model made.

    Attributes:
        text: the value: what the model wrote, without healed bytes, stop string or end token.
        ids: the ids it made, kept for ever; empty on a backend without token ids.
        num_withdrawn: how many tokens of the text before were withdrawn to heal the boundary; `ids` begins
            with their bytes again.
    """

    text: str
    ids: tuple[int, ...] = ()
    num_withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class ForkMark:
    """Branches begin here: text after it never changes the tokens before it."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its encoded bytes and media type."""

    data: bytes
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools that the model may call: JSON text, an array of `{"type": "function", "function": {…}}`."""

    definitions: str


Segment = Text | RoleBegin | RoleEnd | Generated | ForkMark | Image | Tools


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Branch:
    """One immutable chain of segments, newest last. `None` is the empty branch.

    Identity, not equality, tells branches apart: backends memoise what they rendered per node, weakly.
    """

    parent: Branch | None
    segment: Segment

    def segments(self) -> list[Segment]:
        """Every segment from the root on."""
        return [node.segment for node in self.path()]

    def text(self) -> str:
        """The program's own text and the values, joined; what a template writes around turns is not in it."""
        parts = [node.segment.text for node in self.path() if isinstance(node.segment, Text | Generated)]
        return "".join(parts)

    def path(self) -> list[Branch]:
        """Every node from the root to this one."""
        nodes = list(_towards_root(self))
        nodes.reverse()
        return nodes


def _towards_root(branch: Branch | None) -> Iterator[Branch]:
    while branch is not None:
        yield branch
        branch = branch.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Continue one branch.

    Attributes:
        branch: what to continue; None is an empty prompt.
        sampling: resolved by the runtime as far as the program says; what is None here is the model's own.
        constraint: the whole output satisfies it, or is marked as cut.
        on_budget: "cut" marks an output that `max_tokens` cut; "close" steers to a legal end in time.
        heal: withdraw the last token of the text before and generate its bytes again.
        sample_index: which of `n` samples this is; it keeps the samples of one seed apart.
        name: the variable that the output fills, for scripts, records and logs.
        owner: the run that asks, by a number of its own in this process (`Hinted`). A hint, and no part of the request.
    """

    branch: Branch | None
    sampling: Sampling = field(default_factory=Sampling)
    constraint: ConstraintSpec | None = None
    on_budget: Literal["cut", "close"] = "cut"
    heal: bool = True
    sample_index: int = 0
    name: str | None = None
    owner: int | None = field(default=None, compare=False, repr=False)

    @property
    def prompt(self) -> str:
        """The branch as plain text, for scripts, records and logs."""
        return "" if self.branch is None else self.branch.text()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token, its log-probability (natural log), and the likeliest alternatives if asked for.

    An id of -1 is one that the backend does not know; `top_texts` are then the texts of the alternatives.
    """

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    top_texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens of one request; `cached_tokens` are those of the prompt that were not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of the value, never half a character, never text that a stop string may still take back."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The end of a generation; the last message of the stream, exactly once.

    Attributes:
        segment: what to append to the branch; `segment.text` equals the joined deltas.
        finish_reason: "stop" (end token, stop string, or the constraint's end) or "length" (cut).
        is_complete: the constraint, if any, is satisfied by the whole text.
        stop: the stop string or token id that ended it.
        value: the value as JSON text, where the text is a model's own markup (calls of tools).
        reasoning: what the model thought before its answer, which is not part of `segment.text`.
        logprobs: one entry a generated token, if asked for.
    """

    segment: Generated
    finish_reason: Literal["stop", "length"]
    is_complete: bool = True
    stop: str | int | None = None
    value: str | None = None
    reasoning: str = ""
    usage: Usage = Usage()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Score every option as the continuation of one branch.

    `unconditional` asks also for each option's log-probabilities without the branch (after BOS, or after the
    end-of-text token where the model has no BOS). `name` is the variable that the choice fills, and `owner` the run
    that asks, as in `GenerateRequest`.
    """

    branch: Branch | None
    options: tuple[str, ...]
    unconditional: bool = False
    name: str | None = None
    owner: int | None = field(default=None, compare=False, repr=False)

    @property
    def prompt(self) -> str:
        """The branch as plain text, for scripts, records and logs."""
        return "" if self.branch is None else self.branch.text()


@dataclass(frozen=True, slots=True)
class OptionScore:
    """One option: the ids that were scored, from the first that differs from the prompt's own, and their
    log-probabilities (natural log). An empty option has no ids."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional_logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Scores in the order of the options."""

    options: tuple[OptionScore, ...]
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """One prompt that a request makes a backend compute, told before it does.

    Attributes:
        ids: its tokens.
        num_cacheable: how many of the first may come from a cache; the others are computed whatever it holds.
        num_scratch: tokens that are computed behind them and not kept: those of the options of a select.
        num_behind: most tokens of one option behind them.
    """

    ids: tuple[int, ...]
    num_cacheable: int
    num_scratch: int = 0
    num_behind: int = 0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. What it cannot is an error at submission, never a silently weaker result.

    Attributes:
        tokens: its generations carry ids.
        constraints: the kinds of specification that it enforces, by class name; empty is none.
        score: it scores options.
        images: it can see.
        logprobs: it returns log-probabilities.
    """

    tokens: bool = False
    constraints: frozenset[str] = frozenset()
    score: bool = False
    images: bool = False
    logprobs: bool = False


class Backend(Protocol):
    """Three verbs over a branch. Every method is called on the executor's event loop.

    Errors are `BackendError`s, `ConstraintError`s or `EngineError`s, raised from the call or the iteration.
    Cancelling the task that iterates (or `aclose()` of the stream) cancels the work.

    A backend may offer further verbs; who asks looks whether they are there (`Planner`, `AtHand`,
    `Scripted`, `Hinted`, `Pinning`).
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def stream(self, request: GenerateRequest) -> AsyncIterator[Delta | Completion]:
        """Generate: deltas of the value as they are made, then one Completion."""
        ...

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of every option."""
        ...

    async def prefill(self, branch: Branch) -> None:
        """Compute the branch, so that what continues it finds it cached; a hint that may do nothing."""
        ...

    async def tokens(self, branch: Branch | None) -> tuple[int, ...]:
        """The ids that the branch renders to. Raises UnsupportedError on a backend without ids."""
        ...

    def close(self) -> None:
        """Release what the backend holds; every waiter gets an error. Closing twice is harmless."""
        ...


AnswerAtHand = Callable[[GenerateRequest], Sequence[Delta | Completion] | None]


class AtHand(Protocol):
    """What a backend may offer besides, where some answers need no waiting (a script's, a record's, a cache's).

    Such an answer is taken in the thread that asks, without a turn of the loop.
    """

    @property
    def answer_at_hand(self) -> AnswerAtHand | None:
        """From a request to all that `stream` would give, or to None where `stream` has to be asked.

        Called from any thread; never waits. No function at all where nothing is at hand now.
        """
        ...


class Scripted(Protocol):
    """What a backend may offer besides, where users write its answers: their own exceptions come out as themselves."""

    def is_users_own(self, error: BaseException) -> bool:
        """Did the user put this very exception among the answers?"""
        ...


class Identified(Protocol):
    """What a backend may offer besides, so that a journal tells the answers of two backends apart.

    A backend that does not is told by its class and `name`.
    """

    @property
    def identity(self) -> object:
        """Plain data: all that decides its answers (model, precision, endpoint), and never a key. Nothing is loaded."""
        ...


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run that has ended elsewhere: its value, variables and trunk as a journal stores them, and what it took."""

    value: str
    variables: str
    branch: str
    usage: Usage = Usage()


class WholePrograms(Protocol):
    """What a backend may offer besides, where whole programs run beside an engine of its own."""

    async def run_program(self, program: str, arguments: str, sampling: Sampling | None) -> StoredRun | None:
        """Run a program to its end; None where the other side takes no programs, so that it is asked step by step.

        Args:
            program: as `Program.to_json` writes it.
            arguments: by name, as a journal stores a dict.
            sampling: the run's defaults.
        """
        ...


class Priced(Protocol):
    """What a backend may offer besides, where its answers cost money: reports and plans count with it."""

    @property
    def prices(self) -> Mapping[str, float] | None:
        """Of a million tokens: "input", "output" and, where it differs, "cached_input"; None is not known."""
        ...


class Hinted(Protocol):
    """What a backend with a cache may offer besides. Hints change what is computed again, never an answer.

    What requests of a run (`owner`) left in the cache is worth keeping until that run ends: it will be continued.
    """

    def end_run(self, owner: int) -> None:
        """A run is over. Called from any thread, for every run, whatever it asked; never waits."""
        ...

    async def expect(self, branches: Sequence[Branch]) -> None:
        """Prompts that begin so will be asked for soon, in this order. Raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that stays in a backend's cache until `unpin`, or the end of a `with` block; dropping it unpins nothing.

    Attributes:
        num_tokens: that are kept.
        unpin: lets them go; calling it twice is harmless.
    """

    num_tokens: int
    unpin: Callable[[], None]

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.unpin()


class Pinning(Protocol):
    """What a backend may offer besides, where its cache is its own."""

    async def pin_branch(self, branch: Branch) -> Pin:
        """Compute a branch and keep it cached, whatever else is asked for. Raises EngineError: there is no room."""
        ...


class Planner(Protocol):
    """What a backend may offer besides, each for itself, so that a plan is exact. Nothing is computed or changed."""

    async def plan_prompts(self, request: GenerateRequest | ScoreRequest) -> list[PlannedPrompt]:
        """What the request would make it compute: one prompt, or for a select one or more."""
        ...

    async def count_cached(self, prompts: list[tuple[int, ...]]) -> list[int]:
        """How many of each prompt's first tokens are in its cache now."""
        ...

    async def context_limit(self) -> int:
        """Most tokens of a prompt and what it generates; a prompt alone may be as long."""
        ...
