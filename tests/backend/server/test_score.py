"""`/v1/score`: log-probabilities of options."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from forktree.backend.local import Local
from forktree.runtime.protocol import Branch, ScoreRequest, Text

OPTIONS = [" big", " small", " big enough", ""]


async def test_options_are_scored_as_the_engine_scores_them(wild_url: str, wild_local: Local) -> None:
    body = {"prompt": "The owl is", "options": OPTIONS, "unconditional": True}
    told = httpx.post(f"{wild_url}/v1/score", json=body, timeout=60).json()
    branch = Branch(None, Text("The owl is"))
    here = await wild_local.score(ScoreRequest(branch=branch, options=tuple(OPTIONS), unconditional=True))
    assert [one["index"] for one in told["data"]] == [0, 1, 2, 3]
    assert [one["tokens"] for one in told["data"]] == [list(option.ids) for option in here.options]
    assert [one["token_logprobs"] for one in told["data"]] == [list(option.logprobs) for option in here.options]
    assert [one["unconditional_score"] for one in told["data"]] == [
        sum(option.unconditional_logprobs or ()) for option in here.options
    ]


@pytest.mark.parametrize(
    ("change", "param"),
    [({"options": []}, "options"), ({"options": [3]}, "options[0]"), ({"prompt": "long " * 900}, None)],
)
def test_what_cannot_be_scored_is_refused(wild_url: str, change: dict[str, Any], param: str | None) -> None:
    response = httpx.post(f"{wild_url}/v1/score", json={"prompt": "x", "options": ["y"]} | change, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
