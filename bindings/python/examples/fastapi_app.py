"""FastAPI: one client for the whole application, a lock for each order, and a leader's task.

    uvicorn fastapi_app:app --workers 4
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import leasehold
from fastapi import FastAPI, HTTPException, Request
from leasehold import aio


async def clean_up(lease: leasehold.Lease) -> None:
    """Runs in one process of all. A loss of the lease cancels it."""
    while True:
        lease.check()
        await asyncio.sleep(60)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with aio.Client() as app.state.locks:
        stop = asyncio.Event()
        leader = asyncio.create_task(app.state.locks.election("clean-up").run(clean_up, stop))
        yield
        stop.set()
        await leader


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}/pay")
async def pay(number: int, request: Request) -> dict[str, int]:
    locks: aio.Client = request.app.state.locks
    try:
        # If the lease is lost, this request is cancelled and answers 500.
        async with locks.mutex(f"orders/{number}").lock(timeout=2) as guard:
            return {"order": number, "fence": guard.fence}
    except leasehold.Timeout as busy:
        raise HTTPException(409, f"order {number} is in use") from busy


@app.get("/leader")
async def leader(request: Request) -> dict[str, str | None]:
    leads = await request.app.state.locks.election("clean-up").leader()
    return {"owner": leads and leads.owner}
