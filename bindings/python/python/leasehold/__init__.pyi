"""Locks for the processes of one machine or of many: the lock you can prove you hold."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeAlias, TypedDict, TypeVar, Unpack, final

from ._calls import log_to as log_to
from ._errors import Closed as Closed
from ._errors import Config as Config
from ._errors import Conflict as Conflict
from ._errors import Corrupt as Corrupt
from ._errors import Denied as Denied
from ._errors import Error as Error
from ._errors import Foreign as Foreign
from ._errors import Full as Full
from ._errors import Late as Late
from ._errors import Lost as Lost
from ._errors import Misuse as Misuse
from ._errors import NotReplicated as NotReplicated
from ._errors import Protocol as Protocol
from ._errors import Timeout as Timeout
from ._errors import Unavailable as Unavailable
from ._errors import Unsupported as Unsupported
from ._leasehold import FakeClock
from ._types import Finding as Finding
from ._types import Holder as Holder
from ._types import Leader as Leader
from ._types import Listing as Listing
from ._types import LockEvent as LockEvent
from ._types import LockInfo as LockInfo
from ._types import Waiter as Waiter

__all__ = [
    "Client",
    "Closed",
    "Config",
    "Conflict",
    "Corrupt",
    "Denied",
    "Election",
    "Error",
    "Finding",
    "Foreign",
    "Full",
    "Guard",
    "Holder",
    "Late",
    "Leader",
    "Lease",
    "Listing",
    "LockEvent",
    "LockInfo",
    "Lost",
    "Misuse",
    "Multi",
    "MultiGuard",
    "Mutex",
    "NotReplicated",
    "OnceGuard",
    "OncePer",
    "Owner",
    "Protocol",
    "ReadGuard",
    "Reentrant",
    "ReentrantGuard",
    "RwLock",
    "Semaphore",
    "SemaphoreGuard",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "Waiter",
    "WriteGuard",
    "__version__",
    "log_to",
]

__version__: str

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Seconds: TypeAlias = float | timedelta

class _Options(TypedDict, total=False):
    """What every kind of lock takes by keyword. A client's own are the defaults of its locks."""

    ttl: _Seconds
    """The length of a lease, 30 s by default. A dead holder's lock comes free after it."""
    owner: str
    """The holder's name, for people: `host_pid_tag` by default."""
    metadata: str
    """Text that is kept with the lease, for people."""
    renew: bool
    """Whether leases are renewed in the background; they are by default."""
    stop_grace: _Seconds
    """How early a loss is reported, before another holder can come."""
    max_hold: _Seconds | None
    """The longest time for which one lease is held, renewals included."""
    progress_within: _Seconds | None
    """Renews only while `progress()` is called at least this often."""
    max_waiters: int | None
    """Refuses to wait if this many wait already."""
    fairness: Literal["fifo", "barging"]
    """Whether waiters queue or compete."""
    give_up_early: bool
    """Stops waiting at once if the holder's lease runs for longer than the wait may take."""
    wait_limit: _Seconds | None
    """How long a wait without a timeout may take."""

class _RwOptions(_Options, total=False):
    preference: Literal["fifo", "writers", "readers"]
    """Who goes first if readers and writers wait."""

class _SemaphoreOptions(_Options, total=False):
    stored_limit: bool
    """Takes a name that is in use with another limit under that limit."""

class _ElectionOptions(_Options, total=False):
    look_every: _Seconds
    """How often an observer looks for a new leader."""

