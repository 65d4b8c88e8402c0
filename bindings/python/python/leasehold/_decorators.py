"""Functions under a lock."""

from __future__ import annotations

import functools

from . import _leasehold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def locked(self: Any, key: str, timeout: Any = None, **options: Any) -> Any:
    """Decorates a function, so that one call at a time runs for each key.

    In the key, `{name}` stands for the call's argument of that name. A parameter `lease` gets the
    guard. Without the lock within the timeout, the call raises Timeout. An `async def` can be
    decorated, too.
    """

    def decorate(call: Any) -> Any:
        client = self
        if _is_async(call) and isinstance(self, _leasehold.Client):
            client = _leasehold.AClient.of(self)
        _check_face(call, isinstance(client, _leasehold.AClient))
        if "{" not in key:
            mutex = client.mutex(key, **options)
            return _under(call, lambda args, kwargs: mutex.lock(timeout))
        import inspect

        signature = inspect.signature(call)

        def take(args: Any, kwargs: Any) -> Any:
            arguments = signature.bind_partial(*args, **kwargs)
            arguments.apply_defaults()
            return client.mutex(key.format(**arguments.arguments), **options).lock(timeout)

        return _under(call, take)

    return decorate


def locked_by_mutex(self: Any, call: Any, /) -> Any:
    """Decorates a function, so that one call at a time runs."""
    _check_face(call, isinstance(self, _leasehold.AMutex))
    return _under(call, lambda args, kwargs: self.lock())


def once(self: Any, call: Any, /) -> Any:
    """Decorates a function, so that it runs once per period. Other calls return None."""
    _check_face(call, isinstance(self, _leasehold.AOncePer))
    return _under(call, lambda args, kwargs: self.start(), once=True)


def _is_async(call: Any) -> bool:
    import inspect

    return inspect.iscoroutinefunction(call)


def _check_face(call: Any, for_tasks: bool) -> None:
    import inspect

    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise TypeError("a generator can't be decorated: its body runs after the call")
    if _is_async(call) != for_tasks:
        wants = "an async def needs leasehold.aio" if not for_tasks else "a def needs leasehold"
        raise TypeError(f"{wants}, not the lock of the other")


def _under(call: Any, take: Callable[[Any, Any], Any], once: bool = False) -> Any:
    import inspect

    wants_lease = "lease" in inspect.signature(call).parameters

    if _is_async(call):

        @functools.wraps(call)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            taken = take(args, kwargs)
            if once and (taken := await taken) is None:
                return None
            async with taken as guard:
                if wants_lease:
                    kwargs["lease"] = guard
                return await call(*args, **kwargs)

    else:

        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            taken = take(args, kwargs)
            if taken is None:
                return None
            with taken as guard:
                if wants_lease:
                    kwargs["lease"] = guard
                return call(*args, **kwargs)

    return wrapper
