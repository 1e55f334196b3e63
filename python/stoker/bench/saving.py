"""The sides of the checkpoint benchmark, as one rank sees them."""

from __future__ import annotations

import importlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import stoker
import stoker.torch
from stoker.torch.writer import Mode

from . import raw
from .node import Unavailable

#: Pieces under way in each rank while the drive is written without Stoker; all ranks together keep it busy.
DEPTH = 4


@dataclass(frozen=True)
class Saved:
    """One save: how long the caller stood still, and how long it took until the bytes were safe on all ranks."""

    blocked: float
    committed: float


class Side:
    """One way to save the state. What it needs memory for it holds from :meth:`begin` to :meth:`end`, which are not timed: a
    training job has that memory from its first save on, but here all sides would hold theirs at once."""

    #: Staging memory that it was given, if it has a choice.
    staging: int | None = None

    def __init__(self, config: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        self.config, self.state = config, state
        self.rank, self.size = int(config["rank"]), sum(one.nbytes for one in state.values())
        self.folder = Path(config["folder"])

    def begin(self) -> None:
        """Makes what is kept between saves."""

    def save(self, number: int) -> Saved:
        raise NotImplementedError

    def end(self) -> None:
        """Gives back what :meth:`begin` made."""

    def remove(self, number: int) -> None:
        """Makes room, after all ranks have saved."""

    def close(self) -> None:
        """After the last save."""


def _at_once(work: Callable[[], object]) -> Saved:
    start = time.monotonic()
    work()
    seconds = time.monotonic() - start
    return Saved(seconds, seconds)


class MemoryCopy(Side):
    """One copy of the shard to memory that is there: what `snapshot` cannot do without."""

    def begin(self) -> None:
        self._copies = {name: torch.ones_like(one) for name, one in self.state.items()}

    def save(self, number: int) -> Saved:
        return _at_once(lambda: [self._copies[name].copy_(one) for name, one in self.state.items()])

    def end(self) -> None:
        self._copies.clear()


class RawWrite(Side):
    """The same bytes to a file that is there, with O_DIRECT and O_DSYNC: what the drive can do."""

    def __init__(self, config: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        super().__init__(config, state)
        self._file = self.folder / f"raw-{self.rank}"
        raw.write_file(self._file, self.size, depth=DEPTH)

    def save(self, number: int) -> Saved:
        # Without the time for threads and buffers.
        seconds = raw.write_file(self._file, self.size, depth=DEPTH)
        return Saved(seconds, seconds)

    def close(self) -> None:
        self._file.unlink()


class TorchSave(Side):
    """`torch.save` to a file of each rank, and fsync."""

    def _file(self, number: int) -> Path:
        return self.folder / f"torch-{number}-{self.rank}.pt"

    def save(self, number: int) -> Saved:
        def work() -> None:
            with open(self._file(number), "wb") as file:
                torch.save(self.state, file)
                file.flush()
                os.fsync(file.fileno())

        return _at_once(work)

    def remove(self, number: int) -> None:
        self._file(number).unlink()


class DcpFiles(Side):
    """torch's own writer of sharded checkpoints, which calls fsync."""

    def save(self, number: int) -> Saved:
        writer = FileSystemWriter(self.folder / f"dcp-{number}", sync_files=True)
        return _at_once(lambda: dcp_save(self.state, storage_writer=writer))

    def remove(self, number: int) -> None:
        if self.rank == 0:
            shutil.rmtree(self.folder / f"dcp-{number}")


class S3(Side):
    """The connector of S3 for torch, at the node's S3 door."""

    def __init__(self, config: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        super().__init__(config, state)
        try:
            connector = importlib.import_module("s3torchconnector")
            self._dcp = importlib.import_module("s3torchconnector.dcp")
            # Its writer has no argument for an endpoint; its client does.
            files = importlib.import_module("s3torchconnector.dcp.s3_file_system")
            client = importlib.import_module("s3torchconnector._s3client").S3Client
        except ImportError as fault:
            raise Unavailable(f"s3torchconnector is not installed ({fault})") from None
        settings = connector.S3ClientConfig(force_path_style=True)
        made = client(region=config["region"], endpoint=config["s3"], s3client_config=settings)
        self._files = files.S3FileSystem(config["region"], s3_client=made)
        self._store = stoker.connect(dir=config["dir"])

    def save(self, number: int) -> Saved:
        path = f"s3://{self.config['volume']}/s3-{number}/"
        writer = self._dcp.S3StorageWriter(region=self.config["region"], path=path)
        writer.fs, writer.path = self._files, self._files.init_path(path)
        return _at_once(lambda: dcp_save(self.state, storage_writer=writer))

    def remove(self, number: int) -> None:
        if self.rank == 0:
            _remove(self._store, f"{self.config['volume']}/s3-{number}/")


class Ours(Side):
    """StokerWriter."""

    mode: Mode = "stream"
    #: Part of the shard that staging memory may be, in percent.
    percent: int | None = None

    def __init__(self, config: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        super().__init__(config, state)
        self._store = stoker.connect(dir=config["dir"])
        self.staging = None if self.percent is None else self.size * self.percent // 100
        self._name = f"{self.mode}-{self.percent or 100}"

    def begin(self) -> None:
        self._writer = stoker.torch.StokerWriter(store=self._store, mode=self.mode, staging_bytes=self.staging)
        if self.mode == "snapshot":
            self._writer.prepare(self.size + (8 << 10) * len(self.state))

    def _path(self, number: int) -> str:
        return f"stoker://{self.config['volume']}/{self._name}-{number}"

    def save(self, number: int) -> Saved:
        start = time.monotonic()
        dcp_save(self.state, checkpoint_id=self._path(number), storage_writer=self._writer)
        blocked = time.monotonic() - start
        self._writer.wait()
        return Saved(blocked, time.monotonic() - start)

    def remove(self, number: int) -> None:
        if self.rank == 0:
            _remove(self._store, self._path(number) + "/")

    def end(self) -> None:
        self._writer.close()


class Snapshot(Ours):
    """Copies, then writes while training goes on."""

    mode = "snapshot"


class Snapshot50(Snapshot):
    percent = 50


class Snapshot25(Snapshot):
    percent = 25


SIDES: dict[str, type[Side]] = {
    "memory_copy": MemoryCopy,
    "raw_write": RawWrite,
    "torch_save": TorchSave,
    "dcp_files": DcpFiles,
    "s3": S3,
    "stream": Ours,
    "snapshot": Snapshot,
    "snapshot_50": Snapshot50,
    "snapshot_25": Snapshot25,
}


def _remove(store: stoker.Store, path: str) -> None:
    store.remove(*[one.path for one in store.list(path, recursive=True)])


class Memory:
    """The most memory of this process beyond what it had at the start, looked at while something is done."""

    PAUSE_S = 0.02

    def __init__(self) -> None:
        self._rss, self._pss = _rss(), _pss()
        self.rss = self.pss = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        done = False
        while not done:
            done = self._done.wait(self.PAUSE_S)
            self.rss = max(self.rss, _rss() - self._rss)
            self.pss = max(self.pss, _pss() - self._pss)


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _pss() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0