class _Settings(_Options, total=False):
    """What a client takes by keyword."""

    password: str | None
    """The store's password, if the URL has none."""
    call_timeout: _Seconds
    """How long one request to the store may take."""
    retry_store: _Seconds
    """For how long to go on trying to reach a store that is away; one try by default."""
    local_handoffs: int
    """How often in a row a lock goes to the next waiter of this process; 16 by default."""
    log: int
    """How many events the store logs for each lock; 0 by default."""
    detached: bool
    """Whether leases of an embedded store outlive this process."""
    interop: str | None
    """Keeps locks as another library does: "redis-py", "python-redis-lock", "redisson", …"""
    leftovers: _Seconds | None
    """The expiry that is set on another library's lock that has none."""
    min_ttl: _Seconds
    """The shortest ttl that is accepted."""
    min_renewal: _Seconds
    """The shortest length to which a held lease can be set."""
    fence_retention: _Seconds
    """For how long a server keeps the last fence of an idle lock."""
    create_tables: bool
    """Whether a PostgreSQL database gets the tables that it lacks."""
    close_at_exit: bool
    """Whether the client is closed at the end of the interpreter; it is by default."""
    clock: FakeClock | None
    """Of a test, for a store in memory: see `leasehold.testing`."""

class Lease:
    """What the work under a lock needs to know, of threads and of tasks.

    It sends no request, except for the methods whose result is Any: they wait in a `Guard`, and
    are awaited in an `aio.Guard`.
    """

    @property
    def key(self) -> str:
        """The lock's name; of several locks all names."""
    @property
    def metadata(self) -> str:
        """The text that is kept with the lease, for people."""
    @property
    def permits(self) -> int | None:
        """How many permits of a semaphore it has; None for other kinds."""
    @property
    def fence(self) -> int:
        """The fencing token. Raises Lost once the lease is lost: no work may begin under it."""
    @property
    def fence_even_if_lost(self) -> int:
        """The fencing token for logs, whether or not the lease is held."""
    @property
    def is_held(self) -> bool:
        """Whether the lease is held for certain. Sends no request."""
    @property
    def is_at_risk(self) -> bool:
        """Whether a renewal has failed; the lease is still held."""
    @property
    def is_asked(self) -> bool:
        """Whether a request to release has reached this holder."""
    @property
    def remaining(self) -> float:
        """For how many seconds the lease is held for certain; 0 once it is lost."""
    @property
    def until_deadline(self) -> float:
        """In how many seconds the store may grant the lock to another holder."""
    def check(self) -> None:
        """Raises Lost if the lease is not held; for a look before each side effect."""
    def progress(self) -> None:
        """Reports that the work makes progress; see the option `progress_within`."""
    def note_result(self, result: str) -> None:
        """Notes how the work ended, for the log of the store. The first note counts."""
    def on_lost(self, call: Callable[[], object]) -> None:
        """Has `call` called once the lease is lost, on the thread `leasehold-calls`."""
    def lost(self, timeout: _Seconds | None = None) -> Any:
        """Waits for the loss. Returns whether the lease is lost."""
    def asked(self, timeout: _Seconds | None = None) -> Any:
        """Waits for a request to release. Returns whether there is one."""
    def renew_to(self, ttl: _Seconds) -> Any:
        """Sets a new length, counted from now. One request."""
    def is_held_by_store(self) -> Any:
        """Whether the store has this lease. One request."""
    def release(self, *, cooldown: _Seconds | None = None) -> Any:
        """Releases the lock, and closes it for the time of the cooldown.

        Raises Late or Lost if the lease was not held to its end.
        """
    def detach(self) -> Any:
        """Makes a secret text of the lease, for `Client.adopt()`, here or elsewhere."""

class Guard(Lease):
    """A held lock. Leave it by `with` or `release()`.

    A guard that is forgotten is released in the background, with a ResourceWarning.
    """

    def lost(self, timeout: _Seconds | None = None) -> bool: ...
    def asked(self, timeout: _Seconds | None = None) -> bool: ...
    def renew_to(self, ttl: _Seconds) -> None: ...
    def is_held_by_store(self) -> bool: ...
    def release(self, *, cooldown: _Seconds | None = None) -> None: ...
    def detach(self) -> str: ...
    def __enter__(self) -> Self:
        """The guard itself: it is held already."""
    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Releases. A loss is raised, or is a note on what the body has raised."""

@final
class ReadGuard(Guard):
    """A lock that is held to read."""

    def upgrade(self) -> WriteGuard:
        """Makes a write lock of it in one step. Raises Conflict if there are other readers."""

@final
class WriteGuard(Guard):
    """A lock that is held to write."""

    def downgrade(self) -> ReadGuard:
        """Makes a read lock of it in one step."""

@final
class SemaphoreGuard(Guard):
    """Permits that are held."""

    def release_permits(self, n: int) -> SemaphoreGuard:
        """Releases some of its permits. The new guard has the others."""

@final
class OnceGuard(Guard):
    """A job that has started, and runs once in its period."""

    def reopen(self) -> None:
        """Releases, and lets the next caller start the job in the same period."""

@final
class MultiGuard(Guard):
    """Several held locks. Each has a fence of its own, so `fence` raises Misuse."""

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each lock, by name. Raises Lost once a lease is lost."""

