"""Windows for checkpoints: a save waits until it is in nobody's way.

With ``STOKER_JOB`` in the environment the coordinator of a save of :mod:`stoker.torch` asks the cluster for a window, waits until it begins and
says when the checkpoint is published. ``dcp.async_save`` waits in torch's own thread while training goes on, for at most five minutes; a save that
training waits for waits at most half a minute. ``STOKER_WINDOW_S`` says another time for both, and ``0`` that nobody asks.

Nothing fails because of it: a cluster that does not answer in time, does not know the job or knows no windows is one without windows.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from .jobs import Jobs
from .store import Store

#: How long a save waits at most that training waits for, and one that it does not wait for.
STANDING_S = 30.0
BESIDE_S = 300.0
#: The cluster answers in this time, or is not waited for.
ANSWER_S = 5.0


class Window:
    """The window of one save."""

    def __init__(self, jobs: Jobs, job: str, size: int) -> None:
        self._jobs, self._job, self._size = jobs, job, size

    @staticmethod
    def ask(store: Store, size: int, *, beside: bool, sleep: Callable[[float], Any] = time.sleep) -> Window | None:
        """Asks for a window and waits until it begins; none if there is no job or the cluster gives none."""
        job = job_of_env()
        within = _within(BESIDE_S if beside else STANDING_S)
        if job is None or within <= 0:
            return None
        jobs = Jobs(store)
        given = _answer(lambda: jobs.window(job, bytes=size, within=within))
        if given is None:
            return None
        sleep(min(max(given["wait_ms"], 0) / 1000, within))
        return Window(jobs, job, size)

    def end(self) -> None:
        """The checkpoint is written: what is left of the window is for others."""
        _answer(lambda: self._jobs.window_end(self._job, bytes=self._size))


def job_of_env() -> str | None:
    """The job that this process works for, with its tenant if that is said."""
    job, tenant = os.environ.get("STOKER_JOB"), os.environ.get("STOKER_JOB_TENANT")
    return None if not job else f"{tenant}/{job}" if tenant else job


def _within(usual: float) -> float:
    try:
        return float(os.environ["STOKER_WINDOW_S"])
    except (KeyError, ValueError):
        return usual


def _answer(call: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """What the cluster answers; none if it does not in time, or refuses."""
    answers: list[dict[str, Any]] = []

    def body() -> None:
        try:
            answers.append(call())
        except Exception:
            # Whatever it is, a checkpoint is worth more than its window.
            pass

    thread = threading.Thread(target=body, name="stoker-window", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return answers[0] if answers else None
