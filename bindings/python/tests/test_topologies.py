"""Servers that fail over: a sentinel's, a cluster's, and a quorum of servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from conftest import Server, redis_server, until

import leasehold
from leasehold import aio


def renewed(guard: leasehold.Guard) -> bool:
    """Whether the store renews it; false while it fails over."""
    try:
        guard.renew_to(30)
    except leasehold.Unavailable:
        return False
    return guard.is_held


def held_elsewhere(url: str, key: str, ttl: float = 30) -> bool:
    """Whether another client, also one of asyncio, is refused the lock."""

    async def tried() -> bool:
        async with aio.Client(url, ttl=ttl) as other:
            return await other.mutex(key).try_lock() is None

    with leasehold.Client(url, ttl=ttl) as other:
        is_held = other.mutex(key).try_lock() is None
    return is_held and asyncio.run(tried())


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[str, Server]]:
    """A primary with a replica and a sentinel: the URL, and the primary."""
    with contextlib.ExitStack() as servers:
        primary = servers.enter_context(redis_server(tmp_path / "primary"))
        follow = ["--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0"]
        replica = servers.enter_context(redis_server(tmp_path / "replica", *follow))
        until(lambda: replica.asked.info("replication")["master_link_status"] == "up")
        settings = tmp_path / "sentinel.conf"
        settings.write_text(
            f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds main 500\n"
            "sentinel failover-timeout main 5000\n"
        )
        sentinel = servers.enter_context(redis_server(settings, "--sentinel"))
        until(lambda: sentinel.asked.sentinel_slaves("main"))
        yield f"redis+sentinel://127.0.0.1:{sentinel.port}/main", primary


def test_a_lock_outlives_its_primary(watched: tuple[str, Server], key: str) -> None:
    url, primary = watched
    with leasehold.Client(url, ttl=30, call_timeout=1) as client:
        guard = client.mutex(key).lock()
        assert primary.asked.wait(1, 60_000) == 1
        primary.kill()
        until(lambda: renewed(guard))
        assert guard.is_held_by_store() and held_elsewhere(url, key)
        fence = guard.fence
        guard.release()
        with client.mutex(key).lock(timeout=30) as later:
            assert later.fence > fence


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[Server]]:
    """Three primaries with a third of the slots each, and a replica of the first."""
    with contextlib.ExitStack() as servers:
        mode = ["--cluster-enabled", "yes", "--cluster-node-timeout", "60000"]
        mode += ["--repl-diskless-sync-delay", "0"]
        nodes = [servers.enter_context(redis_server(tmp_path / name, *mode)) for name in "abcd"]
        for n, node in enumerate(nodes[:3]):
            slots = range(16384 * n // 3, 16384 * (n + 1) // 3)
            node.asked.execute_command("CLUSTER ADDSLOTS", *slots)
        for node in nodes[1:]:
            node.asked.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0].port)
        first = nodes[0].asked.execute_command("CLUSTER MYID").decode()

        def follows() -> bool:
            with contextlib.suppress(redis.ResponseError):
                return bool(nodes[3].asked.execute_command("CLUSTER REPLICATE", first))
            return False

        until(follows)
        until(lambda: nodes[3].asked.info("replication")["master_link_status"] == "up")

        def agree(node: Server) -> bool:
            state = node.asked.execute_command("CLUSTER INFO")
            return state["cluster_state"] == "ok" and state["cluster_known_nodes"] == "4"

        until(lambda: all(agree(node) for node in nodes))
        yield nodes


def test_locks_outlive_a_clusters_node(cluster: list[Server], key: str) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster[1].port}"
    with leasehold.Client(url, ttl=30, call_timeout=1) as client:
        guards = [client.mutex(f"{key}/{n}").lock() for n in range(9)]
        assert cluster[0].asked.wait(1, 60_000) == 1
        cluster[0].kill()
        cluster[3].asked.execute_command("CLUSTER FAILOVER", "TAKEOVER")
        for guard in guards:
            until(lambda guard=guard: renewed(guard))
            assert guard.is_held_by_store()
        assert all(held_elsewhere(url, f"{key}/{n}") for n in range(0, 9, 4))
        for n, guard in enumerate(guards):
            fence = guard.fence
            guard.release()
            with client.mutex(f"{key}/{n}").lock(timeout=30) as later:
                assert later.fence > fence


@pytest.mark.parametrize("killed", [1, 2])
def test_a_quorum_outlives_one_of_three_servers(tmp_path: Path, key: str, killed: int) -> None:
    with contextlib.ExitStack() as started:
        servers = [started.enter_context(redis_server(tmp_path / name)) for name in "abc"]
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        url = f"quorum+redis://{hosts}?max_ttl=5s"
        # Servers that have just started count no grant until a lease of before has expired.
        with leasehold.Client(url, ttl=4, call_timeout=1) as client:
            guard = client.mutex(key).lock(timeout=60)
            for server in servers[:killed]:
                server.kill()
            if killed == 1:
                assert guard.lost(timeout=5) is False and guard.is_held_by_store()
                assert held_elsewhere(url, key, ttl=4)
                guard.release()
                client.mutex(key).lock(timeout=60).release()
                return
            assert guard.lost(timeout=60) and not guard.is_held
            with pytest.raises(leasehold.Lost):
                print(guard.fence)
            with pytest.raises(leasehold.Unavailable):
                client.mutex(f"{key}/other").lock(timeout=1)
            with pytest.raises(leasehold.Error):
                guard.release()
