"""The thread `leasehold-calls`, on which callbacks run and logs are written.

leasehold's own thread never waits for the interpreter. It queues what is to be called.
"""

from __future__ import annotations

import itertools
import weakref

from . import _leasehold

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading

    from . import Lease

_numbers = itertools.count(1)
_guards: dict[int, weakref.ref[Lease]] = {}
_thread: threading.Thread | None = None
_logger = "leasehold"


def register(guard: Lease) -> int:
    """A number for a guard, by which its loss is told."""
    number = next(_numbers)
    _guards[number] = weakref.ref(guard, lambda _: _guards.pop(number, None))
    start()
    return number


def log_to(logger: str = "leasehold", level: int = 20) -> None:
    """Gives what leasehold logs, from this level on, to a logger of `logging`."""
    global _logger
    _logger = logger
    _leasehold.log_from(max(0, min(level, 100)))
    start()


def start() -> None:
    global _thread
    import threading

    # In a fork's child the thread of its parent is not alive.
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_serve, name="leasehold-calls", daemon=True)
        _thread.start()


def _serve() -> None:
    while (call := _leasehold.next_call()) is not None:
        kind, *rest = call
        if kind == "lost":
            _tell_loss(*rest)
        else:
            _write(*rest)


def _tell_loss(number: int) -> None:
    known = _guards.pop(number, None)
    guard = known() if known else None
    for call in _leasehold.take_calls(guard) if guard is not None else ():
        try:
            call()
        except Exception:
            import logging

            logging.getLogger(_logger).exception("a call on a loss of %r has failed", guard)


def _write(level: int, target: str, text: str, dropped: int) -> None:
    import logging

    name = target.removeprefix("leasehold").lstrip("_:").replace("::", ".")
    logger = logging.getLogger(f"{_logger}.{name}" if name else _logger)
    if dropped:
        logger.warning("%d log events were dropped, since too many were waiting", dropped)
    logger.log(level, "%s", text)
