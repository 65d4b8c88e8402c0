"""Locks with redis-py and python-redis-lock; see ../README.md for the words."""

import json
import math
import sys
import time

import redis
import redis_lock


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


def now_us():
    return time.time_ns() // 1000


class RedisPy:
    """redis-py's own Lock: renewed by hand."""

    def __init__(self, client, key, ttl_ms):
        self.client, self.key, self.ttl = client, key, ttl_ms / 1000
        self.lock = client.lock(key, timeout=self.ttl, thread_local=False)

    def acquire(self, wait):
        return self.lock.acquire(blocking=wait)

    def renew(self):
        try:
            return self.lock.extend(self.ttl, replace_ttl=True)
        except redis.exceptions.LockError:
            return False

    def release(self):
        self.lock.release()

    def force(self):
        self.client.delete(self.key)

    def stored(self):
        return self.client.get(self.key)


class PythonRedisLock:
    """python-redis-lock, with its waiters' list; whole seconds only."""

    def __init__(self, client, key, ttl_ms):
        self.lock = redis_lock.Lock(client, key, expire=max(1, math.ceil(ttl_ms / 1000)))

    def acquire(self, wait):
        return self.lock.acquire(blocking=wait)

    def renew(self):
        try:
            self.lock.extend()
            return True
        except redis_lock.NotAcquired:
            return False

    def release(self):
        self.lock.release()

    def force(self):
        self.lock.reset()

    def stored(self):
        return (self.lock.get_owner_id() or "").encode()


PEERS = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}


def count(make, path, times):
    lock = make(10_000)
    for _ in range(times):
        lock.acquire(True)
        with open(path) as file:
            value = int(file.read())
        time.sleep(0.001)
        with open(path, "w") as file:
            file.write(str(value + 1))
        lock.release()
    say("counted")


def hold(lock, length_ms, ttl_ms):
    lock.acquire(True)
    say("held", us=now_us())
    until = time.monotonic() + length_ms / 1000
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, ttl_ms / 3000))
        if time.monotonic() < until and not lock.renew():
            return say("lost", us=now_us())
    say("releasing", us=now_us())
    lock.release()
    say("released", us=now_us())


def main():
    peer, port, command, key, *rest = sys.argv[1:]
    # Waiters of python-redis-lock wait for a list for longer than the time-out of a socket.
    options = {"host": "127.0.0.1", "port": int(port.split(",")[0]), "socket_timeout": None}
    client = redis.RedisCluster(**options) if "," in port else redis.Redis(**options)

    def make(ttl_ms):
        return PEERS[peer](client, key, ttl_ms)

    if command == "count":
        count(make, rest[0], int(rest[1]))
    elif command == "hold":
        hold(make(int(rest[1])), int(rest[0]), int(rest[1]))
    elif command == "wait":
        lock = make(int(rest[0]))
        say("waiting")
        lock.acquire(True)
        say("held", us=now_us())
        lock.release()
        say("released", us=now_us())
    elif command == "try":
        lock = make(10_000)
        try:
            held = lock.acquire(False)
        except redis.exceptions.ResponseError as error:
            return say("refused", why=str(error))
        say("held" if held else "busy")
        if held:
            lock.release()
    elif command == "take":
        make(int(rest[0])).acquire(True)
        say("held", us=now_us())
    elif command == "force":
        lock = make(10_000)
        say("forcing", us=now_us())
        lock.force()
        say("forced", us=now_us())
    elif command == "meta":
        say("meta", value=(make(10_000).stored() or b"").decode(errors="replace"))
    else:
        raise SystemExit(f"no such command: {command}")


if __name__ == "__main__":
    main()
