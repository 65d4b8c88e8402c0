"""Measures leasehold beside redis-py's Lock and python-redis-lock, in turns, on one server.

    python measure.py redis://127.0.0.1:6379 [SECONDS [ROUNDS]]

It needs redis, hiredis and python-redis-lock. Each line has the median rate of all rounds, its
ratio to redis-py's, and the time of processors that this process took for a cycle.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import redis
import redis.asyncio
import redis_lock

import leasehold
from leasehold import aio

URL = sys.argv[1]
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 5


def in_threads(count, cycle_of):
    """Cycles in so many threads, each with a lock of its own: their rate, and CPU time of one."""
    done, begin = [0] * count, threading.Barrier(count + 1)
    until = float("inf")

    def work(n):
        cycle = cycle_of(n)
        cycle()
        begin.wait()
        while time.perf_counter() < until:
            cycle()
            done[n] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    begin.wait()
    began, cpu = time.perf_counter(), time.process_time()
    until = began + SECONDS
    for thread in threads:
        thread.join()
    taken, cpu = time.perf_counter() - began, time.process_time() - cpu
    return sum(done) / taken, cpu / sum(done)


def in_tasks(count, cycles):
    """The same in tasks of one loop."""

    async def main():
        async with cycles() as cycle_of:
            done = 0

            async def work(n, until):
                nonlocal done
                cycle = cycle_of(n)
                while time.perf_counter() < until:
                    await cycle()
                    done += 1

            await asyncio.gather(*(cycle_of(n)() for n in range(count)))
            began, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(work(n, began + SECONDS) for n in range(count)))
            taken, cpu = time.perf_counter() - began, time.process_time() - cpu
            return done / taken, cpu / done

    return asyncio.run(main())


def under(lock_of):
    """A cycle: take a lock and release it."""

    def cycle_of(n):
        lock = lock_of(n)

        def cycle():
            with lock():
                pass

        return cycle

    return cycle_of


class Tasks:
    """Locks of an asyncio client, which is closed after them."""

    def __init__(self, client_of, lock_of):
        self.client_of, self.lock_of = client_of, lock_of

    async def __aenter__(self):
        self.client = self.client_of()

        def cycle_of(n):
            lock = self.lock_of(self.client, n)

            async def cycle():
                async with lock():
                    pass

            return cycle

        return cycle_of

    async def __aexit__(self, *exception):
        if hasattr(self.client, "aclose"):
            await self.client.aclose()


def main():
    theirs = redis.Redis.from_url(URL, max_connections=200)
    ours = leasehold.Client(URL)
    here = leasehold.Client(f"embedded:{tempfile.mkdtemp()}/locks")
    tasks_here, tasks_ours = aio.Client.of(here), aio.Client.of(ours)

    def mutex(client, n):
        return client.mutex(f"measure/{n}", ttl=10).lock

    threads = {
        "redis-py": lambda n: lambda: theirs.lock(f"redis-py/{n}", timeout=10),
        "python-redis-lock": lambda n: lambda: redis_lock.Lock(theirs, f"{n}", expire=10),
        "leasehold, server": lambda n: mutex(ours, n),
        "leasehold, embedded": lambda n: mutex(here, n),
    }
    tasks = {
        "redis-py": Tasks(
            lambda: redis.asyncio.Redis.from_url(URL, max_connections=200),
            lambda client, n: lambda: client.lock(f"redis-py/{n}", timeout=10),
        ),
        "leasehold, server": Tasks(lambda: tasks_ours, mutex),
        "leasehold, embedded": Tasks(lambda: tasks_here, mutex),
    }
    cases = {}
    for count in (1, 64):
        for name, lock_of in threads.items():
            cases[f"{count} threads, {name}"] = lambda n=count, it=lock_of: in_threads(n, under(it))
        for name, cycles in tasks.items():
            cases[f"{count} tasks, {name}"] = lambda n=count, it=cycles: in_tasks(n, lambda: it)
    seen = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, run in cases.items():
            seen[name].append(run())
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{ROUNDS} rounds of {SECONDS} s, load {load}, Python {sys.version.split()[0]}")
    for name, rounds in seen.items():
        rate, cpu = (statistics.median(values) for values in zip(*rounds, strict=True))
        base = statistics.median(rate for rate, _ in seen[f"{name.split(', ')[0]}, redis-py"])
        least, most = (choose(rate for rate, _ in rounds) for choose in (min, max))
        print(
            f"{name:32} {rate:9.0f}/s ({least:.0f} to {most:.0f})"
            f" {rate / base:6.2f} x  CPU {cpu * 1e6:6.1f} us"
        )
    installed = Path(leasehold.__file__).parent
    print(f"{sum(file.stat().st_size for file in installed.glob('*.so')) / 1e6:.1f} MB of code")


main()
