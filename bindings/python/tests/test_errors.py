"""Each exception: how it comes about, what it is, and what it tells."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import redis
from conftest import free_port

import leasehold

TREE = {
    leasehold.Timeout: TimeoutError,
    leasehold.Lost: leasehold.Error,
    leasehold.Late: leasehold.Lost,
    leasehold.Unavailable: ConnectionError,
    leasehold.NotReplicated: leasehold.Unavailable,
    leasehold.Denied: PermissionError,
    leasehold.Config: ValueError,
    leasehold.Unsupported: leasehold.Error,
    leasehold.Conflict: leasehold.Error,
    leasehold.Full: leasehold.Error,
    leasehold.Foreign: leasehold.Error,
    leasehold.Corrupt: leasehold.Error,
    leasehold.Protocol: leasehold.Error,
    leasehold.Closed: leasehold.Error,
    leasehold.Misuse: RuntimeError,
}


@pytest.mark.parametrize("error", TREE, ids=lambda it: it.__name__)
def test_the_tree(error: type[leasehold.Error]) -> None:
    assert issubclass(error, leasehold.Error) and issubclass(error, TREE[error])
    assert error.__module__ == "leasehold" and error.__doc__
    assert getattr(leasehold, error.__name__) is error and error.__name__ in leasehold.__all__


@pytest.mark.parametrize("name", ["", "x" * 513, "a\nb"])
def test_a_name_that_can_not_be(memory: leasehold.Client, name: str) -> None:
    with pytest.raises(leasehold.Config):
        memory.mutex(name).lock(timeout=0)


@pytest.mark.parametrize("url", ["nonsense", "http://x", "redis://", "embedded:relative"])
def test_a_url_that_can_not_be(url: str) -> None:
    with pytest.raises(leasehold.Config) as caught:
        leasehold.Client(url)
    assert caught.value.kind == "config" and caught.value.effect == "not_applied"


COUNTS: dict[str, Callable[[leasehold.Client, int], object]] = {
    "semaphore": lambda client, n: client.semaphore("k", n),
    "acquire": lambda client, n: client.semaphore("k", 2).acquire(n),
    "try_acquire": lambda client, n: client.semaphore("k", 2).try_acquire(n),
    "set_limit": lambda client, n: client.semaphore("k", 2).set_limit(n),
    "release_permits": lambda client, n: client.semaphore("k", 2).acquire().release_permits(n),
    "max_waiters": lambda client, n: client.mutex("k", max_waiters=n),
    "local_handoffs": lambda client, n: leasehold.Client("memory:", local_handoffs=n),
    "log=": lambda client, n: leasehold.Client("memory:", log=n),
    "log": lambda client, n: client.log("k", n),
    "ask": lambda client, n: client.ask("k", n),
    "force_release": lambda client, n: client.force_release("k", n),
}


@pytest.mark.parametrize("number", [-1, -(2**70), 2**70])
@pytest.mark.parametrize("call", COUNTS)
def test_a_number_that_can_not_be(memory: leasehold.Client, call: str, number: int) -> None:
    with pytest.raises(leasehold.Config, match=r"2\*\*") as caught:
        COUNTS[call](memory, number)
    assert isinstance(caught.value, ValueError) and caught.value.effect == "not_applied"


@pytest.mark.parametrize("call", COUNTS)
def test_a_number_that_is_no_number(memory: leasehold.Client, call: str) -> None:
    with pytest.raises(TypeError):
        COUNTS[call](memory, "1")  # type: ignore[arg-type]


def test_a_server_that_is_away() -> None:
    with pytest.raises(leasehold.Unavailable) as caught:
        leasehold.Client(f"redis://127.0.0.1:{free_port()}")
    error = caught.value
    assert isinstance(error, ConnectionError) and isinstance(error, OSError)
    assert error.kind == "unavailable" and "127.0.0.1" in str(error) and error.is_retryable


def test_a_wrong_password(redis_url: str, key: str) -> None:
    server = redis.Redis.from_url(redis_url)
    server.acl_setuser(key, enabled=True, passwords=["+right"], keys=["*"], commands=["+@all"])
    url = redis_url.replace("redis://", f"redis://{key}@")
    with pytest.raises(leasehold.Denied) as caught:
        leasehold.Client(url, password="guessed")
    assert isinstance(caught.value, PermissionError) and "guessed" not in str(caught.value)


def test_a_value_that_is_foreign(redis_url: str, key: str) -> None:
    server = redis.Redis.from_url(redis_url)
    server.set(f"leasehold:{{{key}}}", "not a lock")
    with leasehold.Client(redis_url) as client, pytest.raises(leasehold.Foreign) as caught:
        client.mutex(key).lock(timeout=0)
    assert caught.value.key == key and caught.value.kind == "foreign"


def test_a_timeout_names_the_holder(client: leasehold.Client, key: str) -> None:
    with client.mutex(key, owner="web-7", metadata="job 7", ttl=20).lock() as guard:
        with pytest.raises(leasehold.Timeout) as caught:
            client.mutex(key).lock(timeout=0)
    error = caught.value
    assert (error.kind, error.effect, error.key) == ("timeout", "not_applied", key)
    assert error.holder and error.holder.owner == "web-7" and error.holder.metadata == "job 7"
    assert error.holder.fence == guard.fence_even_if_lost and error.holder.ends_in <= 20
    assert "web-7" in str(error)
    assert error.retry_after is None or 0 <= error.retry_after <= 20


def test_a_closed_client(url: str, key: str) -> None:
    client = leasehold.Client(url)
    mutex = client.mutex(key)
    guard = mutex.lock()
    client.close()
    client.close()
    assert not guard.is_held
    with pytest.raises(leasehold.Closed) as caught:
        mutex.lock()
    assert caught.value.kind == "closed"


def test_errors_are_pickled(memory: leasehold.Client, key: str) -> None:
    """Process pools and Celery's results do that."""
    with memory.mutex(key, owner="web-7").lock():
        with pytest.raises(leasehold.Timeout) as caught:
            memory.mutex(key).lock(timeout=0)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is leasehold.Timeout and str(copy) == str(caught.value)


@pytest.mark.parametrize("value", ["client", "mutex", "guard"])
def test_what_holds_is_not_pickled(memory: leasehold.Client, key: str, value: str) -> None:
    with memory.mutex(key).lock() as guard:
        it = {"client": memory, "mutex": memory.mutex(key), "guard": guard}[value]
        with pytest.raises(TypeError):
            pickle.dumps(it)


def test_no_text_has_a_secret(memory: leasehold.Client, redis_url: str, key: str) -> None:
    guard = memory.mutex(key).lock()
    assert key in repr(guard) and key in repr(memory.mutex(key))
    secret = guard.detach()
    assert secret not in repr(guard)
    memory.adopt(secret).release()
    url = redis_url.replace("redis://", "redis://:hidden@")
    with pytest.raises(leasehold.Error) as caught:
        leasehold.Client(url)
    assert "hidden" not in str(caught.value)
