"""A prompt that one process computed is served from the folder by the next."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from forktree.backend.local import Local
from forktree.lang.sampling import Sampling

pytestmark = pytest.mark.model

PROGRAM = """
import json, sys
import forktree as ft
with ft.Local(sys.argv[1], cache_dir=sys.argv[2], kv_tokens=4608) as local:
    ids = [1 + 7 * n % 4001 for n in range(4000)]
    done = local.generate([ids], ft.Sampling(max_tokens=8, ignore_eos=True, logprobs=1))[0]
    stats = local.stats()
    print(json.dumps([done.tokens, [t.logprob for t in done.logprobs], stats.cached_tokens, stats.prefill_tokens]))
"""


def run(model_dir, folder):
    command = [sys.executable, "-c", PROGRAM, str(model_dir), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def test_a_restarted_process_serves_4000_tokens_from_the_disk_with_the_same_bits(model_dir, tmp_path):
    ids, logprobs, num_cached, num_computed = run(model_dir, tmp_path)
    assert (num_cached, num_computed) == (0, 4000)
    again = run(model_dir, tmp_path)
    assert again[:2] == [ids, logprobs]
    assert again[2:] == [3984, 16]


def test_host_memory_below_a_small_pool_changes_no_bit(model_dir):
    prompts = [[start + n for n in range(150)] for start in (100, 400, 700)]
    sampling = Sampling(max_tokens=4, logprobs=1)
    with Local(model_dir, kv_tokens=192, host_bytes=64 << 20) as local:
        first = local.generate(prompts, sampling)
        second = local.generate(prompts, sampling)
        assert local.stats().cached_tokens >= 3 * 128
    assert [(each.tokens, each.logprobs) for each in second] == [(each.tokens, each.logprobs) for each in first]


@pytest.mark.parametrize("name", ["cache_bytes", "host_bytes"])
def test_a_size_is_a_whole_number(name):
    with pytest.raises(ValueError, match=name):
        Local(**{name: 0})
