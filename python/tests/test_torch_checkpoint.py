"""Checkpoints of one process: what is saved is loaded, and what goes wrong is said."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner  # noqa: E402

import stoker  # noqa: E402
import stoker.torch as st  # noqa: E402
from stoker.torch.shard import WAITING_MAX  # noqa: E402
from stoker.torch.staging import Staging  # noqa: E402

from .conftest import Node, program  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(autouse=True)
def here(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_DIR", str(node.folder))


def state(seed: int = 1) -> dict[str, Any]:
    """All kinds of things that a state may have."""
    made = torch.Generator().manual_seed(seed)
    return {
        "model": {"w": torch.randn(300, 1000, generator=made), "b": torch.randn(7, generator=made).to(torch.bfloat16)},
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 4),
        "turned": torch.randn(500, 60, generator=made).t(),
        "strided": torch.randn(64, 64, generator=made)[::2, 1::3],
        "bool": torch.rand(100, generator=made) > 0.5,
        "int": torch.randint(-9, 9, (3, 3), generator=made),
        "conj": torch.randn(4, dtype=torch.complex64, generator=made).conj(),
        "half": torch.randn(33, generator=made).to(torch.float8_e4m3fn),
        "sparse": torch.eye(4).to_sparse(),
        "lr": 0.1 * seed,
        "name": f"run {seed}",
    }


def empty(like: Any) -> Any:
    if isinstance(like, dict):
        return {name: empty(one) for name, one in like.items()}
    if isinstance(like, torch.Tensor):
        return like.clone() * 0 if like.is_sparse else torch.zeros(like.shape, dtype=like.dtype)
    return type(like)()


def same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape
        if one.is_sparse:
            one, other = one.to_dense(), other.to_dense()
        if one.dtype == torch.float8_e4m3fn:
            one, other = one.view(torch.uint8), other.view(torch.uint8)
        assert torch.equal(one, other)
    else:
        assert one == other


def dense(whole: dict[str, Any]) -> dict[str, Any]:
    # torch's own planner has no place for sparse tensors to be loaded into.
    return {name: one for name, one in whole.items() if name != "sparse"}


@pytest.mark.parametrize("mode", ["stream", "snapshot"])
def test_what_is_saved_is_loaded(store: stoker.Store, place: str, mode: Any) -> None:
    wanted = dense(state())
    with st.StokerWriter(store=store, mode=mode) as writer:
        dcp.save(wanted, checkpoint_id=f"stoker://{place}/step-1", storage_writer=writer)
        receipt = writer.wait()
    assert receipt.copies == 1 and len(receipt.nodes) == 1 and len(receipt.drives) == 1
    assert receipt.shards == 2 and len(receipt.files()) == 2
    assert receipt.bytes == sum(one.size for one in receipt.files())
    found = empty(wanted)
    dcp.load(found, checkpoint_id=f"stoker://{place}/step-1", storage_reader=st.StokerReader(store=store))
    same(found, wanted)
    assert st.latest(f"{place}/") == f"stoker://{place}/step-1/"
    told = st.status(f"{place}/step-1")
    assert told is not None and (told.state, told.laggards) == ("published", ())


def test_a_snapshot_is_as_of_the_call(store: stoker.Store, place: str) -> None:
    tensor = torch.zeros(1 << 20)
    writer = st.StokerWriter(store=store, mode="snapshot")
    writer.prepare(tensor.nbytes + (64 << 10))
    held = writer.staging.capacity
    for step in range(4):
        tensor.fill_(step)
        dcp.save({"x": tensor}, checkpoint_id=f"stoker://{place}/step-{step}", storage_writer=writer)
        tensor.fill_(-1)
    writer.wait()
    assert tensor.nbytes <= held < tensor.nbytes + (1 << 20)
    assert writer.staging.capacity == held, "used again and not made larger"
    for step in range(4):
        found = {"x": torch.zeros(1 << 20)}
        dcp.load(found, checkpoint_id=f"stoker://{place}/step-{step}", storage_reader=st.StokerReader(store=store))
        assert bool((found["x"] == step).all())


@pytest.mark.parametrize("mode", ["stream", "snapshot"])
def test_less_staging_than_shard(store: stoker.Store, place: str, mode: Any) -> None:
    # Turned, so that `stream` has to copy, too; and a row is longer than what is copied at once.
    wanted = {"a": torch.randn(1 << 19, 6).t(), "b": torch.randn(1000, 1000)}
    writer = st.StokerWriter(store=store, mode=mode, staging_bytes=1 << 20)
    dcp.save(wanted, checkpoint_id=f"stoker://{place}/step-1", storage_writer=writer)
    writer.wait()
    assert writer.staging.capacity == 1 << 20 and 0 < writer.staging.peak_bytes <= 1 << 20
    found = empty(wanted)
    dcp.load(found, checkpoint_id=f"stoker://{place}/step-1", storage_reader=st.StokerReader(store=store))
    same(found, wanted)


def test_a_snapshot_of_more_pieces_than_may_wait(store: stoker.Store, place: str) -> None:
    wanted = {f"t{number}": torch.full((3,), float(number)) for number in range(WAITING_MAX // 2)}
    writer = st.StokerWriter(store=store, mode="snapshot")
    dcp.save(wanted, checkpoint_id=f"stoker://{place}/step-1", storage_writer=writer)
    writer.wait()
    found = empty(wanted)
    dcp.load(found, checkpoint_id=f"stoker://{place}/step-1", storage_reader=st.StokerReader(store=store))
    same(found, wanted)


MEMORY = """
import resource, sys, torch
import torch.distributed.checkpoint as dcp
import stoker.torch
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
writer = stoker.torch.StokerWriter(mode="stream", staging_bytes=8 << 20)
dcp.save({"warm": torch.ones(1 << 22)}, checkpoint_id=sys.argv[1] + "-warm", storage_writer=writer)
state = {f"t{one}": torch.ones(1 << 11, 1 << 11).t() for one in range(6)}  # 96 MiB that have to be copied
before = peak()
dcp.save(state, checkpoint_id=sys.argv[1], storage_writer=writer)
print(peak() - before, writer.staging.capacity)
"""


def test_stream_holds_little(store: stoker.Store, place: str) -> None:
    """In a process of its own: the most memory that it ever had, before and after."""
    args = [sys.executable, "-W", "ignore", "-c", MEMORY, f"stoker://{place}/step-1"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    more, held = map(int, done.stdout.split())
    assert held <= 8 << 20
    assert more <= (8 << 20) + (24 << 20), "staging, and what the client has under way"
    store.remove(*(one.path for one in store.list(place, recursive=True)))


def test_stream_has_a_bound() -> None:
    with pytest.raises(ValueError, match="at most 536870912"):
        st.StokerWriter(mode="stream", staging_bytes=1 << 30)
    with pytest.raises(ValueError, match="1 MiB"):
        st.StokerWriter(mode="snapshot", staging_bytes=1000)
    with pytest.raises(ValueError, match="snapshot"):
        st.StokerWriter(mode="copy")  # type: ignore[arg-type]


def test_torch_reads_the_files_without_us(store: stoker.Store, place: str, tmp_path: Path) -> None:
    wanted = dense(state())
    dcp.save(wanted, checkpoint_id=f"stoker://{place}/step-1", storage_writer=st.StokerWriter(store=store))
    for one in store.list(f"{place}/step-1"):
        (tmp_path / one.name).write_bytes(store.read(one.path))
    found = empty(wanted)
    dcp.load(found, checkpoint_id=tmp_path)
    same(found, wanted)


def test_what_torch_wrote_is_read(store: stoker.Store, place: str, tmp_path: Path) -> None:
    wanted = dense(state())
    dcp.save(wanted, checkpoint_id=tmp_path)
    for one in tmp_path.iterdir():
        store.write(f"{place}/step-1/{one.name}", one.read_bytes())
    found = empty(wanted)
    dcp.load(found, checkpoint_id=f"stoker://{place}/step-1")
    same(found, wanted)


def test_a_sparse_tensor_is_left_to_torch(store: stoker.Store, place: str) -> None:
    wanted = {"sparse": state()["sparse"], "w": torch.randn(5)}
    dcp.save({"all": wanted}, checkpoint_id=f"stoker://{place}/step-1", storage_writer=st.StokerWriter(store=store),
             planner=DefaultSavePlanner(flatten_state_dict=False))
    assert st.latest(f"{place}/") is not None


AUTO = """
import sys, torch
import torch.distributed.checkpoint as dcp
import fsspec
# As the installed package says it by its entry point.
fsspec.register_implementation("stoker", "stoker.fs.StokerFileSystem")
assert "stoker" not in sys.modules
state = {"w": torch.arange(10.0)}
dcp.save(state, checkpoint_id=sys.argv[1])
found = {"w": torch.zeros(10)}
dcp.load(found, checkpoint_id=sys.argv[1])
assert torch.equal(found["w"], state["w"])
"""


def test_without_a_writer_it_is_a_set_as_well(store: stoker.Store, place: str) -> None:
    args = [sys.executable, "-W", "ignore", "-c", AUTO, f"stoker://{place}/step-1"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    found = store.find_set(f"{place}/step-1")
    assert found is not None and found.state == "published" and found.shards == 2


def test_torchs_own_writer_over_fsspec(store: stoker.Store, place: str, node: Node) -> None:
    """What is there without the hook: nothing unfinished has metadata."""
    args = [sys.executable, "-W", "ignore", "-c", AUTO, f"stoker://{place}/step-1"]
    environ = {**os.environ, "STOKER_TORCH_HOOK": "0"}
    done = subprocess.run(args, capture_output=True, text=True, timeout=240, env=environ, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert store.find_set(f"{place}/step-1") is None
    assert {one.name for one in store.list(f"{place}/step-1") if one.name} >= {".metadata", "__0_0.distcp"}
    found = {"w": torch.zeros(10)}
    dcp.load(found, checkpoint_id=f"stoker://{place}/step-1", storage_reader=st.StokerReader(store=store))
    assert torch.equal(found["w"], torch.arange(10.0))


def test_async_save(store: stoker.Store, place: str) -> None:
    tensor = torch.zeros(1 << 18)
    writer = st.StokerWriter(store=store, mode="snapshot")
    under_way = []
    for step in range(3):
        tensor.fill_(step)
        under_way.append(dcp.async_save({"x": tensor}, checkpoint_id=f"stoker://{place}/step-{step}", storage_writer=writer))
        if step != 1:  # one of them is not waited for: the next one does
            under_way[-1].result(120)
        tensor.fill_(-1)
    for one in under_way:
        one.result(120)
    assert writer.wait().path == f"stoker://{place}/step-2/"
    assert writer.staging.peak_bytes < 64 << 10, "not copied a second time"
    for step in range(3):
        found = {"x": torch.zeros(1 << 18)}
        dcp.load(found, checkpoint_id=f"stoker://{place}/step-{step}", storage_reader=st.StokerReader(store=store))
        assert bool((found["x"] == step).all())
    with pytest.raises(ValueError, match="snapshot"):
        dcp.async_save({"x": tensor}, checkpoint_id=f"stoker://{place}/no", storage_writer=st.StokerWriter(store=store))


def test_async_save_without_a_writer(store: stoker.Store, place: str) -> None:
    dcp.async_save({"x": torch.ones(5)}, checkpoint_id=f"stoker://{place}/step-1").result(120)
    assert st.latest(f"{place}/") == f"stoker://{place}/step-1/"


def test_a_planner_that_caches(store: stoker.Store, place: str) -> None:
    writer = st.StokerWriter(store=store)
    for step in range(3):
        wanted = {"x": torch.full((4,), float(step))}
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(wanted, checkpoint_id=f"stoker://{place}/step-{step}", storage_writer=writer, planner=planner)
        found = {"x": torch.zeros(4)}
        dcp.load(found, checkpoint_id=f"stoker://{place}/step-{step}", storage_reader=st.StokerReader(store=store))
        assert torch.equal(found["x"], wanted["x"])


# What goes wrong


class _Breaks(DefaultSavePlanner):
    """Ends in the middle."""

    def resolve_data(self, write_item: Any) -> Any:
        if write_item.index.fqn == "b":
            raise RuntimeError("the GPU fell off the bus")
        return super().resolve_data(write_item)


@pytest.mark.parametrize("mode", ["stream", "snapshot"])
def test_a_save_that_fails_shows_nothing_and_can_be_repeated(store: stoker.Store, place: str, mode: Any) -> None:
    wanted = {"a": torch.ones(100), "b": torch.ones(100)}
    writer = st.StokerWriter(store=store, mode=mode)
    dcp.save(wanted, checkpoint_id=f"stoker://{place}/step-1", storage_writer=writer)
    writer.wait()
    with pytest.raises(CheckpointException, match="fell off the bus"):
        dcp.save(wanted, checkpoint_id=f"stoker://{place}/step-2", storage_writer=writer, planner=_Breaks())
    assert st.latest(f"{place}/") == f"stoker://{place}/step-1/"
    assert list(store.list(f"{place}/step-2")) == []
    (told,) = st.incomplete(f"{place}/")
    assert told.laggards == ("rank 0", "metadata")
    dcp.save(wanted, checkpoint_id=f"stoker://{place}/step-2", storage_writer=writer)
    writer.wait()
    assert st.latest(f"{place}/") == f"stoker://{place}/step-2/"


def test_what_another_process_left_is_taken_over(store: stoker.Store, place: str) -> None:
    store.begin_set(f"{place}/step-1", shards=3, owner="a node that burned down")
    careful = st.StokerWriter(store=store, takeover=False)
    with pytest.raises(CheckpointException, match="missing: rank 0, rank 1, metadata"):
        dcp.save({"x": torch.ones(2)}, checkpoint_id=f"stoker://{place}/step-1", storage_writer=careful)
    with pytest.warns(RuntimeWarning, match="burned down"):
        dcp.save({"x": torch.ones(2)}, checkpoint_id=f"stoker://{place}/step-1", storage_writer=st.StokerWriter(store=store))
    assert st.latest(f"{place}/") == f"stoker://{place}/step-1/"


def test_a_checkpoint_is_not_overwritten(store: stoker.Store, place: str) -> None:
    dcp.save({"x": torch.ones(2)}, checkpoint_id=f"stoker://{place}/step-1")
    with pytest.raises(CheckpointException, match="overwrite=True"):
        dcp.save({"x": torch.zeros(2)}, checkpoint_id=f"stoker://{place}/step-1")


@pytest.mark.parametrize("mode", ["stream", "snapshot"])
def test_a_checkpoint_is_replaced_when_that_is_wanted(store: stoker.Store, place: str, mode: Any) -> None:
    # A run that goes on from step 1 comes to step 2 a second time.
    store.write(f"{place}/other", b"not a checkpoint")
    writer = st.StokerWriter(store=store, mode=mode, overwrite=True, keep_last=2)
    for step, value in [(1, 1.0), (2, 2.0), (2, 20.0), (3, 30.0), (3, 31.0)]:
        path = f"stoker://{place}/step-{step}"
        dcp.save({"x": torch.full((1000,), value)}, checkpoint_id=path, storage_writer=writer)
        receipt = writer.wait()
        assert receipt.path == f"{path}/" and st.latest(f"{place}/") == f"{path}/"
        found = {"x": torch.zeros(1000)}
        dcp.load(found, checkpoint_id=path, storage_reader=st.StokerReader(store=store))
        assert bool((found["x"] == value).all())
    writer.close()
    # Two of one name count once.
    assert [one.name for one in store.list(place)] == ["other", "step-2", "step-3"]
    found = {"x": torch.zeros(1000)}
    dcp.load(found, checkpoint_id=f"stoker://{place}/step-2", storage_reader=st.StokerReader(store=store))
    assert bool((found["x"] == 20).all())


def test_one_that_fails_replaces_nothing(store: stoker.Store, place: str) -> None:
    path = f"stoker://{place}/step-1"
    dcp.save({"x": torch.ones(9)}, checkpoint_id=path)
    late = st.StokerWriter(store=store, deadline=1, overwrite=True)
    with pytest.raises(CheckpointException, match="given up at its deadline"):
        planner = _Late(f"stoker://{place}/.step-1.overwrite")
        dcp.save({"x": torch.zeros(9)}, checkpoint_id=path, storage_writer=late, planner=planner)
    found = {"x": torch.zeros(9)}
    dcp.load(found, checkpoint_id=path, storage_reader=st.StokerReader(store=store))
    assert bool((found["x"] == 1).all()) and st.latest(f"{place}/") == f"{path}/"


class _Late(DefaultSavePlanner):
    """Has its data when it is too late."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def resolve_data(self, write_item: Any) -> Any:
        while (told := st.status(self.path)) is None or told.state == "open":
            time.sleep(0.05)
        return super().resolve_data(write_item)


