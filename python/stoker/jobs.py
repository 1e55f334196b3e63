"""Jobs: the data is there before the job is.

>>> import stoker.jobs
>>> jobs = stoker.jobs.connect()
>>> job = jobs.submit("train-7", spec={"data": {"mounts": [{"source": "s3://data/imagenet", "target": "/data/input"}]}})
>>> jobs.wait("train-7", until="ready", timeout=600)["readiness"]
1.0
>>> jobs.end("train-7")["state"]
'done'

``docs/jobs.md`` says what a spec takes and what the states mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from . import _stoker
from .connecting import connect as connect_store
from .store import Store

Job = dict[str, Any]
Until = Literal["ready", "running", "over"]

_OVER = ("done", "failed", "cancelled")
_PAGE = 500

__all__ = ["Job", "Jobs", "connect"]


class Jobs:
    """Jobs of a cluster, for a scheduler or a script. A job is named by its id, or by ``TENANT/ID``."""

    def __init__(self, store: Store) -> None:
        self._client = store._client

    def submit(
        self,
        id: str,
        *,
        spec: str | Mapping[str, Any] = "",
        name: str | None = None,
        project: str | None = None,
        owner: str | None = None,
        user: str | None = None,
        expected_start: float | None = None,
        again: str | None = None,
    ) -> Job:
        """Submits a job; ``spec`` is YAML, JSON or a mapping. ``expected_start`` is in seconds since 1970; asked again with the
        same ``again``, the answer is the job that is there. Raises ``ValueError`` with line and column for a wrong spec."""
        read = json.loads(_stoker.job_spec(spec if isinstance(spec, str) else json.dumps(spec)))
        order = {
            "id": id,
            "name": name or read["name"] or "",
            "project": project or read["project"],
            "owner": _owner(owner),
            "user": user,
            "expected_start_ms": None if expected_start is None else int(expected_start * 1000),
            "notes": [],
            "again": again,
            "spec": read["spec"],
        }
        return self._job({"Submit": order})

    def show(self, job: str) -> Job:
        """A job: state, data, and how it came there."""
        return self._job({"Show": _name(job)})

    def list(self, *, state: str | None = None, all: bool = False, tenant: str | None = None) -> Iterator[Job]:
        """Jobs by tenant and id; with those that are over if ``all``."""
        after = None
        while True:
            order = {"tenant": tenant, "state": state, "with_over": all, "after": after, "limit": _PAGE}
            page = self._ask({"List": order})["Jobs"]
            yield from (_shown(job) for job in page["jobs"])
            if not page["more"] or not page["jobs"]:
                return
            last = page["jobs"][-1]
            after = {"tenant": last["tenant"], "id": last["id"]}

    def wait(self, job: str, *, until: Until = "ready", timeout: float | None = None) -> Job:
        """Waits until a job is ready, runs or is over. Raises ``TimeoutError``, or ``RuntimeError`` if it never will be."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            shown = self.show(job)
            state = shown["state"]
            wanted = {"ready": ("ready", "running"), "running": ("running",), "over": _OVER}[until]
            if state in wanted:
                return shown
            if state in _OVER or (state == "draining" and until != "over"):
                raise RuntimeError(f"job {job} is {state}: {shown['reason']}")
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"job {job} is {state} after {timeout} s: {shown['reason']}")
            time.sleep(0.2)

    def start(self, job: str, *, nodes: Sequence[str] = ()) -> Job:
        """Says that a job starts, on these nodes; its output directory is made."""
        return self._job({"Start": {"job": _name(job), "nodes": [*nodes]}})

    def end(self, job: str, *, failed: bool = False, reason: str = "") -> Job:
        """Says that a job is over: its data is let go and its output drained."""
        return self._job({"End": {"job": _name(job), "end": "Failed" if failed else "Done", "reason": reason}})

    def cancel(self, job: str, *, reason: str = "") -> Job:
        """Cancels a job; what is staged for it is let go."""
        return self._job({"Cancel": {"job": _name(job), "reason": reason}})

    def expect(self, job: str, start: float) -> Job:
        """Says when a job is expected to start, in seconds since 1970; renews its reservation."""
        return self._job({"Expect": {"job": _name(job), "start_ms": int(start * 1000)}})

    def readiness(self, job: str, *, nodes: Sequence[str] = ()) -> dict[str, Any]:
        """How ready nodes are for a job, by what their drives hold now: ``share``, and bytes of each node."""
        found: dict[str, Any] = self._ask({"Readiness": {"job": _name(job), "nodes": [*nodes]}})["Readiness"]
        return found

    def window(self, job: str, *, bytes: int = 0, within: float | None = None, ahead: float = 0.0) -> dict[str, Any]:
        """A job is about to write a checkpoint of so many bytes, or will in ``ahead`` seconds. Gives ``wait_ms``: when it is in nobody's
        way; at most ``within`` seconds. It is advice, and :meth:`window_end` says that it wrote."""
        wait_ms_max = None if within is None else int(within * 1000)
        ask = {"bytes": bytes, "in_ms": int(ahead * 1000), "wait_ms_max": wait_ms_max}
        given: dict[str, Any] = self._ask({"Window": {"job": _name(job), "ask": ask}})["Window"]
        return given

    def window_end(self, job: str, *, bytes: int = 0) -> dict[str, Any]:
        """A job wrote its checkpoint. Gives ``next_ms``: when the next one is due, by its rhythm."""
        given: dict[str, Any] = self._ask({"WindowEnd": {"job": _name(job), "bytes": bytes}})["Window"]
        return given

    def _job(self, order: Mapping[str, Any]) -> Job:
        return _shown(self._ask(order)["Job"])

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._client.job(json.dumps(order)))
        return answer


def connect(*args: Any, **options: Any) -> Jobs:
    """Connects as :func:`stoker.connect` does."""
    return Jobs(connect_store(*args, **options))


def _name(text: str) -> dict[str, str | None]:
    tenant, slash, id = text.partition("/")
    return {"tenant": tenant, "id": id} if slash else {"tenant": None, "id": text}


def _owner(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    tenant, slash, user = text.partition("/")
    return {"tenant": tenant, "user": user} if slash else {"tenant": "default", "user": text}


def _shown(job: Job) -> Job:
    hot = [source for source in job["sources"] if source["tier_hint"] == "hot"]
    bytes, here = (sum(source[name] for source in hot) for name in ("bytes", "resident_bytes"))
    counted = all(source["is_counted"] for source in hot)
    ready = None if not counted else min(here, bytes) / bytes if bytes else 1.0
    return {**job, "readiness": ready, "bytes": bytes, "resident_bytes": here}
