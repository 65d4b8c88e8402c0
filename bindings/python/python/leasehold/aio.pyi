"""leasehold for asyncio: the same names, and what waits is awaited.

One client serves any number of event loops and threads. Every await may be cancelled: a position
in a queue is given up, and a grant that was on its way is released.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from types import GenericAlias, TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeAlias, TypeVar, Unpack, final

import leasehold
from leasehold import (
    Finding,
    Leader,
    Lease,
    Listing,
    LockEvent,
    LockInfo,
    Owner,
    _ElectionOptions,
    _Options,
    _RwOptions,
    _Seconds,
    _SemaphoreOptions,
    _Settings,
)

__all__ = [
    "Acquiring",
    "Client",
    "Election",
    "Guard",
    "Lease",
    "Multi",
    "MultiGuard",
    "Mutex",
    "OnceGuard",
    "OncePer",
    "Owner",
    "ReadGuard",
    "Reentrant",
    "ReentrantGuard",
    "RwLock",
    "Semaphore",
    "SemaphoreGuard",
    "WriteGuard",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
_G = TypeVar("_G", bound=Guard)
_Operation: TypeAlias = Coroutine[Any, Any, _T]

class Guard(Lease):
    """A held lock. Leave it by `async with` or `release()`.

    In `async with` a loss cancels the task that entered, and comes out as Lost. A cancelled
    release goes on in the background.
    """

    def lost(self, timeout: _Seconds | None = None) -> _Operation[bool]: ...
    def asked(self, timeout: _Seconds | None = None) -> _Operation[bool]: ...
    def renew_to(self, ttl: _Seconds) -> _Operation[None]: ...
    def is_held_by_store(self) -> _Operation[bool]: ...
    def release(self, *, cooldown: _Seconds | None = None) -> _Operation[None]: ...
    def detach(self) -> _Operation[str]: ...
    def __aenter__(self) -> _Operation[Self]: ...
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> _Operation[None]: ...

@final
class ReadGuard(Guard):
    def upgrade(self) -> _Operation[WriteGuard]: ...

@final
class WriteGuard(Guard):
    def downgrade(self) -> _Operation[ReadGuard]: ...

@final
class SemaphoreGuard(Guard):
    def release_permits(self, n: int) -> _Operation[SemaphoreGuard]: ...

@final
class OnceGuard(Guard):
    def reopen(self) -> _Operation[None]: ...

@final
class MultiGuard(Guard):
    @property
    def fences(self) -> dict[str, int]: ...

@final
class ReentrantGuard(Guard):
    @property
    def holds(self) -> int: ...

@final
class Acquiring(Coroutine[Any, Any, _G]):
    """A lock to be taken: `guard = await it`, or `async with it as guard`.

    It sends nothing before that, and is for one await. If an asynchronous generator yields inside
    `async with`, a loss cancels the task that iterates over it, as `asyncio.timeout` would.
    """

    @classmethod
    def __class_getitem__(cls, key: Any) -> GenericAlias: ...
    def __await__(self) -> Generator[Any, None, _G]: ...
    def send(self, value: Any = None) -> Any:
        """Goes on with it, as an event loop does."""
    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: Any = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        """Ends it with an exception, as the cancel of its task does. Nothing stays behind."""
    def close(self) -> None:
        """Ends it. Nothing stays behind."""
    def __aenter__(self) -> _Operation[_G]: ...
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> _Operation[None]: ...

@final
class Mutex:
    @property
    def key(self) -> str: ...
    def lock(
        self, timeout: _Seconds | None = None, *, cancel_on_loss: bool = True
    ) -> Acquiring[Guard]: ...
    def try_lock(self) -> _Operation[Guard | None]: ...
    def relock(self, guard: Guard) -> _Operation[Guard | None]: ...
    def ask(self) -> _Operation[bool]: ...
    def locked(self, call: Callable[_P, Awaitable[_R]], /) -> Callable[_P, Awaitable[_R]]: ...

@final
class RwLock:
    @property
    def key(self) -> str: ...
    def read(
        self, timeout: _Seconds | None = None, *, cancel_on_loss: bool = True
    ) -> Acquiring[ReadGuard]: ...
    def write(
        self, timeout: _Seconds | None = None, *, cancel_on_loss: bool = True
    ) -> Acquiring[WriteGuard]: ...
    def try_read(self) -> _Operation[ReadGuard | None]: ...
    def try_write(self) -> _Operation[WriteGuard | None]: ...

@final
class Semaphore:
    @property
    def key(self) -> str: ...
    @property
    def limit(self) -> int: ...
    def acquire(
        self, n: int = 1, timeout: _Seconds | None = None, *, cancel_on_loss: bool = True
    ) -> Acquiring[SemaphoreGuard]: ...
    def try_acquire(self, n: int = 1) -> _Operation[SemaphoreGuard | None]: ...
    def available(self) -> _Operation[int]: ...
    def set_limit(self, limit: int) -> _Operation[Semaphore]: ...

@final
class Multi:
    @property
    def keys(self) -> tuple[str, ...]: ...
    def lock(
        self, timeout: _Seconds | None = None, *, cancel_on_loss: bool = True
    ) -> Acquiring[MultiGuard]: ...
    def try_lock(self) -> _Operation[MultiGuard | None]: ...

@final
class Reentrant:
    @property
    def key(self) -> str: ...
    def lock(
        self, timeout: _Seconds | None = None, *, cancel_on_loss: bool = True
    ) -> Acquiring[ReentrantGuard]: ...
    def try_lock(self) -> _Operation[ReentrantGuard | None]: ...

@final
class OncePer:
    @property
    def key(self) -> str: ...
    def start(self) -> _Operation[OnceGuard | None]: ...
    def once(
        self, call: Callable[_P, Awaitable[_R]], /
    ) -> Callable[_P, Awaitable[_R | None]]: ...

@final
class Election:
    @property
    def key(self) -> str: ...
    def campaign(
        self, timeout: _Seconds | None = None, *, cancel_on_loss: bool = True
    ) -> Acquiring[Guard]: ...
    def try_campaign(self) -> _Operation[Guard | None]: ...
    def leader(self) -> _Operation[Leader | None]: ...
    def observe(self) -> AsyncIterator[Leader | None]: ...
    async def run(
        self, body: Callable[[Guard], Awaitable[_T]], stop: asyncio.Event | None = None
    ) -> _T | None:
        """Campaigns, runs the body while it leads, and campaigns again after a loss.

        Returns what the body returns, or None once the event `stop` is set. A body is cancelled
        when the leadership is lost, before another candidate can lead.
        """

class Client:
    """A connection to a store. It connects at the first await, or at `async with`."""

    def __new__(cls, url: str | None = None, **settings: Unpack[_Settings]) -> Self: ...
    @classmethod
    def of(cls, client: leasehold.Client | Client) -> Client:
        """The same connection, for code of both kinds."""
    @property
    def location(self) -> str: ...
    @property
    def owner(self) -> str: ...
    def mutex(self, key: str, **options: Unpack[_Options]) -> Mutex: ...
    def rwlock(self, key: str, **options: Unpack[_RwOptions]) -> RwLock: ...
    def semaphore(
        self, key: str, limit: int, **options: Unpack[_SemaphoreOptions]
    ) -> Semaphore: ...
    def multi(self, keys: Iterable[str], **options: Unpack[_Options]) -> Multi: ...
    def reentrant(self, key: str, by: Owner, **options: Unpack[_Options]) -> Reentrant: ...
    def once_per(self, key: str, period: _Seconds, **options: Unpack[_Options]) -> OncePer: ...
    def election(self, key: str, **options: Unpack[_ElectionOptions]) -> Election: ...
    def locked(
        self, key: str, timeout: _Seconds | None = None, **options: Unpack[_Options]
    ) -> Callable[[Callable[_P, Awaitable[_R]]], Callable[_P, Awaitable[_R]]]: ...
    def inspect(self, key: str) -> _Operation[LockInfo | None]: ...
    def list(self, prefix: str = "") -> _Operation[Listing]: ...
    def log(self, key: str, last: int = 100) -> _Operation[Sequence[dict[str, Any]]]: ...
    def events(self) -> AsyncIterator[LockEvent]: ...
    def examine(self) -> _Operation[Sequence[Finding]]: ...
    def ask(self, key: str, fence: int | None = None) -> _Operation[int]: ...
    def force_release(
        self, key: str, fence: int
    ) -> _Operation[Literal["released", "not_held", "other_fence"]]: ...
    def adopt(self, secret: str) -> _Operation[Guard]: ...
    def release_all(self) -> _Operation[None]: ...
    def close(self) -> _Operation[None]: ...
    def __aenter__(self) -> _Operation[Self]: ...
    def __aexit__(self, *exception: object) -> _Operation[None]: ...
