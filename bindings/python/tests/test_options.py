"""Each option of a lock and of a client, and what it refuses."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest

import leasehold

OPTIONS: list[dict[str, Any]] = [
    {"ttl": 5},
    {"ttl": 0.5},
    {"ttl": timedelta(minutes=1)},
    {"owner": "web-7"},
    {"metadata": "job 7"},
    {"renew": False},
    {"stop_grace": 1},
    {"max_hold": 3600},
    {"max_hold": None},
    {"progress_within": timedelta(minutes=5)},
    {"progress_within": None},
    {"max_waiters": 3},
    {"max_waiters": None},
    {"fairness": "fifo"},
    {"fairness": "barging"},
    {"give_up_early": True},
]

WRONG: list[dict[str, Any]] = [
    {"ttl": 0},
    {"ttl": -1},
    {"ttl": 0.001},
    {"ttl": 31 * 24 * 3600},
    {"ttl": float("nan")},
    {"ttl": float("inf")},
    {"stop_grace": 60},
    {"owner": "x" * 300},
    {"metadata": "x" * 2000},
    {"fairness": "unfair"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_is_taken(memory: leasehold.Client, key: str, options: dict[str, Any]) -> None:
    with memory.mutex(key, **options).lock() as guard:
        assert guard.is_held
        info = memory.inspect(key)
        assert info and info.holders[0].owner == options.get("owner", memory.owner)
        assert info.holders[0].metadata == options.get("metadata", "") == guard.metadata


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_of_a_client_is_its_locks_default(key: str, options: dict[str, Any]) -> None:
    with leasehold.Client("memory:", **options) as client, client.mutex(key).lock():
        info = client.inspect(key)
        assert info and info.holders[0].owner == options.get("owner", client.owner)


@pytest.mark.parametrize("options", WRONG, ids=lambda it: str(it)[:40])
def test_a_wrong_option_is_refused(
    memory: leasehold.Client, key: str, options: dict[str, Any]
) -> None:
    with pytest.raises(leasehold.Config) as caught:
        memory.mutex(key, **options).lock(timeout=0)
    assert isinstance(caught.value, ValueError) and caught.value.kind == "config"
    assert memory.inspect(key) is None


@pytest.mark.parametrize("options", [{"ttl": "5"}, {"renew": 3}, {"owner": 7}, {"tll": 5}])
def test_a_wrong_type_is_refused(memory: leasehold.Client, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        memory.mutex("k", **options)


def test_all_kinds_take_options(memory: leasehold.Client, key: str) -> None:
    options: Any = {"ttl": 5, "owner": "web-7"}
    guards = [
        memory.mutex(f"{key}/m", **options).lock(),
        memory.rwlock(f"{key}/r", **options).read(),
        memory.semaphore(f"{key}/s", 2, **options).acquire(),
        memory.multi([f"{key}/x", f"{key}/y"], **options).lock(),
        memory.reentrant(f"{key}/e", leasehold.Owner(name="web-7"), ttl=5).lock(),
        memory.once_per(f"{key}/o", 60, **options).start(),
        memory.election(f"{key}/l", **options).campaign(),
    ]
    held = memory.list(key)
    assert len(held) == 8 and {lock.holders[0].owner for lock in held} == {"web-7"}
    for guard in guards:
        assert guard and guard.remaining <= 5
        guard.release()


def test_a_queue_has_an_end(memory: leasehold.Client, key: str) -> None:
    with memory.mutex(key).lock(), pytest.raises(leasehold.Error) as caught:
        memory.mutex(key, max_waiters=0).lock(timeout=30)
    assert caught.value.kind in ("conflict", "full", "timeout")


def test_max_hold_ends_a_hold(memory: leasehold.Client, key: str) -> None:
    guard = memory.mutex(key, ttl=0.5, max_hold=0.6).lock()
    assert guard.lost(timeout=30) and not guard.is_held
    # In the store it may have been held to its end.
    with contextlib.suppress(leasehold.Late):
        guard.release()


def test_a_hold_without_progress_ends(memory: leasehold.Client, key: str) -> None:
    guard = memory.mutex(key, ttl=0.3, progress_within=0.3).lock()
    assert guard.lost(timeout=30) and not guard.is_held
    # In the store it may have been held to its end.
    with contextlib.suppress(leasehold.Late):
        guard.release()


def test_the_store_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, key: str
) -> None:
    monkeypatch.setenv("LEASEHOLD_STORE", f"embedded:{tmp_path / 'locks'}")
    with leasehold.Client() as client, client.mutex(key).lock():
        assert "locks" in client.location
        with leasehold.Client(f"embedded:{tmp_path / 'locks'}") as other:
            assert other.mutex(key).try_lock() is None
