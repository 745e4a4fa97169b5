"""From what a program asks for to what the engine computes: prompt, sampling, constraint, stops."""

from __future__ import annotations

import hashlib
import math
import secrets
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from forktree.backend.engine.messages import EngineRequest, Event, SamplerParams, TokenMatcher
from forktree.backend.local_forms import Form, form_of
from forktree.backend.render import Prompt, Renderer
from forktree.backend.stops import RegexAutomaton
from forktree.backend.text import StopWatcher
from forktree.backend.tokenizer import Place, Tokenizer
from forktree.lang.constraints import ConstraintSpec
from forktree.lang.errors import BackendError, ModelError
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import GenerateRequest

_NO_LIMIT = 1 << 30  # the engine stops at the end of the context
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One generation, ready for the engine.

    Attributes:
        prompt: what it continues.
        params, max_tokens, min_tokens, stop_token_ids: of the engine's request.
        form: how the output is written.
        constraint: the constraint object that the whole output must satisfy, or None.
        matcher: its place in this output, behind the healed prefix.
        sink: makes text of the tokens; the engine's thread owns it while the request runs.
        owner: the run that asks, or None.
    """

    prompt: Prompt
    params: SamplerParams
    max_tokens: int
    min_tokens: int
    stop_token_ids: frozenset[int]
    form: Form
    constraint: Any | None
    matcher: TokenMatcher | None
    sink: StopWatcher
    owner: int | None = None


def plan_generation(request: GenerateRequest, renderer: Renderer, tokenizer: Tokenizer, *, context: int) -> Work:
    """Render, heal and compile. `context` is the most tokens of prompt and output together.

    Raises:
        ConstraintError: the constraint or the stop pattern cannot be honoured, or not within `max_tokens` where the
            output is to close in time.
        BackendError: a token id is outside the vocabulary, or the limits contradict each other.
        RoleError, ModelError: as `Renderer`.
    """
    prompt = renderer.prompt(request.branch, heal=request.heal)
    work = plan(prompt, request.sampling, tokenizer, spec=request.constraint, sample_index=request.sample_index)
    if request.on_budget == "close":
        work = closing(work, tokenizer, context - len(prompt.ids))
    return replace(_bounded(work, tokenizer), owner=request.owner)


def plan(
    prompt: Prompt,
    sampling: Sampling,
    tokenizer: Tokenizer,
    *,
    spec: ConstraintSpec | None = None,
    sample_index: int = 0,
) -> Work:
    """The same for a prompt that is rendered already."""
    resolved = sampling.over(model_defaults(tokenizer.generation_config))
    _check(resolved, tokenizer.size)
    form = form_of(spec, prompt, tokenizer)
    constraint, matcher = _compile(form, prompt.prefix, tokenizer)
    max_tokens, min_tokens = resolved.max_tokens or _NO_LIMIT, resolved.min_tokens or 0
    decoder = tokenizer.decoder(place=Place.INSIDE, num_skip_bytes=len(prompt.prefix), shows_special=form.shows_special)
    pattern = None if resolved.stop_regex is None else RegexAutomaton(resolved.stop_regex)
    sink = StopWatcher(decoder, stops=resolved.stop or (), stop_pattern=pattern, min_tokens=min_tokens, behind=form.end)
    return Work(
        prompt=prompt,
        params=sampler_params(resolved, sample_index, prompt.ids),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=_stop_ids(resolved, tokenizer.eos_ids, is_constrained=constraint is not None),
        form=form,
        constraint=constraint,
        matcher=matcher,
        sink=sink,
    )


def closing(work: Work, tokenizer: Tokenizer, room: int) -> Work:
    """The same work with its constraint held to end within `max_tokens`, or the room in the context if that is less.

    Raises:
        ConstraintError: no legal output is that short.
    """
    if work.constraint is None or room < 1:  # nothing to close, or nothing to be generated, as the engine will say
        return work
    from forktree.backend.grammar.budget import within

    matcher = within(work.matcher, tokenizer.vocabulary, min(work.max_tokens, room))
    return replace(work, matcher=matcher)


def _bounded(work: Work, tokenizer: Tokenizer) -> Work:
    """The same work with its reasoning closed in time."""
    form = work.form
    if form.max_reasoning is None:
        return work
    from forktree.backend.grammar.reasoning import bounded_reasoning

    matcher = bounded_reasoning(work.matcher, tokenizer.vocabulary, form.begin, form.end, form.max_reasoning)
    return replace(work, matcher=matcher)


def engine_request(work: Work, on_event: Callable[[Event], None]) -> EngineRequest:
    """What the engine is given."""
    return EngineRequest(
        ids=work.prompt.ids,
        max_tokens=work.max_tokens,
        min_tokens=work.min_tokens,
        params=work.params,
        stop_token_ids=work.stop_token_ids,
        matcher=work.matcher,
        sink=work.sink,
        owner=work.owner,
        on_event=on_event,
    )


def model_defaults(config: dict[str, Any]) -> Sampling:
    """The model's own sampling, from its generation config: greedy unless that says `do_sample`.

    Raises ModelError: the config holds a value out of range.
    """
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: config[name] for name in names if config.get(name) is not None}
    temperature = config.get("temperature") if config.get("do_sample") else 0.0
    try:
        return Sampling(temperature=1.0 if temperature is None else temperature, **given)
    except ValueError as error:
        raise ModelError(f"the model's generation_config.json is not usable: {error}") from error


def sampler_params(sampling: Sampling, sample_index: int = 0, prompt: tuple[int, ...] = ()) -> SamplerParams:
    """The engine's parameters, every one filled in. Samples and prompts of one seed get seeds of their own."""
    return SamplerParams(
        temperature=sampling.temperature or 0.0,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        top_k=max(sampling.top_k or 0, 0),
        min_p=sampling.min_p or 0.0,
        frequency_penalty=sampling.frequency_penalty or 0.0,
        presence_penalty=sampling.presence_penalty or 0.0,
        repetition_penalty=1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty,
        logit_bias=sampling.logit_bias or (),
        seed=_seed_of(sampling.seed, sample_index, prompt),
        num_logprobs=sampling.logprobs,
    )


