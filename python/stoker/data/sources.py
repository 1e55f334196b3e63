"""Sources: where samples come from.

A source knows how many samples there are, which bytes of which file each one is, and how to open those files. It holds no
connection when it is sent to another process: the receiver connects by itself.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .. import paths
from .._stoker import ConflictError, CorruptError, Places, TarError, members
from ..connecting import connect
from ..receipts import FileInfo
from ..store import Store
from .seal import Seal, Shard
from .tars import samples_of, stem_of

Path = str | os.PathLike[str]

#: Calls that are under way at once while a source is opened.
_AT_ONCE = 16


class Link:
    """A store that may be sent to another process: it goes as an endpoint, and is connected to when it is first asked."""

    def __init__(self, store: Store | None, token: str | None) -> None:
        self._store: Store | None = store if store is not None else connect(token=token)
        self.endpoint, self.token = self._store.endpoint, token

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = connect(self.endpoint, token=self.token)
        return self._store

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}

    def __repr__(self) -> str:
        return f"<Link {self.endpoint}>"


#: Volume, key, size, version and etag of a file.
Wanted = tuple[str, bytes, int, str, str]


class Source(ABC):
    """Samples, by number."""

    #: What stands for exactly these samples; a resume state of another identity is refused.
    identity: str
    #: What people call it.
    path: str
    #: Errors of reading that concern one sample and not the dataset.
    sample_faults: tuple[type[BaseException], ...] = (CorruptError,)

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def store(self) -> Store:
        """The connection of this process."""
        return self._link.store

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def places(self) -> Places:
        """Where samples are: number of the file, offset, length."""

    def locate_many(self, samples: Sequence[int]) -> list[tuple[int, int, int]]:
        """For each sample: number of its file, offset, length."""
        return self.places.locate_many(list(samples))

    @property
    def is_tar(self) -> bool:
        """Whether samples are members of tars."""
        return False

    @abstractmethod
    def file_path(self, number: int) -> str:
        """Path of a file."""

    @abstractmethod
    def wanted(self, number: int) -> Wanted:
        """The file of a number: volume, key, size, version and etag. Another file of that name is refused when it is opened;
        version or etag may be empty, but not both."""

    @abstractmethod
    def name(self, sample: int) -> str:
        """What people call a sample."""

    @abstractmethod
    def members(self, sample: int, view: memoryview, *, views: bool = False) -> dict[str, Any]:
        """The bytes of a sample by extension, and its stem as ``__key__``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} {self.identity}: {len(self)} samples>"


class SealSource(Source):
    """The samples of a seal. Opening it is one fetch; then each process opens each shard once, and a sample asks nothing."""

    def __init__(self, path: Path, *, store: Store | None = None, token: str | None = None) -> None:
        super().__init__(Link(store, token))
        self.path = paths.join(*paths.split_file(path))
        self._seal: Seal | None = Seal.open(self.store, self.path)
        self.identity = self._seal.identity

    @property
    def seal(self) -> Seal:
        if self._seal is None:  # this came from another process
            seal = Seal.open(self.store, self.path)
            if seal.identity != self.identity:
                message = f"the seal was replaced (it was {self.identity}, it is {seal.identity}): start again"
                raise ConflictError(errno.ESTALE, message, self.path)
            self._seal = seal
        return self._seal

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seal": None}

    def __len__(self) -> int:
        return len(self.seal)

    @property
    def places(self) -> Places:
        return self.seal.places

    @property
    def is_tar(self) -> bool:
        return self.seal.is_tar

    def file_path(self, number: int) -> str:
        return self.seal.shard_path(number)

    def wanted(self, number: int) -> Wanted:
        shard = self.seal.shards[number]
        return self.seal.volume, paths.key_of(shard.key), shard.size, shard.version, shard.etag

    def name(self, sample: int) -> str:
        return self.seal.name(sample) or f"{self.file_path(self.seal.locate(sample)[0])}#{sample}"

    def members(self, sample: int, view: memoryview, *, views: bool = False) -> dict[str, Any]:
        if self.seal.is_tar:
            return tar_members(view, views)
        key = self.seal.shards[self.seal.locate(sample)[0]].key
        stem, extension = stem_of(paths.key_of(key))
        name = self.seal.name(sample) or paths.text(stem)
        return {"__key__": name, paths.text(extension).lower() or "bin": view if views else bytes(view)}