@pytest.mark.parametrize("mode", ["stream", "snapshot"])
def test_the_deadline(store: stoker.Store, place: str, mode: Any) -> None:
    path = f"stoker://{place}/step-1"
    writer = st.StokerWriter(store=store, deadline=1, mode=mode)
    with pytest.raises((CheckpointException, OSError), match="given up at its deadline"):
        dcp.save({"x": torch.ones(2)}, checkpoint_id=path, storage_writer=writer, planner=_Late(path))
        writer.wait()
    with pytest.raises(FileNotFoundError, match="given up at its deadline"):
        st.StokerReader(path, store=store).read_metadata()


@pytest.mark.parametrize("mode", ["stream", "snapshot"])
def test_a_volume_that_is_full(store: stoker.Store, node: Node, mode: Any) -> None:
    """The side that copies waits for room when the side that writes fails; both end."""
    _volume(node, f"small-{mode}", "--quota", "3MiB")
    writer = st.StokerWriter(store=store, mode=mode, staging_bytes=1 << 20)
    wanted = {f"t{one}": torch.ones(1 << 9, 1 << 9).t() for one in range(12)}
    with pytest.raises((CheckpointException, OSError), match="(?i)quota"):
        dcp.save(wanted, checkpoint_id=f"stoker://small-{mode}/step-1", storage_writer=writer)
        writer.wait()
    assert store.latest(f"small-{mode}/") is None
    # The same writer and its memory are fit for the next one.
    dcp.save({"x": torch.ones(8)}, checkpoint_id=f"stoker://small-{mode}/step-2", storage_writer=writer)
    assert writer.wait().path == f"stoker://small-{mode}/step-2/"