def _seed_of(seed: int | None, sample_index: int, prompt: tuple[int, ...]) -> int:
    """Without the prompt in it, rows of a batch would draw alike: each with the same luck at the same position."""
    if seed is None:
        return secrets.randbits(63)
    if prompt:
        digest = hashlib.blake2b(array("q", prompt).tobytes(), digest_size=8, salt=b"prompt").digest()
        seed ^= int.from_bytes(digest, "big") >> 1
    return seed if sample_index == 0 else _mix64(_mix64(seed) + sample_index)


def _mix64(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): neighbours become unrelated."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _stop_ids(sampling: Sampling, eos_ids: frozenset[int], *, is_constrained: bool) -> frozenset[int]:
    """A constrained output ends by an end token even where those are ignored: nothing else can end it."""
    own = frozenset(sampling.stop_token_ids or ())
    return own if sampling.ignore_eos and not is_constrained else own | eos_ids


def _compile(form: Form, prefix: bytes, tokenizer: Tokenizer) -> tuple[Any | None, TokenMatcher | None]:
    """The constraint, and a matcher that demands the prefix before it."""
    if form.spec is None and not prefix:
        return None, None
    from forktree.backend.grammar.constraints import constraint_from_spec
    from forktree.backend.grammar.healing import healed

    constraint = None if form.spec is None else constraint_from_spec(form.spec)
    matcher = None if constraint is None else constraint.compile(tokenizer.vocabulary)
    return constraint, healed(prefix, matcher, tokenizer.vocabulary) if prefix else matcher


def _check(sampling: Sampling, size: int) -> None:
    _check_ids("stop_token_ids", sampling.stop_token_ids or (), size)
    _check_ids("logit_bias", (token for token, _ in sampling.logit_bias or ()), size)
    least, most = sampling.min_tokens or 0, sampling.max_tokens or math.inf
    if least > most:
        raise BackendError(f"min_tokens ({least}) is more than max_tokens ({most})")


def _check_ids(name: str, ids: Iterable[int], size: int) -> None:
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < size:
            raise BackendError(f"{name} has {id!r}, but this model's token ids are 0 to {size - 1}")
