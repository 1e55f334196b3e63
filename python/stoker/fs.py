"""``stoker://`` for fsspec, and with it for pandas, pyarrow, Hugging Face datasets, Lightning and others.

>>> import pandas
>>> pandas.read_parquet("stoker://data/train.parquet")  # doctest: +SKIP
"""

from __future__ import annotations

import datetime
import io
import sys
import warnings
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from . import paths
from .connecting import connect
from .files import Reader
from .receipts import FileInfo
from .store import Store


class StokerFileSystem(AbstractFileSystem):
    """A file system of fsspec. Directories are what their files make of them; an empty one is a key that ends with ``/``.

    ``storage_options`` are the arguments of :func:`stoker.connect`.
    """

    protocol = "stoker"
    root_marker = ""
    cachable = True

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | None = None,
        dir: str | None = None,
        store: Store | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store = store or connect(endpoint, token=token, dir=dir)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = super()._strip_protocol(path)
        return path.lstrip("/")

    def unstrip_protocol(self, name: str) -> str:
        return f"{paths.SCHEME}{self._strip_protocol(name)}"

    # What is there

    def _entry(self, found: FileInfo) -> dict[str, Any]:
        name = found.path[len(paths.SCHEME) :].rstrip("/")
        if found.is_directory or found.path.endswith("/"):
            return {"name": name, "size": 0, "type": "directory"}
        return {
            "name": name,
            "size": found.size,
            "type": "file",
            "etag": found.etag,
            "mtime": found.modified,
            "LastModified": datetime.datetime.fromtimestamp(found.modified, datetime.timezone.utc),
        }

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path).rstrip("/")
        if not path:
            entries = [{"name": name, "size": 0, "type": "directory"} for name in self.store.volumes()]
            return entries if detail else [entry["name"] for entry in entries]
        own = path + "/"
        found = [self._entry(one) for one in self.store.list(own) if one.path != paths.SCHEME + own]
        if not found:
            volume, key = paths.split(path)
            if not key:
                self.store.volume(volume)
            elif not self.store.exists(own):
                found = [self._entry(self.store.stat(path))]
        # `a` and `a/b` may both be keys; fsspec shows the file.
        names = {entry["name"] for entry in found if entry["type"] == "file"}
        found = [entry for entry in found if entry["type"] == "file" or entry["name"] not in names]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path).rstrip("/")
        if not path:
            return {"name": "", "size": 0, "type": "directory"}
        volume, key = paths.split(path)
        directory = {"name": path, "size": 0, "type": "directory"}
        if not key:
            self.store.volume(volume)
            return directory
        try:
            return self._entry(self.store.stat(path))
        except FileNotFoundError:
            if next(self.store._list(volume, key + b"/", b"/"), None) is None:
                raise
            return directory

    def exists(self, path: str, **kwargs: Any) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        path = self._strip_protocol(path).rstrip("/")
        if not path:
            return super().find(path, detail=detail, **kwargs)
        found = [self._entry(one) for one in self.store.list(path + "/", recursive=True) if not one.path.endswith("/")]
        if not found and paths.split(path)[1] and self.store.exists(path):
            found = [self._entry(self.store.stat(path))]
        return {entry["name"]: entry for entry in found} if detail else [entry["name"] for entry in found]

    def modified(self, path: str) -> datetime.datetime:
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        when: datetime.datetime = info["LastModified"]
        return when

    created = modified

    def checksum(self, path: str) -> int:
        return int(self.ukey(path), 16)

    def ukey(self, path: str) -> str:
        return str(self.info(path)["etag"]).partition("-")[0] or "0"

    # Changes

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path).rstrip("/")
        volume, key = paths.split(path)
        if not key:
            if volume in self.store.volumes():
                raise FileExistsError(path)
            self.store.create_volume(volume)
            return
        if self.exists(path):
            raise FileExistsError(path)
        self.store.write(path + "/", b"")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path).rstrip("/")
        if self.exists(path):
            if not exist_ok or not self.isdir(path):
                raise FileExistsError(path)
            return
        volume, key = paths.split(path)
        if volume not in self.store.volumes():
            self.store.create_volume(volume)
        if key:
            self.store.write(path + "/", b"")

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path).rstrip("/")
        if not self.isdir(path):
            raise FileNotFoundError(path) if not self.exists(path) else NotADirectoryError(path)
        if self.ls(path):
            raise OSError(39, "the directory is not empty", path)
        if paths.split(path)[1]:
            self.store.remove(path + "/")

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        if not self.store.remove(path):
            raise FileNotFoundError(2, "no such file", path)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in [path] if isinstance(path, str) else path:
            for name in self.expand_path(one, recursive=False) if "*" in one else [self._strip_protocol(one)]:
                name = name.rstrip("/")
                if not self.isdir(name):
                    self.rm_file(name)
                elif not recursive:
                    raise IsADirectoryError(21, "give recursive=True to remove a directory", name)
                else:
                    batch: list[str] = []
                    for found in self.store.list(name + "/", recursive=True):
                        batch.append(found.path)
                        if len(batch) == 1000:
                            self.store.remove(*batch)
                            batch.clear()
                    if batch:
                        self.store.remove(*batch)
        return None

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1).rstrip("/"), self._strip_protocol(path2).rstrip("/")
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        self.store.copy(path1, path2)

    def mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.store.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1).rstrip("/"), self._strip_protocol(path2).rstrip("/")
        same_volume = paths.split(source)[0] == paths.split(target)[0]
        if same_volume and maxdepth is None and "*" not in source:
            if self.isdir(target):
                target = f"{target}/{source.rpartition('/')[2]}"
            slash = "/" if self.isdir(source) else ""
            # One transaction, however much is below.
            self.store.rename(source + slash, target + slash)
            return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    # Bytes

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        file = self._reader(path)
        begin, stop, _ = slice(start, end).indices(file.size)
        return file.read_at(begin, max(0, stop - begin))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        self.store.write(self._strip_protocol(path), value, exclusive=mode == "create")

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        if truncate or not self.exists(path):
            self.store.write(self._strip_protocol(path), b"")

    def _reader(self, path: str) -> Reader:
        return self.store.open(self._strip_protocol(path), "rb", buffering=0)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if mode in ("rb", "r"):
            size = block_size if isinstance(block_size, int) and block_size > 0 else 1 << 20
            return _Buffered(self._reader(path), size, self, path)
        if autocommit:
            return self.store.open(path, mode)  # type: ignore[call-overload]
        return _Held(self, path, mode)


