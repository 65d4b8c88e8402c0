"""The examples of the documents run as they stand, and say what the code says."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from conftest import HERE

import leasehold
from leasehold import aio

ROOT = HERE.parents[2]
PAGES = ["bindings/python/README.md", "docs/python.md"]


def blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for n, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            found.append((f"{page}:{n}", block))
    return found


@pytest.mark.parametrize("where, source", blocks(), ids=[where for where, _ in blocks()])
def test_a_block_runs(where: str, source: str, tmp_path: Path) -> None:
    # Without a path it is a directory of the user's own.
    source = source.replace('"embedded:"', f'"embedded:{tmp_path}/locks"')
    names: dict[str, object] = {"__name__": "block"}
    exec(compile(source, where, "exec"), names)
    for name, test in list(names.items()):
        if name.startswith("test_") and callable(test):
            with leasehold.Client("memory:") as client:
                test(client)


def mentioned(page: str) -> set[str]:
    """The methods that a page names: what stands behind a dot in its code."""
    text = (ROOT / page).read_text()
    return set(re.findall(r"(?:client|guard)\.(\w+)", text))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_what_there_is(page: str) -> None:
    there = {*dir(leasehold.Client), *dir(leasehold.Guard), *dir(aio.Client), *dir(aio.Guard)}
    assert mentioned(page) <= there


def stub(name: str) -> dict[str, str | None]:
    """The docstrings of a stub's public classes, methods and properties."""
    found: dict[str, str | None] = {}
    path = ROOT / "bindings/python/python/leasehold" / name
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        found[node.name] = ast.get_docstring(node)
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                if not method.name.startswith("_"):
                    found[f"{node.name}.{method.name}"] = ast.get_docstring(method)
    return found


THREADS = stub("__init__.pyi")
NAMES = [(leasehold, name) for name in THREADS] + [(aio, name) for name in stub("aio.pyi")]


@pytest.mark.parametrize("module, name", NAMES, ids=[f"{m.__name__}.{name}" for m, name in NAMES])
def test_help_says_what_the_stub_says(module: ModuleType, name: str) -> None:
    """A stub that says nothing of a method means what the class before it says, or threads'."""
    shown = getattr(module, name.partition(".")[0])
    said = (stub("aio.pyi") if module is aio else THREADS).get(name) or THREADS.get(name)
    if method := name.partition(".")[2]:
        shown = getattr(shown, method)
        said = said or THREADS[f"Lease.{method}"]
    assert said and (inspect.getdoc(shown) or "").split() == said.split()


@pytest.mark.parametrize("module", [leasehold, aio], ids=lambda it: it.__name__)
def test_help_says_what_all_is(module: ModuleType) -> None:
    values = {name: getattr(module, name) for name in module.__all__}
    silent = []
    for name, it in values.items():
        if isinstance(it, type):
            members = [f"{name}.{member}" for member in dir(it) if not member.startswith("_")]
            ours = it.__module__.startswith("leasehold") and not issubclass(it, Exception | tuple)
            silent += [] if it.__doc__ else [name]
            for member in members if ours and it is not leasehold.Listing else ():
                about = getattr(it, member.partition(".")[2]).__doc__
                silent += [] if about else [member]
    assert silent == []


def test_the_version_is_the_crates() -> None:
    manifest = (ROOT / "Cargo.toml").read_text()
    assert f'version = "{leasehold.__version__}"' in manifest
