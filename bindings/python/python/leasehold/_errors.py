"""What leasehold raises."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ._types import Holder


class Error(Exception):
    """What all errors of leasehold are. One of its subclasses is raised."""

    kind: str = "error"
    """What to branch on, as one word."""
    effect: Literal["applied", "not_applied", "unknown"] = "not_applied"
    """Whether the operation took effect on the store."""
    is_retryable: bool = False
    """Whether the same call may succeed later."""
    key: str | None = None
    """The lock."""
    store: str | None = None
    """The store, by scheme and host."""
    reason: str | None = None
    """Why, if more than the kind is known."""
    holder: Holder | None = None
    """Of a timeout: who has the lock."""
    retry_after: float | None = None
    """In how many seconds it is worth trying again."""


class Timeout(Error, TimeoutError):
    """The wait has reached its limit; `holder` has the lock."""

    kind = "timeout"


class Lost(Error):
    """The lease is not held any more, and another holder may have the lock."""

    kind = "lost"


class Late(Lost):
    """The lease had expired before its release, but no other holder has come since."""

    kind = "late"


class Unavailable(Error, ConnectionError):
    """The store can't be reached, or did not answer."""

    kind = "unavailable"


class NotReplicated(Unavailable):
    """Too few replicas confirmed the grant in time."""

    kind = "not_replicated"


class Denied(Error, PermissionError):
    """The store refuses this user."""

    kind = "denied"


class Config(Error, ValueError):
    """A name, a setting or a URL can't be used."""

    kind = "config"


class Unsupported(Error):
    """This store, or this kind of lock, can't do that."""

    kind = "unsupported"


class Conflict(Error):
    """The name is in use as another kind of lock or with another limit, or its queue is full."""

    kind = "conflict"


class Full(Error):
    """The store has no room."""

    kind = "full"


class Foreign(Error):
    """The store has a value of another program at the lock's name."""

    kind = "foreign"


class Corrupt(Error):
    """What is stored can't be read."""

    kind = "corrupt"


class Protocol(Error):
    """The store has answered something unexpected."""

    kind = "protocol"


class Closed(Error):
    """The client was closed."""

    kind = "closed"


class Misuse(Error, RuntimeError):
    """Released before, inherited by a fork, awaited twice, or awaited on another loop."""

    kind = "misuse"


# Their public place, also for pickles.
for _error in list(globals().values()):
    if isinstance(_error, type) and issubclass(_error, Error):
        _error.__module__ = "leasehold"
