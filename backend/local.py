"""The backend that computes on this machine."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.messages import Emitted, EngineRequest, Event, Failed, Finished
from forktree.backend.local_answers import completion_of, scores_of
from forktree.backend.local_embeddings import (
    Embedding,
    Pooling,
    check_pooling,
    embed_raw,
    embedding_of,
    embedding_request,
)
from forktree.backend.local_forms import AnswerText
from forktree.backend.local_generation import Ask, Generation, plan_asks, submit_all
from forktree.backend.local_model import LocalModel
from forktree.backend.local_pins import owned, pin_ids, pin_ids_on_loop
from forktree.backend.local_raw import RawCompletion, generate_raw, prompt_ids
from forktree.backend.local_requests import Work, engine_request, plan_generation
from forktree.backend.local_scores import ScoreJobs, plan_prompts, score_jobs
from forktree.backend.local_source import FolderSource, ModelSource, Quantize, Report, check_count
from forktree.backend.mailbox import Courier, Mailbox
from forktree.backend.render import Options
from forktree.lang.constraints import ALL_CONSTRAINTS, ConstraintSpec, HasSpec
from forktree.lang.errors import EngineError, ForktreeError
from forktree.lang.keywords import keyword_checked
from forktree.lang.sampling import Sampling
from forktree.runtime.protocol import (
    Branch,
    Capabilities,
    Completion,
    Delta,
    GenerateRequest,
    Pin,
    PlannedPrompt,
    ScoreRequest,
    ScoreResult,
)

if TYPE_CHECKING:
    from forktree.backend.engine.inspect import CachedNode, StepRecord
    from forktree.backend.engine.stats import EngineStats
    from forktree.backend.tokenizer import Tokenizer

T = TypeVar("T")
_log = logging.getLogger(__name__)
Listener = Callable[[Event], None]

_CAPABILITIES = Capabilities(
    tokens=True,
    constraints=ALL_CONSTRAINTS,
    score=True,
    logprobs=True,
)
_NUM_PLANNERS = 4  # threads that render prompts and compile constraints


class Local:
    """A model on this machine, behind an engine that shares every common prefix.

    Nothing is loaded until it is needed: the tokenizer for `tokens` and `tokenize`, the model for the rest.
    One Local serves any number of threads and event loops. It is a context manager; `close` frees the model.

    Args:
        model: an alias ("smollm2-135m"), a folder, a GGUF file or a hub id.
        device: "auto" (today the CPU), "cpu" or "cuda" (docs/gpu.md).
        dtype: of activations: "auto" or "float32"; on a GPU of everything, "bfloat16" (its "auto"), "float16" or
            "float32".
        quantize: precision of the linear layers. "none" keeps float32, "fp16" packs the weights. "auto" keeps the
            4-bit and 8-bit blocks that weights were made of and multiplies them by activations of 16 bits, which
            loses nothing in practice; other weights are fp16. "mixed" is faster and close: most activations have 8
            bits. "int8" and "q4" are less faithful: 8-bit blocks, or those that the weights were made of, times
            activations of 8 bits (docs/performance.md).
        kv_tokens: tokens of the KV pool, 64 at least; None takes a share of the free memory.
        page_size: tokens of a page of the pool, a power of two; None is 16.
        max_running: most sequences computed at a time; None is 64.
        cache_dir: a folder in which computed prompts outlive the process (docs/cache.md).
        cache_bytes: most bytes of that folder; None is 8 GiB.
        host_bytes: most bytes of evicted pages kept in memory beside the pool; None keeps none.
    Raises:
        ValueError, TypeError: an argument is out of range. A model that cannot be had is a ModelError later.
    """

    @keyword_checked(name="Local")
    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2-135m",
        *,
        device: str = "auto",
        dtype: str = "auto",
        quantize: Quantize = "auto",
        kv_tokens: int | None = None,
        page_size: int | None = None,
        max_running: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        host_bytes: int | None = None,
    ) -> None:
        source = FolderSource(
            model=model, device=device, dtype=dtype, quantize=quantize, kv_tokens=kv_tokens, page_size=page_size
        )
        check_count("cache_bytes", cache_bytes)
        check_count("host_bytes", host_bytes)
        if cache_bytes is not None and cache_dir is None:
            raise ValueError(
                f"cache_bytes={cache_bytes} bounds the folder of cache_dir=, and none is given: give it too"
            )
        config = _engine_config(max_running)
        if cache_dir is not None:
            config = replace(config, cache_dir=os.fspath(cache_dir), fingerprint="unknown until the model is loaded")
        self._store(source, replace(config, host_bytes=host_bytes or 0, cache_bytes=cache_bytes or config.cache_bytes))

    @classmethod
    def over(cls, source: ModelSource, config: EngineConfig | None = None) -> Self:
        """A Local over a model that comes from elsewhere than a folder."""
        local = cls.__new__(cls)
        local._store(source, EngineConfig() if config is None else config)
        return local

    def _store(self, source: ModelSource, config: EngineConfig) -> None:
        self._model = LocalModel(source, config)
        self._planners = ThreadPoolExecutor(_NUM_PLANNERS, thread_name_prefix="forktree-plan")
        self._couriers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Courier] = weakref.WeakKeyDictionary()
        self._closer = weakref.finalize(self, _close, self._model, self._planners)  # also at exit
        self._namespace = ""

    def __repr__(self) -> str:
        return f"Local({self._model.name!r})"

    @property
    def name(self) -> str:
        return f"local:{self._model.name}"

    @property
    def identity(self) -> object:
        """See `protocol.Identified`: the model and its precision; not the machine, nor how much memory it may take."""
        return self._model.identity

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    # --- the protocol --------------------------------------------------------------------------------------

    async def stream(self, request: GenerateRequest) -> AsyncIterator[Delta | Completion]:
        """Generate: deltas of the value as they are made, then one Completion."""
        work = await self._off_loop(self._plan, request)
        answer = AnswerText(work.form)
        async with aclosing(self._events(work)) as events:
            async for event in events:
                if text := answer.feed(event.text):
                    yield Delta(text)
                if isinstance(event, Finished):
                    yield completion_of(event, answer, work, self._model.tokenizer())

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Log-probabilities of every option, in one pass over the trie of their tokens behind the branch.

        An empty option has no ids. With `unconditional`, the ids that are scored are also scored behind the
        start of a text alone, in a pass of the same kind.
        """
        plan, jobs = await self._off_loop(self._plan_scores, request)
        asked = [partial(owned, job.request, request.owner) for job in jobs.jobs]
        return scores_of(plan, request, jobs, await self._finish_all(asked))

    async def prefill(self, branch: Branch) -> None:
        """Compute the branch and cache it."""
        ids = await self._off_loop(lambda: self._model.renderer().ids(branch))
        if ids:
            await self._finish_all([lambda listener: EngineRequest(ids=ids, on_event=listener)])

    async def pin_branch(self, branch: Branch) -> Pin:
        """Compute the branch and keep it in the pool. Raises EngineError, ValueError: as `pin`."""
        ids = await self._off_loop(lambda: self._model.renderer().ids(branch))
        return await pin_ids_on_loop(await self._off_loop(self._model.engine), ids, self._namespace)

    def end_run(self, owner: int) -> None:
        """What a run's requests left in the cache is evicted like everything else from here on."""
        self._model.end_run(owner)

    async def expect(self, branches: Sequence[Branch]) -> None:
        """Keep, or bring up from a lower tier, what prompts that come soon begin with. A hint: it raises nothing."""
        try:
            renderer = await self._off_loop(self._model.renderer)
            prompts = await self._off_loop(lambda: [renderer.ids(branch) for branch in branches])
            self._model.expect(self._namespace, prompts)
        except ForktreeError:  # who asks for it is told
            _log.debug("a prompt that is to come cannot be foreseen", exc_info=True)

    async def tokens(self, branch: Branch | None) -> tuple[int, ...]:
        """The ids that the branch renders to."""
        return await self._off_loop(lambda: self._model.renderer().ids(branch))

    async def plan_prompts(self, request: GenerateRequest | ScoreRequest) -> list[PlannedPrompt]:
        """What the request would make the engine compute, without computing it."""
        renderer, tokenizer = await self._off_loop(lambda: (self._model.renderer(), self._model.tokenizer()))
        return await self._off_loop(plan_prompts, request, renderer, tokenizer, self._model.max_tokens)

    async def count_cached(self, prompts: list[tuple[int, ...]]) -> list[int]:
        """How many of each prompt's first tokens are cached now."""
        return await self._off_loop(self._model.count_cached, prompts)

    async def context_limit(self) -> int:
        """The model's context, or what the KV pool holds where that is less; loads the model."""
        engine = await self._off_loop(self._model.engine)
        return engine.max_tokens

    # --- the raw door --------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        markup: bool = False,
        constraint: ConstraintSpec | HasSpec | None = None,
    ) -> list[RawCompletion]:
        """Continue prompts as they are: no template, no healing, the tokenizer's own BOS rule for text.

        Args:
            prompts: texts or lists of token ids, in any mixture; one text alone is a list of one.
            markup: special-token spellings in the texts count as special tokens.
            constraint: what every output must satisfy.
        Returns:
            One completion a prompt, in order; with `sampling.n` that many in a row for each.
        Raises:
            TypeError, ValueError: a prompt is no prompt. BackendError and its kin: as in a program; all
            requests have ended when it is raised.
        """
        self._model.load()
        return generate_raw(self._model, prompts, sampling or Sampling(), markup=markup, constraint=constraint)

    def pin(self, prefix: str | Sequence[int], *, markup: bool = False) -> Pin:
        """Compute what raw prompts begin with, and keep it in the pool until `unpin` or the end of a `with` block.

        It is never evicted, and `flush_cache` leaves it; whole pages are kept. `ft.pin` takes turns of a program.

        Args:
            prefix: a text, or a list of token ids, as in `generate`.
        Raises:
            EngineError: all pins together would take more than three quarters of the pool.
            ValueError, TypeError: it is no prompt, or shorter than a page.
        """
        self._model.load()
        (ids,) = prompt_ids([prefix], self._model.tokenizer(), markup)
        return pin_ids(self._model.engine(), ids, self._namespace)

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        *,
        pooling: Pooling = "last",
        dimensions: int | None = None,
        markup: bool = False,
    ) -> list[Embedding]:
        """Texts as vectors of length 1: the direction of the model's final hidden states.

        The same text gives the same bits, alone and beside others, cached and not.

        Args:
            texts: texts or lists of token ids, as in `generate`.
            pooling: "last" is the last token's state, and takes what is cached of a text; "mean" is the mean over the
                text, whose every token is then computed.
            dimensions: keep so many values, and make them a vector of length 1 again; None keeps all.
            markup: special-token spellings in the texts count as special tokens.
        Returns:
            One `Embedding` a text, in order: `.values`, `.usage`.
        Raises:
            TypeError, ValueError: a text is none, or a number out of range. BackendError and its kin: one does not
            fit, or the model gives out no hidden states.
        """
        self._model.load()
        return embed_raw(self._model, texts, pooling=pooling, dimensions=dimensions, markup=markup)

    async def hidden_size(self) -> int:
        """Values of an embedding; loads the model. Raises UnsupportedError: it makes none."""
        engine = await self._off_loop(self._model.engine)
        return engine.hidden_size

    async def embed_ids(self, prompts: Sequence[tuple[int, ...]], *, pooling: Pooling = "last") -> list[Embedding]:
        """The same of token ids, awaited. For servers. Whoever stops waiting cancels it."""
        check_pooling(pooling)
        ends = await self._finish_all([partial(embedding_request, ids, pooling) for ids in prompts])
        return [embedding_of(end) for end in ends]

    async def open(self, asks: Sequence[Ask]) -> list[Generation]:
        """Have the engine take raw prompts, all or none of them; returns when it did. For servers.

        Whoever stops waiting for a generation closes it.

        Raises:
            AskError: one of them cannot be honoured or can never fit; the cause says why.
            EngineError, ModelError: the model cannot be had.
        """
        works = await self._off_loop(self._plan_asks, asks)
        return submit_all(
            asks, works, self._model.engine(), self._model.tokenizer(), self._courier().send, self._namespace
        )

    def in_namespace(self, name: str) -> Self:
        """The same engine, with cached prompts that only those of the same namespace see. For servers.

        What is made so lives as long as this one, and is not closed.
        """
        view = copy.copy(self)
        view._namespace = name
        return view

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer with its chat template. Raises ModelError: it cannot be had."""
        return self._model.tokenizer()

    def tokenize(self, text: str, *, markup: bool = False) -> list[int]:
        """The ids of a text, without BOS; with `markup`, special-token spellings become special tokens."""
        return self._model.tokenizer().encode(text, markup=markup)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens have none. Raises ValueError: an id is outside the vocabulary."""
        return self._model.tokenizer().decode(ids)

    # --- life ----------------------------------------------------------------------------------------------

    def load(self, report: Report | None = None) -> Self:
        """Load the model now, where the first use would do it; `report` is told about a download's progress.

        Raises ModelError: it cannot be had; the message says what to do.
        """
        self._model.load(report)
        return self

    def stats(self) -> EngineStats:
        """A snapshot of what the engine has done and holds; all zero before the model is loaded."""
        return self._model.stats()

    def timeline(self) -> tuple[StepRecord, ...]:
        """The engine's last steps, at most 1,024, the oldest first."""
        return self._model.timeline()

    def cached_tree(self) -> dict[str, tuple[CachedNode, ...]]:
        """The radix tree of what is cached, by namespace (a program's is "")."""
        return self._model.cached_tree()

    def flush_cache(self) -> int:
        """Forget every cached token that no running request uses; returns how many pages that freed."""
        return self._model.flush()

    def close(self) -> None:
        """Stop, and release the model. Every waiter gets an EngineError; closing twice is harmless."""
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- between loop and engine ---------------------------------------------------------------------------

    def _plan(self, request: GenerateRequest) -> Work:
        self._model.load()
        return plan_generation(
            request, self._model.renderer(), self._model.tokenizer(), context=self._model.engine().max_tokens
        )

    def _plan_asks(self, asks: Sequence[Ask]) -> list[Work]:
        self._model.load()
        return plan_asks(asks, self._model.tokenizer(), self._model.engine().max_tokens)

    def _plan_scores(self, request: ScoreRequest) -> tuple[Options, ScoreJobs]:
        if any(request.options):
            self._model.load()
        plan = self._model.renderer().options(request.branch, request.options)
        return plan, score_jobs(request, plan, self._model.tokenizer(), self._model.max_tokens)

    async def _off_loop(self, compute: Callable[..., T], *args: Any) -> T:
        """Run a part that may take long on a planner's thread."""
        self._model.check_open()
        try:
            job = asyncio.get_running_loop().run_in_executor(self._planners, compute, *args)
        except RuntimeError as error:  # closed in the meantime
            raise EngineError(f"{self!r} was closed") from error
        return await job

    def _courier(self) -> Courier:
        loop = asyncio.get_running_loop()
        courier = self._couriers.get(loop)
        if courier is None:
            courier = self._couriers[loop] = Courier(loop)
        return courier

    async def _events(self, work: Work) -> AsyncGenerator[Emitted | Finished, None]:
        """The events of one generation; leaving early cancels it."""
        engine, mailbox, courier = self._model.engine(), Mailbox(), self._courier()
        request = engine_request(work, partial(courier.send, mailbox, 0))
        id = engine.submit(replace(request, namespace=self._namespace))
        is_live = True
        try:
            while is_live:
                for _, event in await mailbox.take():
                    is_live = isinstance(event, Emitted)
                    if isinstance(event, Failed):
                        raise event.error
                    yield event
        finally:
            if is_live:
                engine.cancel(id)

    async def _finish_all(self, requests: Sequence[Callable[[Listener], EngineRequest]]) -> list[Finished]:
        """Compute requests that generate nothing; the first fault cancels the others and is raised."""
        if not requests:
            return []
        await self._off_loop(self._model.load)
        engine, mailbox, courier = self._model.engine(), Mailbox(), self._courier()
        live: dict[int, int] = {}
        done: dict[int, Finished] = {}
        try:
            for index, request in enumerate(requests):
                asked = request(partial(courier.send, mailbox, index))
                live[index] = engine.submit(replace(asked, namespace=self._namespace))
            while live:
                for index, event in await mailbox.take():
                    if isinstance(event, Emitted):
                        continue
                    del live[index]
                    if isinstance(event, Failed):
                        raise event.error
                    done[index] = event
        finally:
            for id in live.values():
                engine.cancel(id)
        return [done[index] for index in range(len(requests))]


def _engine_config(max_running: int | None) -> EngineConfig:
    check_count("max_running", max_running)
    if max_running is None:
        return EngineConfig()
    return EngineConfig(max_running=max_running, max_step_tokens=max(max_running, EngineConfig().max_step_tokens))


def _close(model: LocalModel, planners: ThreadPoolExecutor) -> None:
    model.close()
    planners.shutdown(wait=False, cancel_futures=True)
