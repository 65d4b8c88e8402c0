"""Stores made of others, and what a store can't do or can't read."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import redis
from conftest import redis_server

import leasehold


@pytest.fixture
def quorum(tmp_path: Path) -> str:
    return "quorum:" + ",".join(f"embedded:{tmp_path / name}" for name in "abc")


def test_a_quorum_of_directories(quorum: str, key: str) -> None:
    with leasehold.Client(quorum) as one, leasehold.Client(quorum) as two:
        with one.mutex(key).lock() as guard:
            assert guard.is_held_by_store() and two.mutex(key).try_lock() is None
        with two.mutex(key).lock(timeout=30) as later:
            assert later.fence > guard.fence_even_if_lost


def test_what_a_quorum_can_not_do(quorum: str, key: str) -> None:
    with leasehold.Client(quorum) as client, pytest.raises(leasehold.Unsupported) as caught:
        client.semaphore(key, 2).acquire(timeout=0)
    assert caught.value.kind == "unsupported" and not caught.value.is_retryable


def test_a_sharded_store(tmp_path: Path, key: str) -> None:
    url = f"spread:a=embedded:{tmp_path / 'a'},b=embedded:{tmp_path / 'b'}"
    with leasehold.Client(url) as client:
        guards = [client.mutex(f"{key}/{n}").lock() for n in range(8)]
        assert len(client.list(key)) == 8
        for guard in guards:
            guard.release()
    with leasehold.Client(f"embedded:{tmp_path / 'a'}") as part:
        part.mutex(f"{key}/0").lock(timeout=0).release()


def test_a_record_that_can_not_be_read(redis_url: str, key: str) -> None:
    server = redis.Redis.from_url(redis_url)
    server.hset(f"leasehold:{{{key}}}", "state", b"\x11damaged")
    with leasehold.Client(redis_url) as client:
        with pytest.raises(leasehold.Corrupt) as caught:
            client.mutex(key).lock(timeout=0)
        assert caught.value.key == key and caught.value.kind == "corrupt"
        found = client.list(key)
        assert not found and [type(error) for error in found.unreadable] == [leasehold.Corrupt]


def test_a_grant_without_replicas(redis_url: str, key: str) -> None:
    url = f"{redis_url}?replicas=1&keep_leases=yes"
    with leasehold.Client(url, ttl=1, call_timeout=1) as client:
        with pytest.raises(leasehold.NotReplicated) as caught:
            client.mutex(key).lock(timeout=0)
    error = caught.value
    assert isinstance(error, leasehold.Unavailable) and isinstance(error, ConnectionError)


def test_a_server_that_goes_away(redis_url: str, key: str) -> None:
    """Its connections are cut; the lease is held, and renewed over new ones."""
    with leasehold.Client(redis_url, ttl=30) as client, client.mutex(key).lock() as guard:
        redis.Redis.from_url(redis_url).client_kill_filter(_type="normal", skipme=True)
        with contextlib.suppress(leasehold.Unavailable):
            # A request that was on its way is not sent again.
            guard.renew_to(60)
        guard.renew_to(60)
        assert guard.is_held_by_store()


def test_a_server_without_memory(tmp_path: Path, key: str) -> None:
    with redis_server(tmp_path / "server", "--maxmemory", "100kb") as server:
        with leasehold.Client(server.url) as client:
            with pytest.raises(leasehold.Full) as caught:
                client.mutex(key).lock(timeout=0)
    assert caught.value.kind == "full" and caught.value.effect == "not_applied"
