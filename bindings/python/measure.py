"""Measures leasehold beside redis-py's Lock and python-redis-lock, in turns, on one server.

    python measure.py redis://127.0.0.1:6379 [--seconds 0.5] [--rounds 5] [--rust PROGRAM]

It needs redis, hiredis and python-redis-lock. Each line has the median rate of all rounds, its
ratio to redis-py's, and the time of processors that this process took for a cycle. With `--rust`
and the path of `leasehold-bench`, the Rust library's cycles and the floors of a lone cycle are
measured in the same rounds, on a server of their own.

The floors of Python are measured in the same rounds: a bare pair of SET and DEL on a socket and in
a loop, two wake-ups of a loop by a descriptor, which each cycle across threads needs, and the locks
of Python itself, which call nothing outside the interpreter, and a
cycle with nothing in it.

`--contended` measures one key that 4 processes with 4 threads each want, and hold for 0.5 ms.
`--memory` measures the memory of held locks. It takes Linux, as the others do.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis_lock

import leasehold
from leasehold import aio

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("--seconds", type=float, default=0.5)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--rust", metavar="PROGRAM")
parser.add_argument("--contended", action="store_true")
parser.add_argument("--memory", action="store_true")
given = parser.parse_args()
URL, SECONDS, ROUNDS = given.url, given.seconds, given.rounds


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


SET = b"*6\r\n$3\r\nSET\r\n$5\r\nfloor\r\n$1\r\n1\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n10000\r\n"
DEL = b"*2\r\n$3\r\nDEL\r\n$5\r\nfloor\r\n"


def bare_pair(_):
    """The two commands of a lock without a fence, on a socket."""
    address = urlsplit(URL)
    connection = socket.create_connection((address.hostname, address.port or 6379))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cycle():
        for command, answer in ((SET, b"+OK\r\n"), (DEL, b":1\r\n")):
            connection.sendall(command)
            assert connection.recv(64) == answer

    return cycle


class BarePair(asyncio.Protocol):
    """The same in a loop."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.answer.set_result(data)

    async def ask(self, command):
        self.answer = self.loop.create_future()
        self.transport.write(command)
        return await self.answer

    async def __aenter__(self):
        self.loop = asyncio.get_running_loop()
        address = urlsplit(URL)
        await self.loop.create_connection(lambda: self, address.hostname, address.port or 6379)

        async def cycle():
            assert await self.ask(SET) == b"+OK\r\n"
            assert await self.ask(DEL) == b":1\r\n"

        return lambda _: cycle

    async def __aexit__(self, *exception):
        self.transport.close()


class TwoWakes:
    """A loop that a descriptor wakes twice."""

    async def __aenter__(self):
        self.loop = asyncio.get_running_loop()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.loop.add_reader(self.bell, self.rings)

        async def cycle():
            for _ in range(2):
                self.woken = self.loop.create_future()
                os.eventfd_write(self.bell, 1)
                await self.woken

        return lambda _: cycle

    def rings(self):
        os.eventfd_read(self.bell)
        self.woken.set_result(None)

    async def __aexit__(self, *exception):
        self.loop.remove_reader(self.bell)
        os.close(self.bell)


class Nothing:
    """A cycle with nothing in it: what the measurement itself takes."""

    async def __aenter__(self):
        async def cycle():
            pass

        return lambda _: cycle

    async def __aexit__(self, *exception):
        pass


class OwnLock:
    """The lock of asyncio."""

    async def __aenter__(self):
        lock = asyncio.Lock()

        async def cycle():
            async with lock:
                pass

        return lambda _: cycle

    async def __aexit__(self, *exception):
        pass


def in_rust():
    """Lone cycles in Rust: bare commands, the same with an answer that crosses threads, and locks."""
    if not given.rust:
        return {}
    names = {
        "bare": "Rust, bare pair",
        "bare-across": "Rust, bare pair across threads",
        "leasehold": "Rust, leasehold, server",
        "embedded": "Rust, leasehold, embedded",
    }
    run = [given.rust, "uncontended", "--callers", "1", "--rounds", "1", "--json"]
    run += ["--seconds", str(SECONDS), "--variants", ",".join(names)]
    found = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    rows = {row["variant"]: row["cycles_per_second"] for row in found["uncontended"]["rows"]}
    return {name: rows[variant]["median"] for variant, name in names.items()}


