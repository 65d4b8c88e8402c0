"""The examples of the documents run as they stand, and say what the code says."""

from __future__ import annotations

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


@pytest.mark.parametrize("module", [leasehold, aio], ids=lambda it: it.__name__)
def test_help_says_what_a_class_is(module: ModuleType) -> None:
    values = {name: getattr(module, name) for name in module.__all__}
    classes = {name: it for name, it in values.items() if isinstance(it, type)}
    assert [name for name, it in classes.items() if not it.__doc__] == []


def test_the_version_is_the_crates() -> None:
    manifest = (ROOT / "Cargo.toml").read_text()
    assert f'version = "{leasehold.__version__}"' in manifest