class _Buffered(io.BufferedReader):
    """A reader that knows what fsspec's own files know."""

    def __init__(self, reader: Reader, size: int, fs: StokerFileSystem, path: str) -> None:
        super().__init__(reader, size)
        self.fs, self.path, self.size, self.blocksize = fs, path, reader.size, size

    @property
    def details(self) -> dict[str, Any]:
        return self.fs.info(self.path)

    def info(self) -> dict[str, Any]:
        return self.details


class _Held(AbstractBufferedFile):
    """A file of a transaction of fsspec: written when it is closed, seen when the transaction ends."""

    def __init__(self, fs: StokerFileSystem, path: str, mode: str) -> None:
        self._own: Any = fs.store.open(path, mode)  # type: ignore[call-overload]
        super().__init__(fs, path, mode, autocommit=False)

    def write(self, data: Any) -> int:
        self.loc += (count := self._own.write(data))
        return int(count)

    def flush(self, force: bool = False) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def commit(self) -> None:
        self._own.close()

    def discard(self) -> None:
        self._own.abort()


def _for_torch() -> None:
    """Where torch asks for `stoker://` it wants to save or load a checkpoint: see `stoker.torch.hook`."""
    if "torch.distributed.checkpoint" not in sys.modules:
        return
    try:
        from .torch import hook
    except ImportError as fault:
        message = f"stoker:// checkpoints of torch are plain files, not checkpoint sets: {fault}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return
    hook.install()


_for_torch()