@final
class ReentrantGuard(Guard):
    """One of an owner's holds of its lock. The last release frees it."""

    @property
    def holds(self) -> int:
        """How many times its owner has the lock in this process."""

@final
class Mutex:
    """A lock of one holder: a value, which sends nothing until it is locked."""

    @property
    def key(self) -> str:
        """The lock's name."""
    def lock(self, timeout: _Seconds | None = None) -> Guard:
        """Waits in the queue for the lock. With 0 it tries once, and Timeout names the holder."""
    def try_lock(self) -> Guard | None:
        """Takes the lock if it is free. None if it is held, or if waiters are before."""
    def relock(self, guard: Guard) -> Guard | None:
        """Renews the guard's lease, or takes the lock again if it is gone.

        The new guard replaces the old one. None if another holder has the lock. Compare the
        fences to tell a renewal from a new lease.
        """
    def ask(self) -> bool:
        """Requests release from the holder. Returns whether there is one."""
    def locked(self, call: Callable[_P, _R], /) -> Callable[_P, _R]:
        """Decorates a function, so that one call at a time runs."""

@final
class RwLock:
    """A lock that readers share, or one writer has."""

    @property
    def key(self) -> str:
        """The lock's name."""
    def read(self, timeout: _Seconds | None = None) -> ReadGuard:
        """Waits in the queue for a read lock, which other readers may share."""
    def write(self, timeout: _Seconds | None = None) -> WriteGuard:
        """Waits in the queue for the write lock, which no other holder shares."""
    def try_read(self) -> ReadGuard | None:
        """Takes a read lock if that needs no wait, else None."""
    def try_write(self) -> WriteGuard | None:
        """Takes the write lock if it is free, else None."""

@final
class Semaphore:
    """A lock with a number of permits."""

    @property
    def key(self) -> str:
        """The lock's name."""
    @property
    def limit(self) -> int:
        """The number of its permits."""
    def acquire(self, n: int = 1, timeout: _Seconds | None = None) -> SemaphoreGuard:
        """Waits in the queue for so many permits, and takes them together."""
    def try_acquire(self, n: int = 1) -> SemaphoreGuard | None:
        """Takes so many permits if they are free, else None."""
    def available(self) -> int:
        """The number of free permits, for people: it may have changed meanwhile."""
    def set_limit(self, limit: int) -> Semaphore:
        """Changes the limit for all users of the name. Returns the semaphore with that limit."""

@final
class Multi:
    """Several locks that are taken together: all or none, in any order."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the locks."""
    def lock(self, timeout: _Seconds | None = None) -> MultiGuard:
        """Waits in the queues of the locks until it has all of them."""
    def try_lock(self) -> MultiGuard | None:
        """Takes all of the locks if all are free, else None."""

@final
class Owner:
    """Who may take a re-entrant lock again.

    Without a secret it is this object alone. With the same secret it is one owner in all
    processes.
    """

    def __new__(cls, secret: str | bytes | None = None, *, name: str | None = None) -> Self: ...

@final
class Reentrant:
    """A lock that its owner may take again while it has it."""

    @property
    def key(self) -> str:
        """The lock's name."""
    def lock(self, timeout: _Seconds | None = None) -> ReentrantGuard:
        """Waits in the queue for the lock. If its owner has it, this returns at once."""
    def try_lock(self) -> ReentrantGuard | None:
        """Takes the lock if it is free or its owner's, else None."""

