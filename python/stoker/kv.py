"""KV-cache blocks for inference: memory in front, the drives of the cluster behind.

>>> import stoker.kv
>>> cache = stoker.kv.open(
...     "kvcache/llama-8b",
...     {"model": "llama-8b", "engine": "vllm-0.11", "layout": "NHD", "dtype": "bf16", "parallelism": "tp=2,rank=0"},
...     capacity=200 << 30,
... )
>>> cache.put_many([b"block-0", b"block-1"], [bytes(100_000), bytes(100_000)], commit=True)
['committed', 'committed']
>>> cache.exists_many([b"block-0", b"block-1", b"block-2"])
2
>>> into = [bytearray(100_000), bytearray(100_000)]
>>> cache.get_many([b"block-0", b"block-2"], into)
[100000, None]

A block is only found under the fingerprint that it was put with, and only if its bytes are what was put: a wrong block is a miss.
`docs/kv.md` says what is kept where and for how long, and draws the bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, overload

from . import paths
from ._stoker import Kv
from .store import Store

Key = bytes | str
#: Where a block is after it was put: in the volume with its class; in memory and on its way there; in memory only; nowhere, for
#: want of memory, but its name is remembered, so that its next put writes it.
Stored = Literal["committed", "queued", "memory", "seen"]

_STORED: tuple[Stored, ...] = ("committed", "queued", "memory", "seen")

__all__ = ["Cache", "Key", "Stats", "Stored", "open"]


@dataclass(frozen=True)
class Stats:
    """What a cache counted since it was opened, and how much there is now."""

    #: Blocks that were found in memory.
    hits_memory: int
    #: Blocks that were read from the volume.
    hits_ring: int
    #: Blocks that were asked for and not found; wrong ones are among them.
    misses: int
    #: Blocks whose bytes did not fit their sum.
    corrupt: int
    #: Blocks that were put.
    puts: int
    #: Blocks that were written to the volume, and their bytes.
    admitted: int
    admitted_bytes: int
    #: Blocks that were to be written and stayed in memory, because too many were under way.
    skipped: int
    bundles_written: int
    #: Bundles that were deleted to make room, and their bytes.
    evictions: int
    evicted_bytes: int
    #: Blocks that were to be written and could not be.
    write_errors: int
    #: Times that the bundles were listed.
    refreshes: int
    memory_blocks: int
    memory_bytes: int
    #: Bytes that wait to be written.
    queued_bytes: int
    #: Bundles that are known, and files among them that are damaged or foreign.
    bundles: int
    bundles_bad: int
    #: Blocks that are known in the volume, of all fingerprints.
    blocks: int
    #: Bytes of all bundles: what `capacity` is about.
    bytes: int

    @property
    def hits(self) -> int:
        """Blocks that were found."""
        return self.hits_memory + self.hits_ring


def _milliseconds(seconds: float | None, what: str) -> int | None:
    if seconds is None:
        return None
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"{what} is a number of seconds above 0, not {seconds!r}")
    return max(1, round(seconds * 1000))


def _fields(fingerprint: Mapping[str, object]) -> list[tuple[str, str]]:
    if not isinstance(fingerprint, Mapping) or not fingerprint:
        hint = "{'model': ..., 'engine': ..., 'layout': ..., 'dtype': ..., 'parallelism': ...}"
        raise ValueError(f"a fingerprint says what makes the blocks: {hint}")
    return [(str(name), str(value)) for name, value in fingerprint.items()]


def _memory(block: Any) -> Any:
    """The memory of a block: a tensor shows its bytes; whatever else has the buffer protocol is used as it is; a tuple has parts."""
    if isinstance(block, (tuple, list)):
        return tuple(_memory(part) for part in block)
    if not hasattr(block, "untyped_storage"):
        return block
    if block.device.type != "cpu":
        raise ValueError(f"a tensor on {block.device}: copy it to memory first (tensor.cpu())")
    if not block.is_contiguous():
        raise ValueError("a tensor whose elements do not lie one behind the other: use tensor.contiguous()")
    import torch

    return block.detach().reshape(-1).view(torch.uint8).numpy()


class Cache:
    """Blocks under one fingerprint in one directory. Safe to use from threads, and in processes that were forked: each of these
    has memory of its own, and finds what is in the volume. Made by :func:`open`."""

    def __init__(self, native: Kv, path: str) -> None:
        self._native = native
        self._path = path

    def __repr__(self) -> str:
        return f"<stoker.kv.Cache {self._path} {self._native.fingerprint[:16]}>"

    @property
    def path(self) -> str:
        """Its directory."""
        return self._path

    @property
    def fingerprint(self) -> str:
        """What the fingerprint came to, as 64 hex digits."""
        return str(self._native.fingerprint)

    def namespace(self, fingerprint: Mapping[str, object]) -> Cache:
        """The same cache, its memory and its limits under another fingerprint."""
        return Cache(self._native.space(_fields(fingerprint)), self._path)

    # What is there

    def exists_many(self, keys: Sequence[Key]) -> int:
        """How many of the keys in front are there, without a gap. Looks at memory alone; blocks that another process wrote
        show a moment later (see ``refresh``)."""
        return self._native.exists_many(keys)

    def contains_many(self, keys: Sequence[Key]) -> list[bool]:
        """Which keys are there. Looks at memory alone."""
        return self._native.contains_many(keys)

    def __contains__(self, key: Key) -> bool:
        return self._native.exists_many((key,)) == 1

    def lengths(self, keys: Sequence[Key]) -> list[int | None]:
        """How many bytes blocks have, ``None`` for those that are not there. Looks at memory alone."""
        return self._native.len_many(keys)

    # Getting

    def get(self, key: Key) -> bytes | None:
        """A block, or ``None``."""
        return self._native.get(key)

    @overload
    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]: ...
    @overload
    def get_many(self, keys: Sequence[Key], into: Sequence[Any]) -> list[int | None]: ...

    def get_many(self, keys: Sequence[Key], into: Sequence[Any] | None = None) -> list[bytes | None] | list[int | None]:
        """Blocks, read at once.

        ``into`` are buffers to fill, one for each key and at least as long as its block: ``bytearray``, NumPy arrays, torch
        tensors in CPU memory. The answer has the length of each block, or ``None`` where there is none; what is in the buffer of
        such a one afterwards means nothing. A tuple of buffers is filled one behind the other. Without ``into`` the answer has
        the bytes, which costs a copy more.

        >>> tensor = torch.empty(2, 32, 1024, dtype=torch.bfloat16)  # doctest: +SKIP
        >>> cache.get_many([b"block-0"], [tensor])  # doctest: +SKIP
        [131072]

        Raises ``ValueError`` for a buffer that is too short and ``ConnectionError`` if the node does not answer; a block that is
        damaged or gone is ``None``.
        """
        if into is None:
            return self._native.get_many(keys)
        return self._native.get_many_into(keys, [_memory(one) for one in into])

    # Putting

    def put(self, key: Key, block: Any, *, ttl: float | None = None, commit: bool = False) -> Stored:
        """Puts one block; see ``put_many``."""
        return self.put_many((key,), (block,), ttl=ttl, commit=commit)[0]

    def put_many(
        self, keys: Sequence[Key], blocks: Sequence[Any], *, ttl: float | None = None, commit: bool = False
    ) -> list[Stored]:
        """Puts copies of blocks; when this returns, their memory may be used again. A tuple of buffers is one block: keys and values
        of a layer need not be joined first.

        A block that is put for the first time stays in memory (``"memory"``), and is written to the volume when it is put or read
        again: most blocks are never wanted twice. With ``commit`` all are written now, and this returns when they are in the
        volume with its class. ``"committed"`` is never said of anything else. ``ttl`` is how many seconds they are good.
        """
        said = self._native.put_many(keys, [_memory(one) for one in blocks], _milliseconds(ttl, "ttl"), commit)
        return [_STORED[one] for one in said]

    # The rest

    def flush(self) -> None:
        """Waits until everything that is on its way is in the volume. Raises what went wrong since the last time."""
        self._native.flush()

    def refresh(self) -> None:
        """Looks for bundles of other processes. This also happens by itself when something is not found, at most every
        ``refresh`` seconds, for the next time that it is asked for."""
        self._native.refresh()

    def clear(self) -> None:
        """Deletes all blocks, those of other fingerprints and processes too."""
        self._native.clear()

    def stats(self) -> Stats:
        """Counters of this process."""
        return Stats(**json.loads(self._native.stats()))

    def close(self) -> None:
        """Waits for what is on its way. What is only in memory is lost."""
        self.flush()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()


def open(
    path: str | os.PathLike[str],
    fingerprint: Mapping[str, object],
    *,
    capacity: int = 64 << 30,
    memory: int = 1 << 30,
    ttl: float | None = None,
    admit: Literal["second-use", "always"] = "second-use",
    bundle_bytes: int = 64 << 20,
    refresh: float = 1.0,
    linger: float = 0.2,
    store: Store | None = None,
) -> Cache:
    """Opens the cache in a directory of a volume, ``VOLUME/DIRECTORY``; it is made by the first block.

    ``fingerprint`` is a mapping that says what makes the blocks: model and its revision, engine, layout, type of numbers,
    parallelism. A block that was put under another one is never found. ``capacity`` is the number of bytes that all bundles in
    the directory have at most, ``memory`` that of blocks in this process. ``ttl`` is how many seconds blocks are good if a put
    says nothing else. ``admit="always"`` writes every block when it is put. Blocks that nobody waits for wait ``linger`` seconds
    for others to share their bundle.

    Use a volume that keeps its files to itself: ``stoker volume create kvcache --drain never``.

    Raises ``FileNotFoundError`` for a volume that is not there, ``ConnectionError`` if no node answers, ``ValueError`` for
    arguments that make no sense.
    """
    if admit not in ("second-use", "always"):
        raise ValueError(f"admit is 'second-use' or 'always', not {admit!r}")
    fields = _fields(fingerprint)
    ttl_ms, refresh_ms = _milliseconds(ttl, "ttl"), _milliseconds(refresh, "refresh")
    linger_ms = _milliseconds(linger, "linger") if linger else 0
    for name, value in (("capacity", capacity), ("memory", memory), ("bundle_bytes", bundle_bytes)):
        if not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise ValueError(f"{name} is a number of bytes, not {value!r}")
    volume, key = paths.split_file(path)
    if store is None:
        from .connecting import connect

        store = connect()
    directory = paths.text(key).rstrip("/")
    try:
        native = Kv(
            store._client, volume, directory, fields, capacity, memory, bundle_bytes, ttl_ms, admit == "always", refresh_ms, linger_ms
        )
    except FileNotFoundError as fault:
        hint = f"make the volume first: stoker volume create {volume} --drain never"
        raise FileNotFoundError(fault.errno, f"{fault.strerror}; {hint}", fault.filename) from None
    return Cache(native, paths.join(volume, paths.key_of(directory)))
