"""The engine's core under any sequence of events; `make machine-long` runs the same machine for minutes."""

from __future__ import annotations

from engine_machine import EngineMachine
from hypothesis import settings

TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
