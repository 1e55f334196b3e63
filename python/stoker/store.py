"""The store."""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any, Literal, overload

from . import packing, paths, replacing
from ._stoker import Client
from .files import Reader, Writer
from .receipts import FileInfo, Receipt, receipt_of
from .sets import CheckpointSet

Path = str | os.PathLike[str]

#: What buffered readers fetch at once.
BUFFER = 1 << 20


class Store:
    """A cluster, seen through one of its nodes. Safe to use from threads, and in processes that were forked."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"<stoker.Store {self._client.endpoint}>"

    @property
    def endpoint(self) -> str:
        """The node that is asked."""
        return str(self._client.endpoint)

    # Volumes

    def volumes(self) -> list[str]:
        """Names of all volumes."""
        return [one["name"] for one in json.loads(self._client.volumes())]

    def volume(self, name: str) -> dict[str, Any]:
        """What a volume is: its class, its policies, its lake."""
        return dict(json.loads(self._client.volume(name)))

    def create_volume(self, name: str) -> dict[str, Any]:
        """Makes a volume as the node's defaults say; `stoker volume create` has all options."""
        return dict(json.loads(self._client.volume_create(name)))

    # Bytes

    @overload
    def open(self, path: Path, mode: Literal["rb"] = "rb", *, buffering: Literal[0]) -> Reader: ...  # type: ignore[overload-overlap]
    @overload
    def open(self, path: Path, mode: Literal["rb"] = "rb", *, buffering: int = ...) -> io.BufferedReader: ...
    @overload
    def open(self, path: Path, mode: Literal["wb", "xb", "ab"], *, size: int | None = ...) -> Writer: ...

    def open(
        self, path: Path, mode: str = "rb", *, buffering: int = BUFFER, size: int | None = None
    ) -> Reader | io.BufferedReader | Writer:
        """Opens a file: ``rb``, ``wb`` (replaces), ``xb`` (only if there is none) or ``ab`` (adds). A file that is written
        shows, whole, when it is closed. ``size`` is its length if that is known, which saves memory and refuses early."""
        volume, key = paths.split_file(path)
        if mode in ("rb", "r"):
            reader = Reader(self._client.open(volume, key), paths.join(volume, key))
            return reader if buffering == 0 else io.BufferedReader(reader, buffering)
        if mode not in ("wb", "w", "xb", "x", "ab", "a"):
            raise ValueError(f"mode is rb, wb, xb or ab, not {mode!r}")
        native = self._client.create(volume, key, size, mode[0] == "x", mode[0] == "a")
        return Writer(native, paths.join(volume, key), lambda said: receipt_of(said, self._client, key))

    def read(self, path: Path) -> bytes:
        """All bytes of a file."""
        volume, key = paths.split_file(path)
        file = self._client.open(volume, key)
        return bytes(file.read(0, file.size))

    def readinto(self, path: Path, buffer: Any, offset: int = 0) -> int:
        """Fills memory with the bytes of a file; returns how many that were."""
        volume, key = paths.split_file(path)
        return int(self._client.open(volume, key).read_into(buffer, offset))

    def write(self, path: Path, data: Any, *, exclusive: bool = False) -> Receipt:
        """Writes a file; when this returns it survives what the class of its volume promises."""
        size = memoryview(data).nbytes
        with self.open(path, "xb" if exclusive else "wb", size=size) as file:
            file.write(data)
        assert file.receipt is not None
        return file.receipt

    # Names

    def stat(self, path: Path) -> FileInfo:
        """What a file is. Raises ``FileNotFoundError``."""
        volume, key = paths.split_file(path)
        row = json.loads(self._client.stat(volume, key))
        return FileInfo(
            paths.join(volume, key), row["size"], etag=row["etag"], modified=row["modified_ms"] / 1000
        )

    def exists(self, path: Path) -> bool:
        """Whether there is such a file."""
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, path: Path, *, recursive: bool = False) -> Iterator[FileInfo]:
        """Files (and, unless recursive, directories) below a path, in the order of their keys; page by page, however many
        there are."""
        volume, prefix = paths.split(path)
        if prefix and not prefix.endswith(b"/"):
            prefix += b"/"
        yield from self._list(volume, prefix, None if recursive else b"/")

    def _list(self, volume: str, prefix: bytes, delimiter: bytes | None) -> Iterator[FileInfo]:
        after: bytes | None = None
        while True:
            lines, more = self._client.list(volume, prefix, delimiter, after)
            for key, is_prefix, size, etag, modified_ms in lines:
                path = paths.join(volume, bytes(key))
                yield FileInfo(path, size, bool(is_prefix), etag, modified_ms / 1000)
            if not more or not lines:
                return
            after = bytes(lines[-1][0])

    def remove(self, *files: Path) -> int:
        """Removes files; returns how many of them were there."""
        by_volume: dict[str, list[bytes]] = {}
        for path in files:
            volume, key = paths.split_file(path)
            by_volume.setdefault(volume, []).append(key)
        count = 0
        for volume, keys in by_volume.items():
            for start in range(0, len(keys), 1000):
                count += sum(self._client.delete(volume, keys[start : start + 1000]))
        return count

    def rename(self, old: Path, new: Path, *, replace: bool = True) -> None:
        """Gives a file another name, or a directory if both end with ``/``; in one step, within a volume."""
        (volume, before), (other, after) = paths.split_file(old), paths.split_file(new)
        if volume != other:
            raise ValueError(f"a rename stays in its volume; copy from {volume} to {other} instead")
        self._client.rename(volume, before, after, replace)

    def exchange(self, first: Path, second: Path) -> None:
        """Two names swap what they are, in one step, within a volume. Names of directories end with ``/``."""
        (volume, one), (other, two) = paths.split_file(first), paths.split_file(second)
        if volume != other:
            raise ValueError(f"an exchange stays in its volume, and {volume} is not {other}")
        self._client.exchange(volume, one, two)

    def copy(self, source: Path, target: Path) -> Receipt:
        """Copies a file by reference: no byte moves."""
        (volume, key), (other, name) = paths.split_file(source), paths.split_file(target)
        return receipt_of(self._client.copy(volume, key, other, name), self._client, name)

    # Checkpoint sets

    def begin_set(
        self, path: Path, shards: int, *, owner: str = "", deadline: float | None = None, overwrite: bool = False
    ) -> CheckpointSet:
        """Begins a checkpoint set that will be the directory ``path``; nothing may have that name. Who begins it again as the
        same owner gets the one that is open. It is given up if it is not published within ``deadline`` seconds (an hour).

        ``overwrite``: what has the name stays until the publish, which replaces it in one step. Until then the set is gathered in
        ``.NAME.overwrite/`` beside it. Begin it once and tell the other ranks its id."""
        volume, key = paths.split_file(replacing.target(self, os.fspath(path)) if overwrite else path)
        who = owner or f"{socket.gethostname()}:{os.getpid()}"
        seconds = None if deadline is None else max(1, round(deadline))
        return CheckpointSet(self._client, json.loads(self._client.sets.begin(volume, key, who, shards, seconds)))

    def open_set(self, volume: str, id: int) -> CheckpointSet:
        """The set with this id, as another process began it."""
        return CheckpointSet(self._client, json.loads(self._client.sets.status(volume, id))["info"])

    def find_set(self, path: Path) -> CheckpointSet | None:
        """The set that is open for a directory, or was published as it."""
        volume, key = paths.split_file(path)
        row = json.loads(self._client.sets.find(volume, key))
        return None if row is None else CheckpointSet(self._client, row)

    def latest(self, path: Path) -> str | None:
        """The directory of the set that was published last of those whose path starts like this."""
        volume, prefix = paths.split(path)
        row = json.loads(self._client.sets.latest(volume, prefix))
        if row is not None and replacing.replaced(bytes(row["path"])) is not None:
            # Published, and about to get the name of what it replaces: of that the old one is still the last.
            rows = replacing.published(self._client, volume, prefix)
            row = max(rows, key=lambda one: int(one["seq"]), default=None)
        return None if row is None else CheckpointSet(self._client, row).path

    # Receipts and the lake

    def receipt(self, path: Path) -> Receipt:
        """The receipt of a file, as of now."""
        volume, key = paths.split_file(path)
        return receipt_of(self._client.receipt(volume, key), self._client, key)

    def drain(self, path: Path) -> int:
        """Has everything below a path sent to the lake now; returns how many files that are. See ``Receipt.wait_drained``."""
        volume, prefix = paths.split(path)
        return int(self._client.drain(volume, prefix))

    def stage(self, path: Path) -> int:
        """Brings a file from the lake to the drives; returns how many bytes came."""
        volume, key = paths.split_file(path)
        return int(self._client.stage(volume, key))

    # Datasets

    def pack(
        self,
        source: Path,
        target: Path,
        *,
        shard_bytes: int = packing.SHARD_BYTES,
        jobs: int | None = None,
        replace: bool = False,
        progress: packing.Tell | None = None,
    ) -> packing.Packed:
        """Packs many small files as few tar shards with a seal; see :func:`stoker.pack`."""
        return packing.pack(
            source, target, shard_bytes=shard_bytes, jobs=jobs, replace=replace, progress=progress, store=self
        )

    def seal(
        self,
        shards: Path | Iterable[Path],
        to: Path,
        *,
        jobs: int | None = None,
        replace: bool = False,
        progress: packing.Tell | None = None,
    ) -> packing.Packed:
        """Makes a seal of tar shards that are there, from their headers alone.

        A path that is no tar stands for all ``.tar`` whose keys start like it. Shards are in the order of the paths, then in that
        of their keys; all are in one volume.

        >>> sealed = store.seal("data/train-", "data/train.seal")
        >>> sealed.samples  # doctest: +SKIP
        1281167

        Raises ``CorruptError`` for a file that is no sound tar, ``FileNotFoundError`` if none is there, ``ConflictError`` if another
        file has the name of the seal and ``replace`` is false.
        """
        return packing.seal(self, shards, to, jobs=jobs, replace=replace, progress=progress)
