"""The parts of a local backend, loaded when first needed and released at the end."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

from forktree.backend.engine.ahead import config_for
from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.inspect import CachedNode, StepRecord
from forktree.backend.engine.loop import Engine
from forktree.backend.engine.stats import EngineStats
from forktree.backend.local_source import ModelSource, Report
from forktree.backend.render import Renderer
from forktree.backend.tokenizer import Tokenizer
from forktree.lang.errors import EngineError

_UNBOUNDED = 1 << 30


class LocalModel:
    """Tokenizer, renderer and engine of one model. Every method may be called from any thread.

    Every method raises EngineError after `close`, and ModelError where the model cannot be had (a later call
    tries again).
    """

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        self._source = source
        self._config = config
        self._loading = threading.Lock()  # one thread loads, the others wait
        self._text: tuple[Tokenizer, Renderer] | None = None
        self._engine: Engine | None = None
        self._is_closed = False
        self._process: int | None = None  # where it is loaded

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def identity(self) -> object:
        """What of the model decides its answers; its name, for a source that says no more."""
        return getattr(self._source, "identity", self._source.name)

    @property
    def _is_forked(self) -> bool:
        """This is a forked process: threads did not come along, and locks may be held for ever."""
        return self._process not in (None, os.getpid())

    def check_open(self) -> None:
        if self._is_forked:
            raise EngineError(
                f"the local backend for {self.name!r} was loaded in process {self._process}; this one is a fork of it: "
                "make a new Local() here, or start processes by spawning"
            )
        if self._is_closed:
            raise EngineError(f"the local backend for {self.name!r} is closed; make a new Local()")

    def tokenizer(self) -> Tokenizer:
        return self._load_text()[0]

    def renderer(self) -> Renderer:
        return self._load_text()[1]

    def engine(self) -> Engine:
        """The running engine, loaded if need be. Raises EngineError also where it has stopped, of a bug."""
        self.load()
        engine = self._engine
        if engine is None:  # closed since
            self.check_open()
        assert engine is not None
        engine.check_open()
        return engine

    def load(self, report: Report | None = None) -> None:
        """Load everything that is not loaded yet."""
        self.check_open()
        if self._engine is not None:
            return
        tokenizer, _ = self._load_text(report)
        with self._loading:
            self.check_open()
            if self._engine is None:
                runner = self._source.load_runner(tokenizer)
                config = self._config
                if config.cache_dir is not None:
                    config = replace(config, fingerprint=self._source.fingerprint(runner))
                self._engine = Engine(runner, config_for(runner, config))

    def stats(self) -> EngineStats:
        self.check_open()
        engine = self._engine
        return EngineStats() if engine is None else engine.stats()

    def flush(self) -> int:
        self.check_open()
        engine = self._engine
        return 0 if engine is None else engine.flush()

    def end_run(self, owner: int) -> None:
        """See `Engine.end_run`; nothing where there is no engine."""
        engine = self._engine
        if engine is not None:
            engine.end_run(owner)

    def expect(self, namespace: str, prompts: list[tuple[int, ...]]) -> None:
        """See `Engine.expect`; nothing where there is no engine."""
        engine = self._engine
        if engine is not None:
            engine.expect(namespace, prompts)

    def timeline(self) -> tuple[StepRecord, ...]:
        self.check_open()
        engine = self._engine
        return () if engine is None else engine.timeline()

    def cached_tree(self) -> dict[str, tuple[CachedNode, ...]]:
        self.check_open()
        engine = self._engine
        return {} if engine is None else engine.cached_tree()

    @property
    def max_tokens(self) -> int:
        """Most tokens of a request; without a bound before the model is loaded."""
        engine = self._engine
        return _UNBOUNDED if engine is None else engine.max_tokens

    def count_cached(self, prompts: list[tuple[int, ...]]) -> list[int]:
        """How many of each prompt's first tokens are cached; none before the model is loaded."""
        self.check_open()
        engine = self._engine
        return [0] * len(prompts) if engine is None else engine.count_cached(prompts)

    def close(self) -> None:
        """Release everything; waits for a load that is under way."""
        self._is_closed = True
        if self._is_forked:
            return
        with self._loading:
            engine, self._engine, self._text = self._engine, None, None
        if engine is not None:
            engine.close()

    def _load_text(self, report: Report | None = None) -> tuple[Tokenizer, Renderer]:
        self.check_open()
        text = self._text
        if text is not None:
            return text
        with self._loading:
            self.check_open()
            if self._text is None:
                self._process = os.getpid()
                tokenizer = self._source.load_tokenizer(report)
                self._text = (tokenizer, Renderer(tokenizer))
            return self._text
