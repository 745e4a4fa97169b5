"""Two processes read and write one folder at once, over pools that hold a fraction of their prompts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue

import tiny_models
from tiny_models import write_tiny_model

from forktree.backend.cache.disk import page_files, verify
from forktree.backend.engine.config import EngineConfig
from forktree.backend.engine.loop import Engine
from forktree.backend.engine.messages import EngineRequest, Failed
from forktree.backend.model.runner import load_runner

PROMPTS = [[3 + (7 * number + 5 * place * place) % 120 for place in range(44)] for number in range(6)]


def answers(model, folder, *, reverse=False):
    """Outputs of every prompt, three times over, and how many pages came from the disk and how many went there."""
    runner = load_runner(model, quantize="none", device="cpu", kv_tokens=96, page_size=8, vocab_size=131)
    tier = {} if folder is None else {"cache_dir": folder, "fingerprint": "tiny"}
    engine = Engine(runner, EngineConfig(fixed_rows=4.0, **tier))
    made = {}
    for turn in range(3):
        for number in sorted(range(len(PROMPTS)), reverse=reverse):
            events = SimpleQueue()
            engine.submit(EngineRequest(ids=tuple(PROMPTS[number]), on_event=events.put, max_tokens=4))
            while not isinstance(event := events.get(), Failed) and not hasattr(event, "ids"):
                pass
            made[f"{turn} {number}"] = [*event.ids]
    stats = engine.stats()
    engine.close()
    return [dict(sorted(made.items())), stats.pages_from_disk, stats.num_tier_faults]


def test_two_processes_share_a_folder_while_both_write(tmp_path):
    model, folder = write_tiny_model(tmp_path / "model"), tmp_path / "cache"
    command = [sys.executable, __file__, str(model), str(folder)]
    env = {**os.environ, "PYTHONPATH": str(Path(tiny_models.__file__).parent)}
    both = [
        subprocess.Popen([*command, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        for way in ("forth", "back")
    ]
    try:
        alone, _, _ = answers(model, None)
        for process in both:
            assert process.stdout.readline() == "ready\n"
        for process in both:
            process.stdin.write("go\n")
            process.stdin.flush()
        found = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    finally:
        for process in both:
            process.kill()
    assert all((outputs, num_faults) == (alone, 0) for outputs, _, num_faults in found)
    assert sum(num_pages for _, num_pages, _ in found) > 0
    assert verify(folder) == []
    assert len(list(page_files(folder))) > len(PROMPTS)
    assert not list(folder.rglob("*.tmp"))


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(answers(sys.argv[1], sys.argv[2], reverse=sys.argv[3] == "back")))