class TarSource(Source):
    """Tar shards without a seal: their headers are read once, when the source is made; a process that is sent the source gets
    the list with it. A seal (`stoker seal`) saves both."""

    def __init__(self, tars: Path | Iterable[Path], *, store: Store | None = None, token: str | None = None) -> None:
        super().__init__(Link(store, token))
        self._paths = _expand(self.store, tars, ".tar")
        if not self._paths:
            raise FileNotFoundError(errno.ENOENT, "there are no tar shards", _shown(tars))
        self.path = self._paths[0] if len(self._paths) == 1 else f"{self._paths[0]} and {len(self._paths) - 1} more"
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="stoker-index") as pool:
            indexes = list(pool.map(self._index, self._paths))
        self._shards = [shard for shard, _, _, _ in indexes]
        self._firsts, self._starts, self._lens = array("Q", [0]), array("Q"), array("Q")
        self._stems: list[list[bytes]] = []
        for _, starts, lens, stems in indexes:
            self._starts += starts
            self._lens += lens
            self._stems.append(stems)
            self._firsts.append(len(self._starts))
        self.identity = _identity("tars", ((one.key, one.size, one.etag) for one in self._shards))
        self._places: Places | None = None

    def _index(self, path: str) -> tuple[Shard, array[int], array[int], list[bytes]]:
        volume, key = paths.split_file(path)
        file = self.store._client.open(volume, key)
        info = json.loads(file.info())
        starts, lens, stems = array("Q"), array("Q"), []
        try:
            for stem, offset, length in samples_of(file.read, file.size):
                starts.append(offset)
                lens.append(length)
                stems.append(stem)
        except TarError as fault:
            raise CorruptError(errno.EIO, f"{fault}: this is no whole tar; pack it again", path) from None
        return Shard(path, file.size, info["version"], info["etag"]), starts, lens, stems

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def places(self) -> Places:
        if self._places is None:
            self._places = Places.listed(self.path, self._firsts, self._starts, self._lens)
        return self._places

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_places": None}

    @property
    def is_tar(self) -> bool:
        return True

    def file_path(self, number: int) -> str:
        return self._paths[number]

    def wanted(self, number: int) -> Wanted:
        shard = self._shards[number]
        return (*paths.split_file(shard.key), shard.size, shard.version, shard.etag)

    def name(self, sample: int) -> str:
        shard = bisect_right(self._firsts, sample) - 1
        return paths.text(self._stems[shard][sample - self._firsts[shard]])

    def members(self, sample: int, view: memoryview, *, views: bool = False) -> dict[str, Any]:
        return tar_members(view, views)


class FileSource(Source):
    """Plain files, one sample each. Every sample is an open of its own, which is what `stoker pack` saves."""

    sample_faults = (CorruptError, FileNotFoundError, ConflictError)

    def __init__(
        self,
        files: Path | Iterable[Path | FileInfo],
        *,
        suffix: str = "",
        store: Store | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(Link(store, token))
        infos = _infos(self.store, files, suffix)
        if not infos:
            raise FileNotFoundError(errno.ENOENT, "there are no files", _shown(files))
        self._paths = [info.path for info in infos]
        self._sizes = array("Q", [info.size for info in infos])
        self._etags = [info.etag for info in infos]
        self.path = self._paths[0] if len(infos) == 1 else f"{self._paths[0]} and {len(infos) - 1} more"
        self.identity = _identity("files", zip(self._paths, self._sizes, self._etags))
        self._places: Places | None = None

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def places(self) -> Places:
        if self._places is None:
            self._places = Places.whole(self.path, self._sizes)
        return self._places

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_places": None}

    def file_path(self, number: int) -> str:
        return self._paths[number]

    def wanted(self, number: int) -> Wanted:
        return (*paths.split_file(self._paths[number]), self._sizes[number], "", self._etags[number])

    def name(self, sample: int) -> str:
        return self._paths[sample]

    def members(self, sample: int, view: memoryview, *, views: bool = False) -> dict[str, Any]:
        stem, extension = stem_of(paths.split(self._paths[sample])[1])
        return {"__key__": paths.text(stem), paths.text(extension).lower() or "bin": view if views else bytes(view)}


def tar_members(view: Any, views: bool = False) -> dict[str, Any]:
    """The members of a sample of a tar."""
    return members(view, views)


def open_seal(path: Path, *, store: Store | None = None, token: str | None = None) -> SealSource:
    """Opens a sealed dataset.

    >>> source = stoker.data.open_seal("data/imagenet/train.seal")
    """
    return SealSource(path, store=store, token=token)


def open_tars(tars: Path | Iterable[Path], *, store: Store | None = None, token: str | None = None) -> TarSource:
    """Opens tar shards that have no seal: paths, or a directory (ending with ``/``) whose ``.tar`` files are meant.

    >>> source = stoker.data.open_tars("data/shards/")
    """
    return TarSource(tars, store=store, token=token)


def open_files(
    files: Path | Iterable[Path | FileInfo], *, suffix: str = "", store: Store | None = None, token: str | None = None
) -> FileSource:
    """Opens plain files: paths, lines of a listing (which saves asking for each), or a directory (ending with ``/``).

    >>> source = stoker.data.open_files("data/images/", suffix=".jpg")
    """
    return FileSource(files, suffix=suffix, store=store, token=token)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _shown(value: Any) -> str:
    return os.fspath(value) if _is_path(value) else f"a list of {type(value).__name__}"


def _expand(store: Store, given: Path | Iterable[Path], suffix: str) -> list[str]:
    if not _is_path(given):
        return [paths.join(*paths.split_file(one)) for one in given]  # type: ignore[union-attr]
    whole = os.fspath(given)  # type: ignore[arg-type]
    if not whole.endswith("/"):
        return [paths.join(*paths.split_file(whole))]
    return [info.path for info in store.list(whole, recursive=True) if info.path.endswith(suffix)]


def _infos(store: Store, given: Path | Iterable[Path | FileInfo], suffix: str) -> list[FileInfo]:
    if _is_path(given) and os.fspath(given).endswith("/"):  # type: ignore[arg-type]
        listed = store.list(given, recursive=True)  # type: ignore[arg-type]
        return [info for info in listed if info.path.endswith(suffix) and not info.path.endswith("/")]
    listing = [given] if _is_path(given) else list(given)  # type: ignore[arg-type]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="stoker-stat") as pool:
        return list(pool.map(lambda one: one if isinstance(one, FileInfo) else store.stat(one), listing))


def _identity(kind: str, rows: Iterable[Sequence[Any]]) -> str:
    digest = hashlib.blake2b(kind.encode(), digest_size=8, person=b"stoker.data")
    for row in rows:
        digest.update(json.dumps(list(row)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
