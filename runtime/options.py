"""What a run uses where its program says nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forktree.lang.errors import LanguageError
from forktree.lang.program import Speculation
from forktree.lang.sampling import Sampling, seeded_for
from forktree.runtime.defaults import checked_backend
from forktree.runtime.protocol import Backend


@dataclass(frozen=True, slots=True)
class Options:
    """The backend and the sampling of a run; None leaves it to the next default.

    `speculation`: on a backend without token ids, generations in a row are asked for in one call.
    """

    backend: Backend | None = None
    sampling: Sampling | None = None
    speculation: Speculation | None = None

    def over(self, backend: Backend | None, sampling: Sampling | None, seed: int | None) -> Options:
        """These options with what is given in their place; a seed goes into the sampling."""
        if backend is None and sampling is None and seed is None:
            return self
        if backend is not None:
            checked_backend(backend)
        if sampling is None and seed is None:
            return replace(self, backend=backend or self.backend)
        given = Sampling() if sampling is None else sampling
        if not isinstance(given, Sampling):
            raise LanguageError(f"sampling= takes ft.Sampling(...), not {sampling!r}")
        if seed is not None:
            given = replace(given, seed=seed)
        merged = given if self.sampling is None else given.over(self.sampling)
        return replace(self, backend=backend or self.backend, sampling=merged)

    def within(self, caller: Sampling | None, index: int) -> Options:
        """For the `index`-th program that another calls: what it does not say is its caller's."""
        if caller is None:
            return self
        inherited = seeded_for(caller, "call", index)
        return replace(self, sampling=inherited if self.sampling is None else self.sampling.over(inherited))
