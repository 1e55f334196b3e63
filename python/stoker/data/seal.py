"""Seals: which bytes of which shard are which sample.

A seal is fetched once, checked whole, and then answers by itself: no sample costs a question to the catalog. Nothing in it
is believed before it was checked against the length of the file and both checksums, so that what follows may index freely.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import paths
from .._stoker import CorruptError, Places, crc64
from ..store import Store

MAGIC = b"STKRSEAL"
VERSION = 1
HEADER = 128
#: Sections start at multiples of this.
ALIGN = 64
#: Unit of STARTS.
BLOCK = 512
NAMES_PER_BLOCK = 16
FLAG_NAMES, FLAG_TAR = 1, 2

SAMPLES_MAX = (1 << 32) - 1
SHARDS_MAX = 1_000_000
SHARDS_BYTES_MAX = 256 << 20
NAME_BYTES_MAX = 4096
#: Seals up to this length are kept in memory; longer ones in a file without a name, which processes that are forked share.
IN_MEMORY_MAX = 8 << 20

_SECTIONS = ("SHARDS", "FIRSTS", "STARTS", "LENS", "NAMES")


@dataclass(frozen=True, slots=True)
class Shard:
    """A file that holds samples, as it was when it was sealed."""

    key: str
    size: int
    version: str
    etag: str


class Seal:
    """A dataset's list of samples.

    >>> seal = Seal.open(stoker.connect(), "data/train.seal")
    >>> len(seal), seal.identity
    (1281167, '90c5ab1b3ad1b0f7')
    >>> seal.locate(5)  # number of the shard, offset, length
    (0, 81920, 16384)
    """

    def __init__(self, data: Any, path: str = "seal") -> None:
        """Checks the bytes of a seal; ``path`` is for errors. The bytes must not change afterwards."""
        self.path = path
        if sys.byteorder != "little":
            raise NotImplementedError("seals are read on little-endian machines")
        self._view = memoryview(data).cast("B")
        self._read_header()
        self._read_shards()
        self._read_samples()
        self._read_names()

    @classmethod
    def open(cls, store: Store, path: str | os.PathLike[str]) -> Seal:
        """Fetches a seal: one open, one read."""
        volume, key = paths.split_file(path)
        whole = paths.join(volume, key)
        with store.open(whole, buffering=0) as file:
            if file.size < HEADER + 8:
                raise ValueError(f"{whole}: {file.size} bytes are no seal; make one with `stoker seal`")
            memory = _memory(file.size)
            file.readinto_at(memory, 0)
        return cls(memory, whole)

    def __len__(self) -> int:
        return self.samples

    def __repr__(self) -> str:
        return f"<stoker.data.Seal {self.path} {self.identity}: {self.samples} samples, {len(self.shards)} shards>"

    def shard_path(self, number: int) -> str:
        """Path of a shard."""
        return f"{paths.SCHEME}{self.volume}/{self.shards[number].key}"

    def locate(self, sample: int) -> tuple[int, int, int]:
        """Where a sample is: number of its shard, offset, length."""
        if not 0 <= sample < self.samples:
            raise IndexError(f"{self.path}: sample {sample} of {self.samples}")
        shard = bisect_right(self._firsts, sample) - 1
        return shard, self._starts[sample] * BLOCK, self._lens[sample]

    def locate_many(self, samples: Sequence[int]) -> list[tuple[int, int, int]]:
        """The same for many."""
        return self.places.locate_many(list(samples))

    def name(self, sample: int) -> str | None:
        """The stem of a sample's members, if the seal has names."""
        if not 0 <= sample < self.samples:
            raise IndexError(f"{self.path}: sample {sample} of {self.samples}")
        if self._names is None:
            return None
        block, inside = divmod(sample, NAMES_PER_BLOCK)
        for number, name in enumerate(self._names_of(block)):
            if number == inside:
                return paths.text(name)
        raise self._corrupt(f"block {block} of the names ends early")

    def names(self) -> Iterator[str]:
        """All names, in order."""
        if self._names is None:
            raise ValueError(f"{self.path}: this seal was made without names")
        for block in range(len(self._name_offsets)):
            for name in self._names_of(block):
                yield paths.text(name)

    # How the bytes are checked

    def _corrupt(self, what: str) -> CorruptError:
        return CorruptError(errno.EIO, f"{what}; the seal is damaged: make it again with `stoker seal`", self.path)

    def _read_header(self) -> None:
        view, size = self._view, len(self._view)
        if size < HEADER + 8 or bytes(view[:8]) != MAGIC:
            raise ValueError(f"{self.path}: this is no seal; make one with `stoker seal`")
        version, flags = struct.unpack_from("<II", view, 8)
        if version != VERSION:
            raise ValueError(
                f"{self.path}: a seal of version {version}, and this package reads {VERSION}: install a newer `stoker`"
            )
        (sum_header,) = struct.unpack_from("<Q", view, 120)
        if crc64(view[:120]) != sum_header:
            raise self._corrupt("the header does not have its checksum")
        (sum_file,) = struct.unpack_from("<Q", view, size - 8)
        if crc64(view[: size - 8]) != sum_file:
            raise self._corrupt("the file does not have its checksum")
        if flags & ~(FLAG_NAMES | FLAG_TAR):
            raise ValueError(f"{self.path}: flags {flags:#x} are not known: install a newer `stoker`")
        #: 16 hex digits that stand for exactly these samples.
        self.identity = f"{sum_file:016x}"
        #: Whether samples are members of tars.
        self.is_tar = bool(flags & FLAG_TAR)
        self._has_names = bool(flags & FLAG_NAMES)
        counts: tuple[int, int, int] = struct.unpack_from("<QQQ", view, 16)
        self.samples, self._shard_count, self.bytes_total = counts
        if self.samples > SAMPLES_MAX:
            raise self._corrupt(f"{self.samples} samples are more than {SAMPLES_MAX}")
        if self._shard_count > SHARDS_MAX:
            raise self._corrupt(f"{self._shard_count} shards are more than {SHARDS_MAX}")
        self._read_sections(size - 8)

    def _read_sections(self, end: int) -> None:
        wanted = {"FIRSTS": 8 * (self._shard_count + 1), "STARTS": 4 * self.samples, "LENS": 4 * self.samples}
        self._section: dict[str, memoryview] = {}
        at = HEADER
        for number, name in enumerate(_SECTIONS):
            offset, length = struct.unpack_from("<QQ", self._view, 40 + 16 * number)
            if name == "NAMES" and not self._has_names:
                if length:
                    raise self._corrupt("there are names, but no flag for them")
                continue
            if length != wanted.get(name, length):
                raise self._corrupt(f"section {name} has {length} bytes instead of {wanted[name]}")
            if offset % ALIGN or offset < at or offset - at >= ALIGN or length > end - offset:
                raise self._corrupt(f"section {name} ({length} bytes at {offset}) is not where it has to be")
            if any(self._view[at:offset]):
                raise self._corrupt(f"there is something in front of section {name}")
            self._section[name] = self._view[offset : offset + length]
            at = offset + length
        if end - at >= ALIGN or any(self._view[at:end]):
            raise self._corrupt("there is something behind the last section")

    def _read_shards(self) -> None:
        section = self._section["SHARDS"]
        if len(section) > SHARDS_BYTES_MAX:
            raise self._corrupt(f"section SHARDS has {len(section)} bytes, more than {SHARDS_BYTES_MAX}")
        try:
            said = json.loads(bytes(section))
            #: The volume that the shards are in.
            self.volume = _text(said["volume"])
            self.shards = [
                Shard(_key(one["key"]), _size(one["size"]), _text(one["version"]), _text(one["etag"]))
                for one in said["shards"]
            ]
            #: Who made the seal, and how.
            self.made: dict[str, Any] = dict(said.get("made") or {})
        except (ValueError, KeyError, TypeError, RecursionError) as fault:
            raise self._corrupt(f"section SHARDS cannot be read ({type(fault).__name__}: {fault})") from None
        if not self.volume or "/" in self.volume:
            raise self._corrupt(f"{self.volume!r} is no volume")
        if len(self.shards) != self._shard_count:
            raise self._corrupt(f"{len(self.shards)} shards are listed instead of {self._shard_count}")

    def _read_samples(self) -> None:
        self._firsts = self._section["FIRSTS"].cast("Q")
        self._starts = self._section["STARTS"].cast("I")
        self._lens = self._section["LENS"].cast("I")
        before = 0
        for number, first in enumerate(self._firsts):
            if first < before or (number == 0 and first != 0):
                raise self._corrupt(f"shard {number} begins with sample {first}, behind {before}")
            before = first
        if before != self.samples:
            raise self._corrupt(f"the shards have {before} samples instead of {self.samples}")
        #: Where samples are, for those that read them.
        self.places = Places.sealed(self.path, *(self._section[name] for name in ("FIRSTS", "STARTS", "LENS")))
        total, bad = self.places.check([shard.size for shard in self.shards])
        if bad is not None:
            raise self._outside(bad)
        if total != self.bytes_total:
            raise self._corrupt(f"the samples have {total} bytes instead of {self.bytes_total}")

    def _outside(self, sample: int) -> CorruptError:
        shard, offset, length = self.locate(sample)
        where = f"{length} bytes at {offset} of {self.shards[shard].key} ({self.shards[shard].size} bytes)"
        return self._corrupt(f"sample {sample} is not in order or not inside of its shard: {where}")

    def _read_names(self) -> None:
        self._names: memoryview | None = None
        if not self._has_names:
            return
        section = self._section["NAMES"]
        wanted = -(-self.samples // NAMES_PER_BLOCK)
        if len(section) < 4 + 4 * wanted or struct.unpack_from("<I", section)[0] != wanted:
            raise self._corrupt("the names do not have one block for 16 samples")
        self._name_offsets = section[4 : 4 + 4 * wanted].cast("I")
        self._names = section[4 + 4 * wanted :]
        before = 0
        for offset in self._name_offsets:
            if offset < before or offset > len(self._names):
                raise self._corrupt("a block of names is not inside of its section")
            before = offset

    def _names_of(self, block: int) -> Iterator[bytes]:
        assert self._names is not None
        at, name = self._name_offsets[block], b""
        last = block + 1 == len(self._name_offsets)
        end = len(self._names) if last else self._name_offsets[block + 1]
        for number in range(min(NAMES_PER_BLOCK, self.samples - block * NAMES_PER_BLOCK)):
            shared, at = self._varint(at, end)
            rest, at = self._varint(at, end)
            if shared > len(name) or rest > end - at or shared + rest > NAME_BYTES_MAX or (number == 0 and shared):
                raise self._corrupt(f"name {number} of block {block} cannot be read")
            name = name[:shared] + bytes(self._names[at : at + rest])
            at += rest
            yield name

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        assert self._names is not None
        value = 0
        for shift in range(0, 35, 7):
            if at >= end:
                break
            byte = self._names[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise self._corrupt("a number in the names does not end")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is wanted, not {value!r:.40}")
    return value


def _key(value: Any) -> str:
    if not paths.key_of(_text(value)):
        raise ValueError("a shard without a key")
    return str(value)


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise TypeError(f"a size is wanted, not {value!r:.40}")
    return value


def _memory(size: int) -> bytearray | mmap.mmap:
    """Memory for a seal. A long one is in a file that has no name, so that the machine can write it out instead of swapping."""
    if size <= IN_MEMORY_MAX:
        return bytearray(size)
    with tempfile.TemporaryFile(prefix="stoker-seal-") as file:
        # Space is taken now: a full disk is an error here, and would be a fatal signal in the mapping.
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)