def free():
    theirs = redis.Redis.from_url(URL, max_connections=200)
    ours = leasehold.Client(URL)
    tasks_ours = aio.Client.of(ours)

    def mutex(client, n):
        return client.mutex(f"measure/{n}", ttl=10).lock

    cases = {}
    for count in (1, 64):
        # With 64 locks in it a step takes longer, so a lone caller has a directory of its own.
        here = leasehold.Client(f"embedded:{tempfile.mkdtemp()}/locks")
        threads = {
            "redis-py": lambda n: lambda: theirs.lock(f"redis-py/{n}", timeout=10),
            "python-redis-lock": lambda n: lambda: redis_lock.Lock(theirs, f"{n}", expire=10),
            "leasehold, server": lambda n: mutex(ours, n),
            "leasehold, embedded": lambda n, here=here: mutex(here, n),
        }
        tasks = {
            "redis-py": Tasks(
                lambda: redis.asyncio.Redis.from_url(URL, max_connections=200),
                lambda client, n: lambda: client.lock(f"redis-py/{n}", timeout=10),
            ),
            "leasehold, server": Tasks(lambda: tasks_ours, mutex),
            "leasehold, embedded": Tasks(lambda it=aio.Client.of(here): it, mutex),
        }
        for name, lock_of in threads.items():
            cases[f"{count} threads, {name}"] = lambda n=count, it=lock_of: in_threads(n, under(it))
        for name, cycles in tasks.items():
            cases[f"{count} tasks, {name}"] = lambda n=count, it=cycles: in_tasks(n, lambda: it)
    own = threading.Lock()
    cases["1 threads, floor: nothing"] = lambda: in_threads(1, lambda _: lambda: None)
    cases["1 threads, floor: bare pair"] = lambda: in_threads(1, bare_pair)
    cases["1 threads, floor: threading.Lock"] = lambda: in_threads(1, under(lambda _: lambda: own))
    floors = {
        "nothing": Nothing,
        "bare pair": BarePair,
        "two wakes": TwoWakes,
        "asyncio.Lock": OwnLock,
    }
    for name, it in floors.items():
        cases[f"1 tasks, floor: {name}"] = lambda it=it: in_tasks(1, it)
    seen = {name: [] for name in cases}
    rust = {}
    for _ in range(ROUNDS):
        for name, run in cases.items():
            seen[name].append(run())
        for name, rate in in_rust().items():
            rust.setdefault(name, []).append(rate)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{ROUNDS} rounds of {SECONDS} s, load {load}, Python {sys.version.split()[0]}")
    for name, rounds in seen.items():
        rate, cpu = (statistics.median(values) for values in zip(*rounds, strict=True))
        base = statistics.median(rate for rate, _ in seen[f"{name.split(', ')[0]}, redis-py"])
        least, most = (choose(rate for rate, _ in rounds) for choose in (min, max))
        print(
            f"{name:34} {rate:9.0f}/s ({least:.0f} to {most:.0f})"
            f" {rate / base:6.2f} x  CPU {cpu * 1e6:6.1f} us"
        )
    base = statistics.median(rate for rate, _ in seen["1 threads, redis-py"])
    for name, rates in rust.items():
        rate = statistics.median(rates)
        print(f"{name:34} {rate:9.0f}/s {rate / base:28.2f} x")
    installed = Path(leasehold.__file__).parent
    print(f"{sum(file.stat().st_size for file in installed.glob('*.so')) / 1e6:.1f} MB of code")


HOLD = 0.0005


