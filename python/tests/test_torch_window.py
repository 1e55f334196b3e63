"""Windows for checkpoints: a save of a job asks for one, and goes on without."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402

import stoker.jobs  # noqa: E402
import stoker.torch as st  # noqa: E402

from .conftest import Node  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

SPEC = "data: {defaults: false}"


@pytest.fixture
def jobs(node: Node, monkeypatch: pytest.MonkeyPatch) -> stoker.jobs.Jobs:
    monkeypatch.setenv("STOKER_DIR", str(node.folder))
    return stoker.jobs.connect(dir=node.folder)


def test_a_save_asks_and_says_when_it_is_done(jobs: stoker.jobs.Jobs, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.submit("rhythm", spec=SPEC)
    monkeypatch.setenv("STOKER_JOB", "rhythm")
    state: dict[str, Any] = {"w": torch.ones(1000, 100)}
    for step in range(2):
        dcp.save(state, checkpoint_id=f"stoker://{place}/step-{step}", storage_writer=st.StokerWriter())
    # Two of them are a rhythm, and the second one is over.
    assert jobs.window_end("rhythm")["next_ms"] is not None
    assert jobs.window("rhythm")["wait_ms"] == 0
    jobs.window_end("rhythm")
    jobs.end("rhythm")


def test_a_save_goes_on_without(jobs: stoker.jobs.Jobs, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_JOB", "nobody-knows-it")
    dcp.save({"w": torch.ones(9)}, checkpoint_id=f"stoker://{place}/step", storage_writer=st.StokerWriter())
