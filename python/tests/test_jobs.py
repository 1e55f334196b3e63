"""Jobs in Python, against a real node."""

from __future__ import annotations

import pytest

import stoker
import stoker.jobs

from .conftest import Node


@pytest.fixture
def jobs(node: Node) -> stoker.jobs.Jobs:
    return stoker.jobs.connect(dir=node.folder)


def test_a_job_from_its_spec_to_its_end(node: Node, jobs: stoker.jobs.Jobs) -> None:
    store = stoker.connect(dir=node.folder)
    store.write("data/set/a", bytes(100_000))
    spec = {
        "name": "py",
        "data": {"mounts": [{"source": "s3://data/set", "target": "/in"}], "output": "s3://data/out/{allocation_id}"},
    }
    made = jobs.submit("py-1", spec=spec, user="alice", again="once")
    assert (made["state"], made["name"]) == ("queued", "py")
    assert jobs.submit("py-1", spec=spec, again="once")["id"] == "py-1"
    with pytest.raises(stoker.ConflictError):
        jobs.submit("py-1", spec=spec)
    ready = jobs.wait("py-1", timeout=60)
    assert (ready["readiness"], ready["bytes"]) == (1.0, 100_000)
    assert jobs.readiness("py-1")["share"] == 1.0
    assert jobs.start("py-1", nodes=["here"])["nodes"] == ["here"]
    assert store.exists("data/out/py-1/")
    jobs.end("py-1")
    assert jobs.wait("py-1", until="over", timeout=60)["state"] == "done"
    assert "py-1" in [job["id"] for job in jobs.list(all=True)]


def test_what_is_wrong_is_said(jobs: stoker.jobs.Jobs) -> None:
    with pytest.raises(ValueError, match="line 2, column 3: `data` has no field `mount`"):
        jobs.submit("x", spec="data:\n  mount: []")
    with pytest.raises(FileNotFoundError):
        jobs.submit("x", spec="data: {mounts: [{source: 's3://data/none', target: /in}]}")
    jobs.submit("gone", spec="data: {defaults: false}")
    jobs.cancel("gone", reason="enough")
    with pytest.raises(RuntimeError, match="cancelled: enough"):
        jobs.wait("gone", until="running")
