"""What users test with: fixtures, and a way to lose a lock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import leasehold
from leasehold import aio, testing

pytest_plugins = ["pytester"]


def test_a_lock_is_lost(leasehold_client: leasehold.Client) -> None:
    guard = leasehold_client.mutex("k").lock()
    testing.lose(leasehold_client, guard)
    assert not guard.is_held and guard.lost(timeout=0)
    leasehold_client.mutex("k").lock(timeout=0).release()
    with pytest.raises(leasehold.Lost):
        guard.release()


def test_a_lock_is_lost_in_asyncio(leasehold_client: leasehold.Client) -> None:
    async def main() -> None:
        client = aio.Client.of(leasehold_client)
        with pytest.raises(leasehold.Lost):
            async with client.mutex("k").lock() as guard:
                await testing.lose_async(client, guard)
                await asyncio.sleep(60)

    asyncio.run(main())


def test_the_store_is_that_of_the_environment(leasehold_store: str) -> None:
    with leasehold.Client() as one, leasehold.Client(leasehold_store) as two:
        with one.mutex("k").lock():
            assert two.mutex("k").try_lock() is None


def test_the_plugin_is_installed(pytester: pytest.Pytester) -> None:
    """It comes with the package, without a line in the user's conftest.py."""
    pytester.makepyfile(
        """
        import leasehold

        def test_it(leasehold_client: leasehold.Client, leasehold_store: str) -> None:
            with leasehold_client.mutex("k").lock() as guard:
                assert guard.is_held
            with leasehold.Client() as other:
                assert other.mutex("k").try_lock()
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_fences_statements_are_those_of_rust() -> None:
    from leasehold.fencing import postgresql

    rust = Path(__file__).parents[3] / "crates/leasehold/src/fencing/postgresql.rs"
    text = rust.read_text().replace("\\\n", "")
    for name in postgresql.__all__:
        ours = getattr(postgresql, name).replace("%(resource)s", "$1").replace("%(fence)s", "$2")
        assert f'"{ours}"'.replace('"C"', '\\"C\\"') in text, name
