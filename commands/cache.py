"""`forktree cache`: look at, shrink or check a folder of computed prompts (`Local(cache_dir=…)`)."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from forktree.commands.console import add_command, num_bytes
from forktree.commands.programs import UsageError


def add_parser(commands: Any) -> None:
    summary = "look at, shrink or check a folder of computed prompts"
    parser = add_command(commands, "cache", summary, "  forktree cache prune ~/kv --to 2G")
    parser.add_argument("action", choices=("ls", "prune", "verify"), help="list it, shrink it, or check every file")
    parser.add_argument("folder", type=Path, help="what Local(cache_dir=…) was given")
    parser.add_argument(
        "--to", type=num_bytes, metavar="SIZE", default=0, help="prune: bytes to keep, as 500M or 2G (default: 0)"
    )
    parser.add_argument("--remove", action="store_true", help="verify: remove what is not sound")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from forktree.backend.cache.disk import page_files, prune, verify

    folder: Path = arguments.folder
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give the one that Local(cache_dir=…) was given")
    if arguments.action == "prune":
        print(f"{prune(folder, arguments.to):,} bytes are left")
        return 0
    if arguments.action == "ls":
        models: dict[str, list[Any]] = {}
        for file in page_files(folder):
            models.setdefault(file.path.parent.parent.name, []).append(file)
        for model, files in sorted(models.items()):
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(file.used_s for file in files)))
            print(f"{model}  {len(files):>7,} pages  {sum(file.num_bytes for file in files):>15,} bytes  used {used}")
        return 0
    faults = verify(folder)
    for path, fault in faults:
        print(f"{path} is {fault}")
        if arguments.remove:
            path.unlink(missing_ok=True)
    print(f"{sum(1 for _ in page_files(folder)):,} files, {len(faults)} not sound")
    return 1 if faults and not arguments.remove else 0
