"""Windows for checkpoints: who is about to write asks for one, and goes on without."""

from __future__ import annotations

import threading

import pytest

import stoker.jobs
import stoker.windows as windows

from .conftest import Node

SPEC = "data: {defaults: false}"


@pytest.fixture
def jobs(node: Node) -> stoker.jobs.Jobs:
    return stoker.jobs.connect(dir=node.folder)


def test_who_writes_waits_for_others_and_no_longer_than_they_may(
    jobs: stoker.jobs.Jobs, store: stoker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"storm-{at}" for at in range(6)]
    for name in names:
        jobs.submit(name, spec=SPEC)
    for name in names[:5]:
        assert jobs.window(name)["wait_ms"] == 0
    monkeypatch.setenv("STOKER_JOB", names[5])
    monkeypatch.setenv("STOKER_JOB_TENANT", "default")
    waits: list[float] = []
    given = windows.Window.ask(store, 0, beside=True, sleep=waits.append)
    assert given is not None and 0 < waits[0] <= windows.BESIDE_S
    given.end()
    monkeypatch.setenv("STOKER_WINDOW_S", "0")
    assert windows.Window.ask(store, 1, beside=True, sleep=waits.append) is None and len(waits) == 1
    for name in names:
        jobs.window_end(name)
        jobs.cancel(name)


def test_who_gets_no_window_goes_on(jobs: stoker.jobs.Jobs, store: stoker.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_JOB", raising=False)
    assert windows.Window.ask(store, 1, beside=False) is None, "there is no job"
    monkeypatch.setenv("STOKER_JOB", "nobody-knows-it")
    assert windows.Window.ask(store, 1, beside=False) is None
    monkeypatch.setattr(windows, "ANSWER_S", 0.05)
    never = threading.Event()
    assert windows._answer(lambda: {"wait_ms": never.wait()}) is None, "a cluster that does not answer"
    never.set()
    with pytest.raises(FileNotFoundError):
        jobs.window("nobody-knows-it")
