"""What the store tells about locks."""

from typing import Any, Literal, NamedTuple

from ._errors import Error


class Holder(NamedTuple):
    """A holder of a lock."""

    owner: str
    metadata: str
    fence: int
    held_for: float
    ends_in: float
    permits: int
    is_asked: bool
    is_shared: bool


class Waiter(NamedTuple):
    """A waiter in the queue, and how many more of its process are behind it."""

    owner: str
    metadata: str
    waited_for: float
    place: int
    permits: int
    behind: int


class LockInfo(NamedTuple):
    """A lock in use."""

    key: str
    kind: Literal["lock", "semaphore"]
    holders: list[Holder]
    waiters: list[Waiter]
    closed_for: float | None
    last_fence: int
    limit: int | None


class Leader(NamedTuple):
    """A leader, as others see it."""

    owner: str
    metadata: str
    fence: int


class LockEvent(NamedTuple):
    """Something that happened to a lease."""

    key: str
    fence: int
    what: str
    details: dict[str, Any]


class Finding(NamedTuple):
    """One thing that was examined."""

    severity: Literal["problem", "warning", "note", "fine"]
    title: str
    text: str
    advice: str | None
    store: str | None


class Listing(list[LockInfo]):
    """The locks in use. `unreadable` has the errors of those that can't be read."""

    def __init__(self, locks: list[LockInfo], unreadable: list[Error]) -> None:
        super().__init__(locks)
        self.unreadable = unreadable


for _value in (Holder, Waiter, LockInfo, Leader, LockEvent, Finding, Listing):
    _value.__module__ = "leasehold"