def contenders(lock_of, begin, until, told):
    """Four threads of one process that want the same lock: what each got, and how long it waited."""
    counts, waits = [0] * 4, [[] for _ in range(4)]

    def work(n):
        take = lock_of()
        begin.wait()
        while (asked := time.monotonic()) < until.value:
            with take():
                waits[n].append(time.monotonic() - asked)
                counts[n] += 1
                time.sleep(HOLD)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put((counts, [wait for some in waits for wait in some]))


def contended():
    directory = f"embedded:{tempfile.mkdtemp()}/locks"

    def theirs(**more):
        client = redis.Redis.from_url(URL, max_connections=200)
        return lambda: lambda: client.lock("contended/theirs", timeout=10, **more)

    def other():
        client = redis.Redis.from_url(URL, max_connections=200)
        return lambda: lambda: redis_lock.Lock(client, "contended/other", expire=10)

    def ours(url):
        client = leasehold.Client(url)
        return lambda: client.mutex("contended/ours", ttl=10).lock

    cases = {
        "redis-py": lambda: theirs(),
        "redis-py, sleep=0.001": lambda: theirs(sleep=0.001),
        "python-redis-lock": other,
        "leasehold, server": lambda: ours(URL),
        "leasehold, embedded": lambda: ours(directory),
    }
    context = multiprocessing.get_context("fork")
    seen = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, make in cases.items():
            begin, told = context.Barrier(17), context.SimpleQueue()
            until = context.Value("d", 0.0)
            work = [
                context.Process(
                    target=lambda: contenders(make(), begin, until, told)  # noqa: B023
                )
                for _ in range(4)
            ]
            for process in work:
                process.start()
            until.value = time.monotonic() + 60
            begin.wait()
            until.value = time.monotonic() + SECONDS
            answers = [told.get() for _ in work]
            for process in work:
                process.join()
            counts = [count for some, _ in answers for count in some]
            waits = sorted(wait for _, some in answers for wait in some)
            seen[name].append((counts, waits))
    for name, rounds in seen.items():
        rate = statistics.median(sum(counts) / SECONDS for counts, _ in rounds)
        least = statistics.median(min(counts) / max(counts) for counts, _ in rounds)
        p99 = statistics.median(waits[len(waits) * 99 // 100] for _, waits in rounds)
        longest = max(waits[-1] for _, waits in rounds)
        print(
            f"{name:24} {rate:6.0f}/s  fewest/most {least:4.2f}"
            f"  wait p99 {p99 * 1e3:5.0f} ms, longest {longest * 1e3:5.0f} ms"
        )


def resident():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def memory():
    """Each in a process of its own."""
    count = 5000

    def kept():
        client = redis.Redis.from_url(URL)
        client.ping()

        def take(n):
            lock = client.lock(f"memory/kept/{n}", timeout=60)
            lock.acquire()
            return lock

        return take

    def renewing():
        client = redis.Redis.from_url(URL, max_connections=10_000)
        client.ping()

        def take(n):
            lock = redis_lock.Lock(client, f"memory/other/{n}", expire=60, auto_renewal=True)
            lock.acquire()
            return lock

        return take

    def ours(url):
        client = leasehold.Client(url, ttl=60)
        return lambda n: client.mutex(f"memory/ours/{n}").lock()

    directory = f"embedded:{tempfile.mkdtemp()}/locks"
    cases = {
        "redis-py, not renewed": (kept, count),
        "python-redis-lock, auto_renewal": (renewing, 500),
        "leasehold, server": (lambda: ours(URL), count),
        "leasehold, embedded": (lambda: ours(directory), count),
    }
    for name, (make, count) in cases.items():
        pid = os.fork()
        if pid == 0:
            take = make()
            held = [take(-1)]
            before = resident()
            held += [take(n) for n in range(count)]
            threads = len(os.listdir("/proc/self/task"))
            each = (resident() - before) / count
            print(f"{name:34} {each / 1000:6.2f} kB each, {threads} threads", flush=True)
            redis.Redis.from_url(URL).flushall()
            os._exit(0)
        os.waitpid(pid, 0)


if given.contended:
    contended()
elif given.memory:
    memory()
else:
    free()
