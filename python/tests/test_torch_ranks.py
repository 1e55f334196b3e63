"""Checkpoints of many ranks: real processes, gloo over the loopback."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402

import stoker  # noqa: E402
import stoker.torch as st  # noqa: E402

from .conftest import Node  # noqa: E402

#: For a machine that has much else to do; nothing waits for it to pass.
PATIENCE_S = 240


def _rank(work: Callable[..., None], folder: str, port: int, world: int, rank: int, args: tuple[Any, ...]) -> None:
    os.environ["STOKER_DIR"] = folder
    torch.set_num_threads(1)
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=where, world_size=world, rank=rank, timeout=timedelta(seconds=120))
    work(rank, *args)
    dist.destroy_process_group()


def run(node: Node, world: int, work: Callable[..., None], *args: Any) -> list[int | None]:
    """Runs a function in as many processes; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    ranks = [
        spawn.Process(target=_rank, args=(work, str(node.folder), port, world, rank, args)) for rank in range(world)
    ]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(PATIENCE_S)
    codes = [one.exitcode for one in ranks]
    for one in ranks:
        if one.is_alive():
            one.kill()
            one.join()
    return codes


def _whole() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(7)
    return {
        "rows": torch.randn(257, 64, generator=made),  # not the same for all ranks
        "columns": torch.randn(64, 130, generator=made),
        "all": torch.randn(50, generator=made),
        "few": torch.randn(3, 5, generator=made).to(torch.bfloat16),  # less than there are ranks
    }


_PLACES = {"rows": Shard(0), "columns": Shard(1), "all": Replicate(), "few": Shard(0)}


def _spread(whole: dict[str, torch.Tensor], places: dict[str, Any]) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {name: distribute_tensor(one, mesh, [places[name]]) for name, one in whole.items()}


def _save(rank: int, path: str, mode: Any, auto: bool) -> None:
    state = {"model": _spread(_whole(), _PLACES), "step": 1000}
    if auto:
        dcp.save(state, checkpoint_id=path)
        return
    with st.StokerWriter(mode=mode) as writer:
        dcp.save(state, checkpoint_id=path, storage_writer=writer)
        receipt = writer.wait()
        assert receipt.shards == dist.get_world_size() + 1 and receipt.copies == 1
        assert receipt.shard.key.endswith(f"__{rank}_0.distcp")


def _load(rank: int, path: str, auto: bool) -> None:
    whole = _whole()
    # Divided by another number, and the other way round.
    places = {**_PLACES, "rows": Shard(1), "columns": Shard(0)}
    state = {"model": _spread({name: torch.zeros_like(one) for name, one in whole.items()}, places), "step": 0}
    if auto:
        dcp.load(state, checkpoint_id=path)
    else:
        dcp.load(state, checkpoint_id=path, storage_reader=st.StokerReader())
    assert state["step"] == 1000
    for name, one in whole.items():
        found = state["model"][name]
        assert isinstance(found, DTensor) and torch.equal(found.full_tensor(), one), name


@pytest.mark.parametrize(("mode", "auto"), [("stream", False), ("snapshot", False), ("stream", True)])
def test_four_save_and_two_load(store: stoker.Store, node: Node, place: str, mode: str, auto: bool) -> None:
    path = f"stoker://{place}/step-1000"
    assert run(node, 4, _save, path, mode, auto) == [0] * 4
    found = store.find_set(path)
    assert found is not None and found.state == "published" and found.shards == 5
    assert run(node, 2, _load, path, auto) == [0] * 2


class _Dies(DefaultSavePlanner):
    """The process ends as if its power had gone, with a part of its shard written."""

    asked = 0

    def resolve_data(self, write_item: Any) -> Any:
        self.asked += 1
        if self.asked > 1 and dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().resolve_data(write_item)


def _save_and_die(rank: int, before: str, path: str) -> None:
    state = {"model": _spread(_whole(), _PLACES)}
    writer = st.StokerWriter()
    dcp.save(state, checkpoint_id=before, storage_writer=writer)
    dcp.save(state, checkpoint_id=path, storage_writer=writer, planner=_Dies())


def test_a_rank_that_is_killed(store: stoker.Store, node: Node, place: str) -> None:
    before, path = f"stoker://{place}/step-1", f"stoker://{place}/step-2"
    codes = run(node, 4, _save_and_die, before, path)
    assert codes[2] == -signal.SIGKILL and codes[0] != 0, codes
    assert st.latest(f"{place}/", store=store) == before + "/"
    assert list(store.list(path)) == []
    told = st.status(path, store=store)
    assert told is not None and told.state == "open"
    assert told.laggards == ("rank 2", "metadata")
    assert "missing: rank 2, metadata" in str(told)
    with pytest.raises(FileNotFoundError, match=f"rank 2.*the latest one .* is {before}/"):
        st.StokerReader(path, store=store).read_metadata()
    # The run begins again and comes to the same step.
    assert run(node, 2, _save_again, path) == [0] * 2
    assert st.latest(f"{place}/", store=store) == path + "/"


def _save_again(rank: int, path: str) -> None:
    dcp.save({"model": _spread(_whole(), _PLACES)}, checkpoint_id=path, storage_writer=st.StokerWriter())


def _async(rank: int, path: str) -> None:
    state = {"model": _spread(_whole(), _PLACES), "step": 1000}
    writer = st.StokerWriter(mode="snapshot")
    dcp.async_save(state, checkpoint_id=path, storage_writer=writer).result(PATIENCE_S)
    assert writer.wait().shards == 3


def test_async_save_of_two(store: stoker.Store, node: Node, place: str) -> None:
    path = f"stoker://{place}/step-1000"
    assert run(node, 2, _async, path) == [0] * 2
    assert run(node, 1, _load, path, False) == [0]


def _one_fails(rank: int, path: str) -> None:
    """A rank whose drive is full, say: all of them hear of it from their receipts."""
    writer = st.StokerWriter(mode="snapshot")
    dcp.save({"model": _spread(_whole(), _PLACES)}, checkpoint_id=path, storage_writer=writer, planner=_Waits(path))
    with pytest.raises(OSError, match="step-1"):
        writer.wait()


class _Waits(DefaultSavePlanner):
    """Gives the set up while the shards are on their way."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def resolve_data(self, write_item: Any) -> Any:
        if dist.get_rank() == 1:
            found = stoker.connect().find_set(self.path)
            if found is not None and found.state == "open":
                found.abort()
        return super().resolve_data(write_item)


def test_a_snapshot_that_was_given_up(store: stoker.Store, node: Node, place: str) -> None:
    path = f"stoker://{place}/step-1"
    assert run(node, 2, _one_fails, path) == [0] * 2
    assert st.latest(f"{place}/", store=store) is None
    told = st.status(path, store=store)
    assert told is not None and told.state == "aborted"