def test_a_failed_snapshot_that_nobody_waited_for_is_told(store: stoker.Store, place: str) -> None:
    class GivesUp(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            found = store.find_set(f"{place}/step-1")
            assert found is not None
            found.abort()
            return super().resolve_data(write_item)

    writer = st.StokerWriter(store=store, mode="snapshot")
    dcp.save({"x": torch.ones(8)}, checkpoint_id=f"stoker://{place}/step-1", storage_writer=writer, planner=GivesUp())
    with pytest.warns(RuntimeWarning, match="the save before this one failed.*step-1"):
        dcp.save({"x": torch.ones(8)}, checkpoint_id=f"stoker://{place}/step-2", storage_writer=writer)
    assert writer.wait().path == f"stoker://{place}/step-2/"


def test_a_rank_that_never_writes_is_named(store: stoker.Store, place: str) -> None:
    class OneMore(st.StokerWriter):
        def _begin(self, ranks: int) -> Any:
            return super()._begin(ranks + 1)

    writer = OneMore(store=store, mode="snapshot")
    dcp.save({"x": torch.ones(8)}, checkpoint_id=f"stoker://{place}/step-1", storage_writer=writer)
    with pytest.raises(TimeoutError, match="step-1.*missing: .*rank 1"):
        writer.wait(timeout=0.01)
    found = store.find_set(f"{place}/step-1")
    assert found is not None
    found.abort()
    with pytest.raises(OSError, match="was given up"):
        writer.wait()


def test_a_writer_stays_in_its_process() -> None:
    with pytest.raises(TypeError, match="AsyncCheckpointerType.THREAD"):
        pickle.dumps(st.StokerWriter())


def test_names_that_are_not_there(store: stoker.Store, place: str) -> None:
    some = {"x": torch.ones(2)}
    with pytest.raises(CheckpointException, match="no volume 'nowhere'.*stoker volume create nowhere"):
        dcp.save(some, checkpoint_id="stoker://nowhere/step-1")
    with pytest.raises(CheckpointException, match="no volume 'nowhere'"):
        dcp.load(some, checkpoint_id="stoker://nowhere/step-1")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        st.latest("stoker://nowhere/")
    dcp.save(some, checkpoint_id=f"stoker://{place}/step-1")
    with pytest.raises(FileNotFoundError, match=f"no checkpoint of this name; the latest one .* stoker://{place}/step-1/"):
        st.StokerReader(f"{place}/step-7", store=store).read_metadata()
    with pytest.raises(ValueError, match="give the path"):
        st.StokerReader(store=store).read_metadata()


def test_a_shard_that_somebody_deleted_is_named(store: stoker.Store, place: str) -> None:
    dcp.save({"x": torch.ones(2)}, checkpoint_id=f"stoker://{place}/step-1")
    store.remove(f"{place}/step-1/__0_0.distcp")
    with pytest.raises(CheckpointException, match="lacks 1 of 1 shards: __0_0.distcp"):
        dcp.load({"x": torch.ones(2)}, checkpoint_id=f"stoker://{place}/step-1")


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


def test_metadata_that_runs_things_is_refused(store: stoker.Store, place: str) -> None:
    store.write(f"{place}/step-1/.metadata", pickle.dumps(_Evil()))
    reader = st.StokerReader(f"{place}/step-1", store=store)
    with pytest.raises(ValueError, match="system, which metadata has no use for"):
        reader.read_metadata()
    assert not Path("evil").exists()
    for data in (b"", b"\x80", b"cbuiltins\nlist\n.", pickle.dumps(3)):
        store.write(f"{place}/step-1/.metadata", data)
        with pytest.raises(ValueError, match="step-1"):
            reader.read_metadata()


def test_metadata_of_other_shards_is_refused(store: stoker.Store, place: str) -> None:
    path = f"stoker://{place}/step-1"
    dcp.save({"x": torch.ones(1000)}, checkpoint_id=path)
    metadata = st.StokerReader(path, store=store).read_metadata()
    (info,) = metadata.storage_data.values()
    for change in ({"offset": 1 << 40}, {"length": -1}, {"stoker_raw": (0, torch.float32, (1 << 40,))}, {"relative_path": "../x"}):
        before = dict(info.__dict__)
        info.__dict__.update(change)
        out = io.BytesIO()
        pickle.dump(metadata, out)
        store.write(f"{path}/.metadata", out.getvalue())
        info.__dict__.clear()
        info.__dict__.update(before)
        with pytest.raises(CheckpointException, match="step-1|__0_0"):
            dcp.load({"x": torch.ones(1000)}, checkpoint_id=path)


def test_staging_gives_room_in_order() -> None:
    staging = Staging(1 << 20)
    staging.prepare(1 << 30)
    assert staging.capacity == 1 << 20
    first, second = staging.reserve(600 << 10), staging.reserve(400 << 10)
    staging.release(first)
    third = staging.reserve(500 << 10)
    assert third.start == 0 and second.start == 600 << 10
    with pytest.raises(ValueError, match="do not fit"):
        staging.reserve((1 << 20) + 1)
    staging.fail(OSError("the drive is gone"))
    with pytest.raises(OSError, match="gone"):
        staging.reserve(1)


# Which stay


def _saved(store: stoker.Store, prefix: str) -> list[str]:
    return sorted(one.name for one in store.list(prefix))


def test_the_last_ones_are_kept(store: stoker.Store, place: str) -> None:
    store.write(f"{place}/step-0/notes.txt", b"not a checkpoint")
    dcp.save({"x": torch.ones(2)}, checkpoint_id=f"stoker://{place}-other/step-1")
    writer = st.StokerWriter(store=store, keep_last=2)
    for step in range(1, 5):
        dcp.save({"x": torch.ones(2)}, checkpoint_id=f"stoker://{place}/step-{step}", storage_writer=writer)
    assert _saved(store, place) == ["step-0", "step-3", "step-4"]
    assert store.exists(f"{place}-other/step-1/.metadata")
    with pytest.raises(ValueError, match="keep_last"):
        st.StokerWriter(keep_last=0)


def _volume(node: Node, name: str, *options: str) -> None:
    args = [program(), "volume", "create", name, "--dir", str(node.folder), *options]
    subprocess.run(args, check=True, capture_output=True)


def test_some_go_to_the_lake_and_stay(store: stoker.Store, node: Node, place: str) -> None:
    _volume(node, "archive", "--drain", "on-demand")
    for step in range(1, 8):
        # A new writer each time, as after a restart: the count goes on.
        writer = st.StokerWriter(store=store, keep_last=1, drain_every=3)
        dcp.save({"x": torch.ones(2)}, checkpoint_id=f"stoker://archive/run/step-{step}", storage_writer=writer)
        if step % 3 == 0:
            writer.wait().wait_drained(120)
    assert _saved(store, "archive/run") == ["step-3", "step-6", "step-7"]
    in_lake = {one.parent.name for one in node.lake.rglob(".metadata") if "archive" in one.parts}
    assert in_lake == {"step-3", "step-6"}
    writer = st.StokerWriter(store=store, drain_every=3)
    with pytest.raises(CheckpointException, match="stoker volume set data --drain on-demand"):
        dcp.save({"x": torch.ones(2)}, checkpoint_id=f"stoker://{place}/step-1", storage_writer=writer)


def test_a_save_reaches_the_lake(store: stoker.Store, node: Node) -> None:
    _volume(node, "swift", "--drain-quiet", "1s")
    writer = st.StokerWriter(store=store)
    dcp.save({"x": torch.ones(2)}, checkpoint_id="stoker://swift/run/step-1", storage_writer=writer)
    writer.wait().wait_drained(120)
    assert [one.drain for one in writer.wait().files()] == ["clean"] * 3, "shard, metadata and what says that all is there"
    _volume(node, "never", "--lake", "none")
    dcp.save({"x": torch.ones(2)}, checkpoint_id="stoker://never/run/step-1", storage_writer=writer)
    with pytest.raises(ValueError, match="no lake"):
        writer.wait().wait_drained()
