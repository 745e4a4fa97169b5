"""A server whose engine has stopped says so, and why, to whoever asks and to what looks after it."""

from __future__ import annotations

from engine_fakes import FakeRunner
from local_fakes import FakeSource
from starlette.testclient import TestClient
from toy_tokenizers import byte_level

from forktree.backend.local import Local
from forktree.backend.server.app import build
from forktree.backend.server.settings import Settings
from forktree.backend.tokenizer import Tokenizer


class Leaving(FakeRunner):
    def forward(self, batch):
        raise SystemExit("the device is gone")


def test_a_server_without_its_engine_is_not_ready_and_refuses_with_the_reason() -> None:
    tokenizer = Tokenizer(byte_level())
    local = Local.over(FakeSource(tokenizer, Leaving(vocab=tokenizer.num_tokens)))
    body = {"model": "toy", "prompt": "a", "max_tokens": 3}
    with local, TestClient(build(local, Settings(model_names=("toy",)))) as http:
        assert http.get("/ready").json() == {"status": "ready"}
        for _ in range(2):  # the one that was under way, and the next
            answer = http.post("/v1/completions", json=body)
            assert answer.status_code == 503
            assert "the engine stopped: SystemExit: the device is gone" in answer.json()["error"]["message"]
        ready = http.get("/ready")
        assert ready.status_code == 503
        assert "the device is gone" in ready.json()["status"]
        assert http.get("/health").json() == {"status": "ok"}
        assert http.get("/metrics").status_code == 200
