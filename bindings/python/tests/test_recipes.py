"""The examples run: each as its first lines say, beside a second of its kind."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import psycopg
import pytest
import sqlalchemy
from conftest import HERE, PATIENCE, until

import leasehold
from leasehold import fencing

EXAMPLES = HERE.parent / "examples"


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield EXAMPLES


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=EXAMPLES,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


class Program:
    """One that runs until it is ended, in a group of its own."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=EXAMPLES,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        assert line, self.process.stderr and self.process.stderr.read()
        return line

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def programs() -> Iterator[Any]:
    started: list[Program] = []

    def start(*words: str, **environment: str) -> Program:
        started.append(Program(*words, **environment))
        return started[-1]

    yield start
    for program in started:
        program.end()


def test_celery_tasks(
    redis_url: str, examples: Path, programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that finds its lock held is sent again, and runs when the lock is free."""
    monkeypatch.setenv("LEASEHOLD_STORE", redis_url)
    monkeypatch.setenv("BROKER", redis_url)
    worker = ["-m", "celery", "-A", "celery_tasks", "worker", "--pool", "prefork", "-c", "2"]
    programs(*worker, "--without-gossip", "--without-mingle", "--without-heartbeat")
    tasks = importlib.import_module("celery_tasks")
    with leasehold.Client(redis_url) as client:
        with client.mutex("sync-7", ttl=5).lock():
            busy, free = tasks.sync.delay(7), tasks.sync.delay(8)
            assert free.get(timeout=PATIENCE).startswith("account 8 under fence")
            until(lambda: busy.state == "RETRY")
        assert busy.get(timeout=PATIENCE).startswith("account 7 under fence")


def test_celery_beat(redis_url: str, programs: Any, tmp_path: Path) -> None:
    beats = [
        programs(
            "celery_beat.py",
            "--schedule",
            str(tmp_path / f"schedule{n}"),
            "--pidfile",
            str(tmp_path / f"beat{n}.pid"),
            LEASEHOLD_STORE=redis_url,
            BROKER=redis_url,
        )
        for n in range(2)
    ]
    with leasehold.Client(redis_url) as client:
        first = until(lambda: client.election("celery/beat").leader())
        leads = next(b for b in beats if f"_{b.process.pid}" in first.owner)
        other = next(b for b in beats if b is not leads)
        assert leads.line() == f"leads with fence {first.fence}"
        until(lambda: (it := client.inspect("celery/beat")) and it.waiters)
        assert len(list(tmp_path.glob("*.pid"))) <= 1
        leads.end(signal.SIGINT)
        assert other.line().startswith("leads with fence")
        until(lambda: list(tmp_path.glob("*.pid")))


def test_django_commands(shared_url: str, examples: Path) -> None:
    django = {"DJANGO_SETTINGS_MODULE": "shop.settings", "LEASEHOLD_STORE": shared_url}
    runs = [run("-m", "django", "nightly", **django) for _ in range(2)]
    assert [it.returncode for it in runs] == [0, 0], runs[0].stderr
    assert runs[0].stdout.startswith("written under fence")
    assert runs[1].stdout == "another host has run it\n"
    with leasehold.Client(shared_url) as client:
        assert client.inspect("shop/nightly")
    assert run("-m", "django", "migrate_alone", **django).stdout == "migrated\n"


def test_fastapi(shared_url: str, examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient

    monkeypatch.setenv("LEASEHOLD_STORE", shared_url)
    application = importlib.import_module("fastapi_app").app
    with TestClient(application) as web, leasehold.Client(shared_url) as client:
        answer = web.post("/orders/7/pay")
        assert answer.status_code == 200 and answer.json()["fence"] > 0
        with client.mutex("orders/7").lock():
            assert web.post("/orders/7/pay").status_code == 409
        until(lambda: web.get("/leader").json()["owner"])
    with leasehold.Client(shared_url) as client:
        assert client.election("clean-up").leader() is None


def test_apscheduler(shared_url: str, programs: Any) -> None:
    first = programs("apscheduler_leader.py", LEASEHOLD_STORE=shared_url)
    assert first.line().startswith("leads with fence") and first.line() == "report"
    second = programs("apscheduler_leader.py", LEASEHOLD_STORE=shared_url)
    with leasehold.Client(shared_url) as client:
        until(lambda: client.inspect("scheduler").waiters)  # type: ignore[union-attr]
        first.end(signal.SIGINT)
        assert second.line().startswith("leads with fence") and second.line() == "report"


def test_psycopg_hold(postgres_url: str, examples: Path) -> None:
    recipe = importlib.import_module("psycopg_hold")
    with (
        leasehold.Client(postgres_url) as client,
        psycopg.connect(postgres_url.split("?")[0], autocommit=True) as database,
    ):
        database.execute("DROP TABLE IF EXISTS report")
        database.execute("CREATE TABLE report (written timestamptz DEFAULT now())")
        fence = recipe.write_report(client, database)
        count = database.execute("SELECT count(*) FROM report").fetchone()
        assert count == (1,)
        assert recipe.stale(database, fence) == "LH001"


def test_sqlalchemy_fence(postgres_url: str, examples: Path) -> None:
    recipe = importlib.import_module("sqlalchemy_fence")
    url = postgres_url.split("?")[0].replace("postgres://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS numbers, leasehold_fence")
        connection.exec_driver_sql("CREATE TABLE numbers AS SELECT 0 AS next")
    recipe.make(engine)
    with leasehold.Client("memory:") as client:
        early = client.mutex("numbers").lock()
        stale = early.fence
        early.release()
        assert [recipe.take_number(client, engine) for _ in range(2)] == [1, 2]
        with pytest.raises(fencing.Stale), engine.begin() as connection:
            recipe.next_number(connection, stale)
        assert recipe.take_number(client, engine) == 3
    engine.dispose()


def test_prometheus(memory: leasehold.Client, key: str, examples: Path) -> None:
    importlib.import_module("prometheus_metrics").export(memory)
    value = prometheus_client.REGISTRY.get_sample_value
    with memory.mutex(key).lock():
        assert value("leasehold_locks_held") == 1
        until(lambda: value("leasehold_events_total", {"event": "granted"}) == 1)
    until(lambda: value("leasehold_events_total", {"event": "released"}) == 1)
    assert value("leasehold_locks_held") == 0
