"""The pytest plugin: fixtures with locks that need no server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    import leasehold
    from leasehold import testing


@pytest.fixture
def leasehold_clock() -> testing.FakeClock:
    """A clock that stands still until the test moves it. `leasehold_client` counts on it."""
    from leasehold import testing

    return testing.FakeClock()


@pytest.fixture
def leasehold_client(request: pytest.FixtureRequest) -> Iterator[leasehold.Client]:
    """A client of a store in memory. `leasehold.aio.Client.of` makes it one for asyncio."""
    from leasehold import testing

    counts = "leasehold_clock" in request.fixturenames
    clock = request.getfixturevalue("leasehold_clock") if counts else None
    with testing.memory_client(clock) as client:
        yield client


@pytest.fixture
def leasehold_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store in a directory, which is also LEASEHOLD_STORE: for code that makes its own
    client, and for other processes."""
    url = f"embedded:{tmp_path / 'locks'}"
    monkeypatch.setenv("LEASEHOLD_STORE", url)
    return url
