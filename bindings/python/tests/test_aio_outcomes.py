"""What comes out of an `async with`: losses and cancels against bodies and surroundings."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from leasehold import aio, testing

HAPPENS = ["nothing", "a loss", "a cancel", "a loss and a cancel", "a cancel and a loss"]
BODIES = ["passes a cancel on", "swallows a cancel", "raises its own"]
AROUND = ["a task", "a task group", "a timeout", "another hold"]


def allowed(happens: str, body: str) -> set[str]:
    match happens, body:
        case "nothing", _:
            return {"none"}
        case _, "raises its own":
            return {"KeyError"}
        case "a loss", _:
            return {"Lost"}
        case "a cancel", "swallows a cancel":
            return {"none"}
        case "a cancel", _:
            return {"CancelledError"}
        case _, "swallows a cancel":
            # The second may come before the body has swallowed the first, or after.
            return {"Lost", "CancelledError"}
        case _:
            return {"Lost", "CancelledError"}


class Work:
    """A hold, and the task that has it."""

    def __init__(self, client: aio.Client, body: str, around: str) -> None:
        self.client, self.body = client, body
        self.inside, self.go_on = asyncio.Event(), asyncio.Event()
        self.left_over = 0
        self.task = asyncio.create_task(self.surrounded(around))

    async def surrounded(self, around: str) -> None:
        match around:
            case "a task":
                await self.hold()
            case "a task group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(0))
                    await self.hold()
            case "a timeout":
                async with asyncio.timeout(60):
                    await self.hold()
            case "another hold":
                async with self.client.mutex("outer").lock():
                    await self.hold()

    async def hold(self) -> None:
        try:
            async with self.client.mutex("k").lock() as self.guard:
                self.inside.set()
                try:
                    await self.go_on.wait()
                except asyncio.CancelledError:
                    if self.body == "raises its own":
                        raise KeyError("of the body") from None
                    if self.body == "passes a cancel on":
                        raise
        finally:
            # Requests for a cancel that the hold itself has made must be gone.
            self.left_over = self.task.cancelling()


@pytest.mark.parametrize(
    "happens, body, around", list(itertools.product(HAPPENS, BODIES, AROUND)), ids=str
)
def test_an_outcome(happens: str, body: str, around: str) -> None:
    async def main() -> None:
        async with aio.Client("memory:") as client:
            work = Work(client, body, around)
            await work.inside.wait()
            match happens:
                case "nothing":
                    work.go_on.set()
                case "a loss":
                    await testing.lose_async(client, work.guard)
                case "a cancel":
                    work.task.cancel()
                case "a loss and a cancel":
                    await testing.lose_async(client, work.guard)
                    work.task.cancel()
                case "a cancel and a loss":
                    work.task.cancel()
                    await testing.lose_async(client, work.guard)
            outcome: Any = (await asyncio.gather(work.task, return_exceptions=True))[0]
            while isinstance(outcome, BaseExceptionGroup):
                (outcome,) = outcome.exceptions
            name = type(outcome).__name__ if outcome else "none"
            assert name in allowed(happens, body), outcome
            assert work.left_over <= ("cancel" in happens)
            assert not await client.list("")

    asyncio.run(main())
