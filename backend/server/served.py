"""What the routes share: the engine, what its model is called, who may ask."""

from __future__ import annotations

import copy
import hashlib
import re
import secrets
import time
from functools import cached_property

from forktree.backend.local import Local
from forktree.backend.server.auth import Keys
from forktree.backend.server.callers import Caller, namespace_of
from forktree.backend.server.errors import ApiError
from forktree.backend.server.fair import Gate
from forktree.backend.server.flights import Ending, Flight
from forktree.backend.server.limits import Limits
from forktree.backend.server.metrics import Metrics
from forktree.backend.server.presence import unless_disconnected
from forktree.backend.server.settings import Settings
from forktree.backend.tokenizer import Tokenizer


class Served:
    """One model behind one server. Made once; the server's loop owns it.

    Attributes:
        caller: who asks, in what `by` gives out.
        flights: what is in the engine, by request id.
        is_draining: the server is about to stop: it is not ready for more, and finishes what it has.
    """

    def __init__(self, backend: Local, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings
        self.keys = Keys(settings.api_keys)
        self.limits = Limits(settings.requests_per_minute, settings.total_requests_per_minute)
        self.gate = Gate(settings.max_running, settings.max_waiting)
        self.metrics = Metrics(settings.model_names[0], backend.stats, lambda: self.gate.num_waiting)
        self.flights: dict[str, set[Flight]] = {}
        self.caller = Caller()
        self.created = int(time.time())
        self.is_draining = False
        self._ending = Ending()  # one for all copies

    def by(self, caller: Caller) -> Served:
        """The same for one caller's request."""
        own = copy.copy(self)
        own.caller = caller
        return own

    def engine(self, salt: str | None = None) -> Local:
        """The engine with the part of its cache that the caller may see. `salt`: of the request."""
        shares = self.settings.shares_cache
        return self.backend.in_namespace(namespace_of(self.caller.tenant, salt, is_shared=shares))

    async def admit(self, count: int, *, priority: int = 0, timeout_s: float | None = None) -> Flight:
        """Wait until the engine takes so many sequences of this caller's.

        Args:
            timeout_s: seconds that are left for an answer that has begun; None are all that one may take.
        Raises:
            ApiError: 429, too many wait. ClientDisconnect: nobody waits for it any more.
        """
        entering = self.gate.enter(self.caller.tenant, count, priority=priority)
        receive = self.caller.receive
        taken = await (entering if receive is None else unless_disconnected(receive, entering))

        def leave() -> None:
            self.gate.leave(taken)
            flights = self.flights.get(self.caller.request_id, set())
            flights.discard(flight)
            if not flights:
                self.flights.pop(self.caller.request_id, None)

        timeout_s = timeout_s or self.settings.timeout_s
        flight = Flight(self.metrics, self.caller.tenant, leave, timeout_s, self.caller.notes)
        self.flights.setdefault(self.caller.request_id, set()).add(flight)
        if self._ending.error is not None:
            flight.stop(self._ending.error)
        return flight

    def give_up(self, error: Exception) -> int:
        """Stop whatever is in the engine, and what comes or waits; each is answered with the error. How many are in."""
        self._ending.error = error
        flights = [flight for several in self.flights.values() for flight in several]
        for flight in flights:
            flight.stop(error)
        return len(flights)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.backend.tokenizer

    @cached_property
    def fingerprint(self) -> str:
        """Another one where a seed may draw otherwise: another model or precision."""
        return "fp_" + hashlib.sha256(repr(self.backend.identity).encode()).hexdigest()[:12]

    @cached_property
    def hidden(self) -> HiddenSpellings:
        return HiddenSpellings(self.tokenizer)

    def model_of(self, name: str | None) -> str:
        """What answers call the model that a request names. Raises ApiError 404: it is not served here."""
        names = self.settings.model_names
        if self.caller.notes is not None:
            self.caller.notes.asked_model = name
        if name is not None and name not in names:
            known = ", ".join(map(repr, names))
            message = f"there is no model {name!r} here; this server has {known}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return names[0] if name is None else name


class HiddenSpellings:
    """Hides what spells a special token in a user's text, so that a rendered conversation has only the template's own.

    The stand-ins are words; `shown` puts the plain text back.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        spellings = sorted(filter(None, tokenizer.vocabulary.markup.values()), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, spellings)) if spellings else r"(?!)")

    def hide(self, text: str, stand_ins: dict[str, str]) -> str:
        """The text with words in place of spellings; `stand_ins` learns what each stands for."""

        def replace(match: re.Match[str]) -> str:
            word = f"Q{secrets.token_hex(8)}Z"
            stand_ins[word] = match.group()
            return word

        return self._pattern.sub(replace, text)


def shown(text: str, stand_ins: dict[str, str]) -> str:
    """The text with what its stand-ins stand for."""
    for word, spelling in stand_ins.items():
        text = text.replace(word, spelling)
    return text
