"""A second writer of seals and shards, from the page on the format: what it writes the package has to read."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import stoker
from stoker._stoker import crc64

ALIGN = 64


@dataclass
class Packed:
    """A tar in the making: its bytes and its samples."""

    data: bytes
    samples: list[tuple[str, int, int]]


def pack(samples: Iterable[tuple[str, dict[str, bytes]]], format: int = tarfile.USTAR_FORMAT) -> Packed:
    """A tar of samples: (stem, {extension: bytes})."""
    file = io.BytesIO()
    ranges = []
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for stem, members in samples:
            start = tar.offset
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{stem}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            ranges.append((stem, start, tar.offset - start))
    return Packed(file.getvalue(), ranges)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def front_coded(names: Sequence[bytes]) -> bytes:
    """Section NAMES."""
    offsets, blocks = [], bytearray()
    for start in range(0, len(names), 16):
        offsets.append(len(blocks))
        before = b""
        for name in names[start : start + 16]:
            shared = 0
            while shared < min(len(before), len(name)) and before[shared] == name[shared]:
                shared += 1
            blocks += _varint(shared) + _varint(len(name) - shared) + name[shared:]
            before = name
    return struct.pack(f"<I{len(offsets)}I", len(offsets), *offsets) + bytes(blocks)


def seal_bytes(
    volume: str,
    shards: Sequence[dict[str, object]],
    samples: Sequence[Sequence[tuple[str, int, int]]],
    *,
    names: bool = True,
    tar: bool = True,
) -> bytes:
    """A seal: for each shard its row, and (stem, start, length) of its samples."""
    flat = [one for shard in samples for one in shard]
    firsts = [0]
    for shard in samples:
        firsts.append(firsts[-1] + len(shard))
    said = {"volume": volume, "shards": list(shards), "made": {"by": "stoker seal"}}
    sections = [
        json.dumps(said).encode(),
        struct.pack(f"<{len(firsts)}Q", *firsts),
        struct.pack(f"<{len(flat)}I", *(start // 512 for _, start, _ in flat)),
        struct.pack(f"<{len(flat)}I", *(length for _, _, length in flat)),
        front_coded([stem.encode() for stem, _, _ in flat]) if names else b"",
    ]
    return sealed(sections, len(flat), len(shards), sum(length for _, _, length in flat), int(names) | 2 * int(tar))


def sealed(sections: Sequence[bytes], samples: int, shards: int, total: int, flags: int, version: int = 1) -> bytes:
    """Header, sections and checksums, right whatever the sections are."""
    body, places = b"", []
    for section in sections:
        body += bytes(-(128 + len(body)) % ALIGN)
        places += [128 + len(body), len(section)]
        body += section
    header = b"STKRSEAL" + struct.pack("<IIQQQ10Q", version, flags, samples, shards, total, *places)
    assert len(header) == 120
    whole = header + struct.pack("<Q", crc64(header)) + body
    return whole + struct.pack("<Q", crc64(whole))


def content(number: int, size: int) -> bytes:
    """Bytes that say which sample they are."""
    return (f"{number:08d}-" * (size // 9 + 1)).encode()[:size]


def make_dataset(store: stoker.Store, place: str, *, shards: int = 4, each: int = 25, size: int = 3000) -> str:
    """Shards and their seal in a directory; returns the path of the seal. Sample n is ``{n:06}.bin`` and ``{n:06}.cls``."""
    rows, ranges = [], []
    for shard in range(shards):
        numbers = range(shard * each, (shard + 1) * each)
        packed = pack((f"{n:06}", {"bin": content(n, size + n % 700), "cls": str(n).encode()}) for n in numbers)
        path = f"{place}/shard-{shard:04}.tar"
        receipt = store.write(path, packed.data)
        rows.append({"key": receipt.key, "size": receipt.size, "version": receipt.version, "etag": receipt.etag})
        ranges.append(packed.samples)
    store.write(f"{place}/train.seal", seal_bytes(place.partition("/")[0], rows, ranges))
    return f"{place}/train.seal"
