"""The layers import one way, and `import forktree` is light.

user program → lang ← runtime ← backend → kernels; only the root package and the commands wire them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MAY_IMPORT = {
    "lang": ("forktree.lang",),
    "runtime": ("forktree.lang", "forktree.runtime"),
    "backend": ("forktree.lang", "forktree.runtime.protocol", "forktree.backend", "forktree.kernels"),
    "kernels": ("forktree.kernels",),
    "tutorials": ("forktree",),
}
THIRD_PARTY = {
    "lang": {"pydantic", "pydantic_core", "typing_extensions"},  # the others come with the first
    "runtime": {"rich"},
    "kernels": {"torch", "triton", "numpy", "filelock"},
}
LAZY_ONLY = {"lang", "runtime"}  # what these import from others, they import when it is first needed
TORCH_FILES = ("backend/model/", "backend/cache/kv_pool.py", "backend/sampler", "kernels/")
HEAVY = ("torch", "transformers", "numpy", "openai", "anthropic", "ray", "pydantic", "rich", "httpx")


class Import:
    """One import statement: the module, the line, and whether it runs when the file is imported."""

    def __init__(self, module: str, line: int, *, at_top: bool) -> None:
        self.module = module
        self.line = line
        self.at_top = at_top
        self.package = module.split(".")[0]


def imports_of(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    later = [node for node in ast.walk(tree) if isinstance(node, functions) or _is_type_checking(node)]
    inside = {id(inner) for node in later for inner in ast.walk(node)}
    for node in ast.walk(tree):
        top = id(node) not in inside
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_top=top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from (
                Import(name, node.lineno, at_top=top) for name in {_target(node, alias) for alias in node.names}
            )


def _target(node: ast.ImportFrom, alias: ast.alias) -> str:
    """`from package import module` names the module, `from module import thing` the module too."""
    module = node.module or ""
    inner = ROOT.joinpath(*module.split(".")[1:], f"{alias.name}.py")
    return f"{module}.{alias.name}" if module.startswith("forktree.") and inner.is_file() else module


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def files_of(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def describe(path: Path, imported: Import) -> str:
    return f"{path.relative_to(ROOT)}:{imported.line} imports {imported.module}"


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_a_layer_imports_only_what_lies_below_it(folder: str) -> None:
    bad = [
        describe(path, imported)
        for path in files_of(folder)
        for imported in imports_of(path)
        if imported.package == "forktree"
        and not any(imported.module == a or imported.module.startswith(a + ".") for a in MAY_IMPORT[folder])
        and not _is_server_running_programs(path, imported)
    ]
    assert bad == []


def _is_server_running_programs(path: Path, imported: Import) -> bool:
    return path.is_relative_to(ROOT / "backend" / "server") and imported.module.startswith("forktree.runtime")


@pytest.mark.parametrize("folder", sorted(THIRD_PARTY))
def test_a_layer_uses_only_its_own_third_parties(folder: str) -> None:
    allowed = set(sys.stdlib_module_names) | {"forktree"} | THIRD_PARTY[folder]
    bad = [
        describe(path, imported)
        for path in files_of(folder)
        for imported in imports_of(path)
        if imported.package not in allowed
    ]
    assert bad == []


@pytest.mark.parametrize("folder", sorted(LAZY_ONLY))
def test_a_light_layer_loads_third_parties_when_first_needed(folder: str) -> None:
    allowed = set(sys.stdlib_module_names) | {"forktree"}
    bad = [
        describe(path, imported)
        for path in files_of(folder)
        for imported in imports_of(path)
        if imported.at_top and imported.package not in allowed
    ]
    assert bad == []


def test_what_decides_is_free_of_torch() -> None:
    bad = [
        describe(path, imported)
        for folder in ("lang", "runtime", "backend")
        for path in files_of(folder)
        for imported in imports_of(path)
        if imported.package == "torch" and not str(path.relative_to(ROOT)).startswith(TORCH_FILES)
    ]
    assert bad == []


def test_no_module_keeps_state_behind_a_global_statement() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("lang", "runtime", "backend", "kernels", "commands")
        for path in files_of(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Global)
    ]
    assert bad == []


def test_importing_forktree_loads_nothing_heavy() -> None:
    code = f"import sys, forktree; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_writing_a_program_loads_nothing_heavy(tmp_path: Path) -> None:
    code = f"""
import sys, forktree as ft

@ft.function
def program(s, x):
    s += ft.user(x)
    s += ft.assistant(ft.gen("a", max_tokens=3) + ft.select("b", ["x", "y"]))

print([m for m in {HEAVY!r} if m in sys.modules])
"""
    path = tmp_path / "light_program.py"
    path.write_text(code)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_every_package_on_disk_is_declared() -> None:
    import tomllib

    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = ("lang", "runtime", "backend", "kernels", "commands", "tutorials", "benchmarks")
    found = {
        ".".join(("forktree", *init.parent.relative_to(ROOT).parts))
        for folder in folders
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert found == declared - {"forktree", "forktree.tutorials.data", "forktree.benchmarks.data"}