@final
class OncePer:
    """A job that starts once per period, on all hosts together."""

    @property
    def key(self) -> str:
        """The lock's name."""
    def start(self) -> OnceGuard | None:
        """Starts the job. None if it has started in this period already, anywhere."""
    def once(self, call: Callable[_P, _R], /) -> Callable[_P, _R | None]:
        """Decorates a function, so that it runs once per period. Other calls return None."""

@final
class Election:
    """An election of one leader at a time, whom all can see."""

    @property
    def key(self) -> str:
        """The lock's name."""
    def campaign(self, timeout: _Seconds | None = None) -> Guard:
        """Waits until it leads. It leads until the guard is released."""
    def try_campaign(self) -> Guard | None:
        """Leads if no other candidate does, else None."""
    def leader(self) -> Leader | None:
        """Who leads now, if any candidate does. One request."""
    def observe(self) -> Iterator[Leader | None]:
        """The leader now, and after each change."""

class Client:
    """A connection to a store, which all threads share.

    Without a URL the store is the one that `LEASEHOLD_STORE` names, or `embedded:`. In a fork's
    child a client connects anew at its first use. Guards are the parent's, and raise Misuse there.
    """

    def __new__(cls, url: str | None = None, **settings: Unpack[_Settings]) -> Self: ...
    @property
    def location(self) -> str:
        """The store by scheme and host, without a password."""
    @property
    def owner(self) -> str:
        """How this client's holders are named, for people."""
    def mutex(self, key: str, **options: Unpack[_Options]) -> Mutex:
        """A lock of one holder. Sends nothing, as for all kinds."""
    def rwlock(self, key: str, **options: Unpack[_RwOptions]) -> RwLock:
        """A lock of many readers or one writer."""
    def semaphore(self, key: str, limit: int, **options: Unpack[_SemaphoreOptions]) -> Semaphore:
        """A lock of at most `limit` permits. All users of the name give the same limit."""
    def multi(self, keys: Iterable[str], **options: Unpack[_Options]) -> Multi:
        """Several locks that are taken together: all or none, in any order."""
    def reentrant(self, key: str, by: Owner, **options: Unpack[_Options]) -> Reentrant:
        """A lock that its owner may take again while it has it."""
    def once_per(self, key: str, period: _Seconds, **options: Unpack[_Options]) -> OncePer:
        """A job that starts once per period, on all hosts together."""
    def election(self, key: str, **options: Unpack[_ElectionOptions]) -> Election:
        """An election of one leader at a time, whom all can see."""
    def locked(
        self, key: str, timeout: _Seconds | None = None, **options: Unpack[_Options]
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Decorates a function, so that one call at a time runs for each key.

        In the key, `{name}` stands for the call's argument of that name. A parameter `lease` gets
        the guard. Without the lock within the timeout, the call raises Timeout. An `async def` can
        be decorated, too.
        """
    def inspect(self, key: str) -> LockInfo | None:
        """A lock's holders and waiters; None if it is not in use."""
    def list(self, prefix: str = "") -> Listing:
        """The locks in use whose names begin with the prefix."""
    def log(self, key: str, last: int = 100) -> Sequence[dict[str, Any]]:
        """The last events of a lock in the store's log."""
    def events(self) -> Iterator[LockEvent]:
        """What happens to this client's leases from now on."""
    def examine(self) -> Sequence[Finding]:
        """Checks whether the store is set up well for locks."""
    def ask(self, key: str, fence: int | None = None) -> int:
        """Requests release from all holders, or from one. Returns how many there are."""
    def force_release(
        self, key: str, fence: int
    ) -> Literal["released", "not_held", "other_fence"]:
        """Ends another holder's lease, by the fence that `inspect` has shown."""
    def adopt(self, secret: str) -> Guard:
        """Takes over a lease that was detached."""
    def release_all(self) -> None:
        """Releases all that this client holds. Its guards hold no lease from then on."""
    def close(self) -> None:
        """Releases everything that is held, and ends all waits with Closed."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
