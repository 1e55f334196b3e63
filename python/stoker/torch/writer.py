"""Checkpoints of ``torch.distributed.checkpoint``: each save is one checkpoint set."""

from __future__ import annotations

import dataclasses
import os
import pickle
import secrets
import socket
import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .. import paths, replacing
from .._stoker import ConflictError
from ..receipts import Receipt
from ..sets import CheckpointSet
from ..store import Path, Store
from ..windows import Window
from .place import Placed, directory
from .receipt import SaveReceipt, looks
from .retention import Retention
from .shard import PASSING, Pump, write_plan
from .staging import Staging
from .status import METADATA, shard_name, status_of, volume_missing

Mode = Literal["snapshot", "stream"]

#: Most memory that `stream` may use beside the tensors.
STREAM_BYTES_MAX = 512 << 20
#: How long a save waits for torch's thread of the one before to begin.
BEGIN_S = 60.0
#: How long a process that has ended otherwise waits for shards of other ranks.
EXIT_PATIENCE_S = 60.0
#: Version of torch's format, as its own writer says it.
FORMAT_VERSION = "1.0.0"


@dataclass(frozen=True)
class Place:
    """Where a rank writes: told by the coordinator."""

    volume: str
    directory: str
    set_id: int
    rank: int


class StokerWriter(Placed, StorageWriter):
    """Writes checkpoints: ``dcp.save(state, checkpoint_id="stoker://run/step-1000", storage_writer=writer)``.

    One save is one checkpoint set: all ranks write one shard each, and when all of them are durable the coordinator publishes
    them, with the metadata, in one step. A directory that exists is complete.

    ``mode="stream"`` (the default): ``dcp.save`` returns when the checkpoint is published. Tensors in main memory are written from
    where they are; others go through at most ``staging_bytes`` (128 MiB, at most 512 MiB).

    ``mode="snapshot"``: ``dcp.save`` returns as soon as the tensors are copied; threads write and publish. The copy takes as much
    memory as the shard, or ``staging_bytes``: then the save blocks until the rest is written. The memory is used again by the
    next save, which waits for this one. :meth:`wait` tells how it ended. With ``dcp.async_save`` torch copies the tensors first,
    into memory that this writer keeps for the next time, and saves in a thread of its own.

    >>> writer = stoker.torch.StokerWriter(mode="snapshot", keep_last=3)
    >>> dcp.save(state, checkpoint_id="stoker://run/step-1000", storage_writer=writer)
    >>> receipt = writer.wait()
    >>> receipt.copies
    2

    With ``STOKER_JOB`` in the environment a save waits until it is in no other job's way: :mod:`stoker.windows`.

    ``keep_last`` and ``drain_every`` are explained at :class:`stoker.torch.Retention`. ``deadline``: seconds after which an
    unfinished save is given up (an hour). ``takeover``: an unfinished save of the same path by another process, which is there
    after a crash, is given up in favour of this one. ``overwrite``: a checkpoint of the same path is replaced, in one step when the
    new one is complete; without it, saving there raises ``FileExistsError``.
    """

    # torch looks for this to see whether a writer can stage.
    _synchronize_after_execute = False

    def __init__(
        self,
        path: Path | None = None,
        *,
        store: Store | None = None,
        mode: Mode = "stream",
        staging_bytes: int | None = None,
        keep_last: int | None = None,
        drain_every: int | None = None,
        prefix: str | None = None,
        deadline: float | None = None,
        takeover: bool = True,
        overwrite: bool = False,
    ) -> None:
        super().__init__(path, store)
        if mode not in ("snapshot", "stream"):
            raise ValueError(f"mode is 'snapshot' or 'stream', not {mode!r}")
        if mode == "stream" and staging_bytes is not None and staging_bytes > STREAM_BYTES_MAX:
            raise ValueError(f"the mode `stream` uses at most {STREAM_BYTES_MAX} bytes, not {staging_bytes}: see `snapshot`")
        self.mode: Mode = mode
        self.retention = Retention(keep_last, drain_every, prefix)
        self.staging = Staging(staging_bytes if mode == "snapshot" else staging_bytes or PASSING)
        self._deadline = deadline
        self._takeover = takeover
        self._overwrite = overwrite
        self._save: _Save | None = None
        self._stager: DefaultStager | None = None
        self._staged = False
        self._worker: threading.Thread | None = None
        self._begun = threading.Event()
        self._used: Place | None = None
        self._coordinator, self._rank = True, 0
        self._id = secrets.token_hex(8)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self._path, save_id=self._id)

    # What torch calls, in this order

    def reset(self, checkpoint_id: Path | None = None) -> None:
        if checkpoint_id:
            self._path = directory(checkpoint_id)
        self._id = secrets.token_hex(8)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError("a checkpoint set has one coordinator: save with use_collectives=True")
        if not self._path:
            raise ValueError("give the path: dcp.save(..., checkpoint_id='stoker://VOLUME/KEY') or StokerWriter(path)")
        if self._staged:
            self._worker = threading.current_thread()
            self._begun.set()
        self._coordinator = is_coordinator
        self._rank = kwargs.get("rank") or 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self._settle()
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        made = self._begin(len(plans))
        assert self._save is not None
        self._save.window = Window.ask(self.store, _size(plans), beside=self._staged)
        places = (Place(made.volume, self._path, made.id, rank) for rank in range(len(plans)))
        return [dataclasses.replace(plan, storage_data=place) for plan, place in zip(plans, places)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        save = self._save
        if save is None:
            save = self._save = _Save(self.store, self._find(plan))
        staged, self._staged = self._staged, False
        copies = self.mode == "snapshot" and not staged
        name = shard_name(self._rank)
        who = f"rank {self._rank} on {socket.gethostname()}:{os.getpid()}"
        file = save.set.open(self._rank, name, writer=who)
        save.pump = pump = Pump(file, self.staging, copies=copies)
        try:
            results = write_plan(pump, name, plan.items, planner, self.staging, ahead=copies)
            pump.end()
            if not copies:
                pump.wait()
        except BaseException as fault:
            pump.abort(fault)
            if isinstance(fault, ConflictError):
                raise save.ended() from fault
            raise
        save.background = copies
        if copies and not self._coordinator:
            save.run(save.see_through)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        save = self._save
        assert save is not None
        where = {one.index: one.storage_data for of_rank in results for one in of_rank}
        meta = self.storage_meta()
        whole = dataclasses.replace(metadata, storage_data=where, storage_meta=meta, version=FORMAT_VERSION)
        metadata.storage_data, metadata.storage_meta, metadata.version = where, meta, FORMAT_VERSION
        data, retention = pickle.dumps(whole), self.retention
        if save.background:
            save.run(lambda: save.publish(data, retention))
        else:
            save.publish(data, retention)

    # What users call

    def prepare(self, size: int) -> None:
        """Makes the staging memory before the first save, which otherwise pays for it: the bytes of this rank's tensors and
        8 KiB for each of them, within ``staging_bytes``. A larger shard later makes it larger."""
        self._settle()
        self.staging.prepare(size)
        self.staging.touch()

    def wait(self, timeout: float | None = None) -> SaveReceipt:
        """Waits until the last save is published; its receipt. Raises what went wrong, also on other ranks, and
        ``TimeoutError``, which names the ranks that have not written. Without a timeout a rank that died is waited for until
        the deadline of the save."""
        if self._save is None:
            raise ValueError("nothing was saved")
        return self._save.wait(timeout)

    @property
    def receipt(self) -> SaveReceipt | None:
        """The receipt of the last save, if it is published."""
        return None if self._save is None else self._save.receipt

    def close(self) -> None:
        """Waits for what is under way and gives the memory back."""
        self._settle()
        self.staging.close()
        if self._stager is not None:
            self._stager.close()
            self._stager = None

    def __getstate__(self) -> dict[str, Any]:
        hint = "use AsyncCheckpointerType.THREAD, or dcp.save with mode='snapshot'"
        raise TypeError(f"a StokerWriter belongs to its process and cannot be sent to another one: {hint}")

    def __enter__(self) -> StokerWriter:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    # Staging for dcp.async_save

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._synchronize_after_execute

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copies the tensors to memory that is kept for the next save."""
        if self.mode == "stream":
            hint = "StokerWriter(mode='snapshot'), or dcp.save"
            raise ValueError(f"the mode `stream` makes no copy, so it cannot save while training goes on: use {hint}")
        # torch's own thread of the save before still reads what would be overwritten here. It may not even have begun.
        if self._staged and not self._begun.wait(BEGIN_S):
            raise RuntimeError("the save before this one has not begun: wait for what dcp.async_save returned")
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.join()
        self._settle()
        if self._stager is None:
            cuda = torch.cuda.is_available()
            self._stager = DefaultStager(StagingOptions(cuda, False, False, cuda))
        copied = self._stager.stage(state_dict)
        assert isinstance(copied, dict)
        self._begun.clear()
        self._staged = True
        return copied

    def synchronize_staging(self) -> None:
        """Nothing: :meth:`stage` has copied all."""

    # Sets

    def _settle(self) -> None:
        """Waits for the save before this one: it uses the staging memory. What it left unfinished is given up."""
        save, self._save = self._save, None
        if save is None:
            return
        if save.background:
            try:
                save.wait_own()
            except Exception as fault:
                if not save.told:
                    warnings.warn(f"the save before this one failed: {fault}", RuntimeWarning, stacklevel=3)
        elif self._coordinator and save.receipt is None:
            # Another rank failed, so torch never came to `finish`.
            save.give_up()

    def _begin(self, ranks: int) -> CheckpointSet:
        store, path = self.store, self._path
        volume = paths.split_file(path)[0]
        if volume not in store.volumes():
            raise volume_missing(store, volume)
        self.retention.check(store, path)
        number = self.retention.number(store, path)
        owner = f"{socket.gethostname()}:{os.getpid()} {self._id}" + ("" if number is None else f" #{number}")
        if self._overwrite:
            path = replacing.target(store, path)
        open_one = store.find_set(path)
        if open_one is not None and open_one.state == "open" and open_one.owner != owner:
            if not self._takeover:
                message = f"{status_of(open_one)}; give it up with `stoker set abort`, or StokerWriter(takeover=True)"
                raise FileExistsError(17, message, path)
            warnings.warn(f"an unfinished save is given up: {status_of(open_one)}", RuntimeWarning, stacklevel=2)
            open_one.abort()
        elif open_one is not None or next(store.list(path), None) is not None:
            message = "there is something of this name: use another one, or StokerWriter(overwrite=True) to replace it"
            raise FileExistsError(17, message, path)
        made = store.begin_set(path, ranks + 1, owner=owner, deadline=self._deadline)
        self._save = _Save(store, made)
        return made

    def _find(self, plan: SavePlan) -> CheckpointSet:
        place = plan.storage_data
        # A planner that caches plans gives the one of the save before, with what belonged to that one.
        if isinstance(place, Place) and place is not self._used and place.directory == self._path:
            self._used = place
            return self.store.open_set(place.volume, place.set_id)
        made = self.store.find_set(self._path)
        if self._overwrite and (made is None or made.state != "open"):
            volume, key = paths.split_file(self._path)
            made = self.store.find_set(paths.join(volume, replacing.beside(key)))
        if made is None or made.state != "open":
            raise FileNotFoundError(2, "the coordinator has begun no checkpoint here", self._path)
        return made


def _size(plans: list[SavePlan]) -> int:
    """Bytes of tensors that plans write."""
    size = 0
    for plan in plans:
        for item in plan.items:
            if item.tensor_data is not None:
                size += item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
    return size


class _Save:
    """One save, as one rank sees it."""

    def __init__(self, store: Store, made: CheckpointSet) -> None:
        self.store, self.set = store, made
        self.pump: Pump | None = None
        self.background = False
        self.window: Window | None = None
        self.receipt: SaveReceipt | None = None
        self.told = False
        self._fault: BaseException | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Any) -> None:
        """Does something in a thread."""

        def body() -> None:
            try:
                work()
            except BaseException as fault:
                self._fault = fault

        self._thread = threading.Thread(target=body, name="stoker-save")
        self._thread.start()

    def _own(self) -> Receipt:
        """Waits for the own shard. If it failed nobody can finish the set, and the others learn it by this."""
        assert self.pump is not None
        try:
            return self.pump.wait()
        except BaseException as fault:
            self.give_up()
            if isinstance(fault, ConflictError):
                raise self.ended() from fault
            raise

    def see_through(self) -> None:
        """Waits until the coordinator has published."""
        self._own()

    def publish(self, metadata: bytes, retention: Retention) -> None:
        """Publishes once all shards are there."""
        own = self._own()
        try:
            self.set.write(self.set.shards - 1, metadata, METADATA, writer="the coordinator")
            if self.background:
                self._gather()
            self.set.publish()
        except ConflictError as fault:
            raise self.ended() from fault
        self._done(own)
        if self.window is not None:
            self.window.end()
        try:
            retention.apply(self.store, self.set.path)
        except (OSError, ValueError) as fault:
            # The checkpoint is there; what is too much goes after the next save.
            warnings.warn(f"{self.set.path} is published, but older ones were not tidied up: {fault}", RuntimeWarning, stacklevel=2)

    def _gather(self) -> None:
        gone = None
        for _ in looks():
            now = self.set.status()
            if now.state != "open":
                raise self.ended()
            if not now.laggards:
                return
            if not threading.main_thread().is_alive():
                gone = gone or time.monotonic()
                if time.monotonic() - gone > EXIT_PATIENCE_S:
                    raise self.ended()

    def ended(self) -> OSError:
        """Why it is not published, as far as the set knows."""
        try:
            return ConflictError(16, str(status_of(self.set)), self.set.path)
        except OSError as fault:
            return fault

    def _done(self, own: Receipt) -> SaveReceipt:
        now = self.set.status()
        self.receipt = SaveReceipt(self.set.path, self.set.id, now.shards, now.bytes, own, self.set, self.store)
        return self.receipt

    def wait_own(self, timeout: float | None = None) -> None:
        """Waits until this rank has nothing more to do."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"after {timeout} s {status_of(self.set)}")
        if self._fault is not None:
            raise self._fault

    def wait(self, timeout: float | None = None) -> SaveReceipt:
        end = None if timeout is None else time.monotonic() + timeout
        try:
            self.wait_own(timeout)
        finally:
            self.told = self._thread is None or not self._thread.is_alive()
        if self.receipt is not None:
            return self.receipt
        own = self._own()
        for _ in looks():
            state = self.set.status().state
            if state == "published":
                return self._done(own)
            if state != "open":
                raise self.ended()
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"after {timeout} s {status_of(self.set)}")
        raise AssertionError("unreachable")

    def give_up(self) -> None:
        """Gives the set up, if that is possible."""
        try:
            self.set.abort()
        except (OSError, ValueError):
            pass
