"""Seals: what is right is read, and nothing else is believed."""

from __future__ import annotations

import os
import pickle
import random
import struct
from typing import Any

import pytest

import stoker
from stoker._stoker import crc64
from stoker.data import Seal, open_seal, seal

from .sealing import content, front_coded, make_dataset, pack, seal_bytes, sealed

ROWS = [
    {"key": "a.tar", "size": 1 << 20, "version": "01", "etag": "e1"},
    {"key": "empty.tar", "size": 1024, "version": "02", "etag": "e2"},
    {"key": "deep/b.tar", "size": 1 << 22, "version": "03", "etag": "e3"},
]
SAMPLES = [
    [(f"train/{n:05}", n * 1024, 1000 + n) for n in range(40)],
    [],
    [(f"train/{n:05}é", (n - 40) * 2048, 2048) for n in range(40, 75)],
]


def slow_crc64(data: bytes) -> int:
    """CRC-64/NVME, bit by bit."""
    state = (1 << 64) - 1
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x9A6C9329AC4BC9B5 if state & 1 else 0)
    return state ^ ((1 << 64) - 1)


def test_crc() -> None:
    assert crc64(b"123456789") == 0xAE8B14860A799888
    assert crc64(b"") == 0
    data = random.Random(1).randbytes(10_003)
    assert crc64(data) == crc64(memoryview(bytearray(data))) == slow_crc64(data)


def test_what_was_sealed_is_read() -> None:
    data = seal_bytes("v", ROWS, SAMPLES)
    read = Seal(data)
    flat = [(shard, *one) for shard, samples in enumerate(SAMPLES) for one in samples]
    assert len(read) == 75 and read.volume == "v" and read.is_tar and read.made == {"by": "stoker seal"}
    assert [read.locate(n) for n in range(75)] == [(shard, start, length) for shard, _, start, length in flat]
    assert read.locate_many(range(75)) == [read.locate(n) for n in range(75)]
    assert [read.name(n) for n in range(75)] == [stem for _, stem, _, _ in flat] == list(read.names())
    assert read.identity == data[-8:][::-1].hex()
    assert read.shard_path(2) == "stoker://v/deep/b.tar"
    assert read.bytes_total == sum(length for *_, length in flat)


def test_without_names_and_without_samples() -> None:
    nameless = Seal(seal_bytes("v", ROWS, SAMPLES, names=False))
    assert nameless.name(3) is None
    with pytest.raises(ValueError, match="without names"):
        next(nameless.names())
    assert len(Seal(seal_bytes("v", [], []))) == 0


def test_samples_outside() -> None:
    read = Seal(seal_bytes("v", ROWS, SAMPLES))
    for call in (lambda: read.locate(75), lambda: read.locate(-1), lambda: read.name(75)):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(IndexError):
        read.locate_many([*range(20), 75])


@pytest.mark.parametrize("at", [0, 9, 13, 17, 40, 121, 130, 400, 900, -1, -9])
def test_one_wrong_bit(at: int) -> None:
    data = bytearray(seal_bytes("v", ROWS, SAMPLES))
    data[at] ^= 4
    with pytest.raises((stoker.CorruptError, ValueError)) as caught:
        Seal(data, "stoker://v/x.seal")
    assert "stoker://v/x.seal" in str(caught.value)


@pytest.mark.parametrize("length", [0, 7, 127, 128, 135, 500, -1])
def test_cut_short(length: int) -> None:
    data = seal_bytes("v", ROWS, SAMPLES)
    with pytest.raises((stoker.CorruptError, ValueError)):
        Seal(data[:length])
    with pytest.raises(stoker.CorruptError):
        Seal(data + bytes(8))


def test_another_version() -> None:
    data = bytearray(seal_bytes("v", ROWS, SAMPLES))
    struct.pack_into("<I", data, 8, 2)
    with pytest.raises(ValueError, match="version 2"):
        Seal(data)
    with pytest.raises(ValueError, match="flags"):
        Seal(sealed([b"{}", bytes(8), b"", b"", b""], 0, 0, 0, 4))


def sections(**change: bytes) -> list[bytes]:
    shards = b'{"volume": "v", "shards": [{"key": "a", "size": 4096, "version": "1", "etag": "e"}]}'
    right = {
        "shards": shards,
        "firsts": struct.pack("<2Q", 0, 2),
        "starts": struct.pack("<2I", 0, 2),
        "lens": struct.pack("<2I", 512, 1024),
        "names": front_coded([b"x1", b"x2"]),
    }
    return [change.get(name, value) for name, value in right.items()]


def test_these_sections_are_right() -> None:
    read = Seal(sealed(sections(), 2, 1, 1536, 3))
    assert read.locate_many([0, 1]) == [(0, 0, 512), (0, 1024, 1024)] and list(read.names()) == ["x1", "x2"]


def shards_json(text: str) -> dict[str, bytes]:
    return {"shards": text.encode()}


@pytest.mark.parametrize(
    "change",
    [
        {"firsts": struct.pack("<2Q", 1, 2)},
        {"firsts": struct.pack("<2Q", 0, 1)},
        {"firsts": struct.pack("<2Q", 0, 3)},
        {"firsts": struct.pack("<3Q", 0, 1, 2)},
        {"starts": struct.pack("<2I", 2, 0)},
        {"starts": struct.pack("<2I", 0, 7)},
        {"starts": struct.pack("<2I", 0, 0xFFFFFFFF)},
        {"starts": struct.pack("<1I", 0)},
        {"lens": struct.pack("<2I", 512, 0xFFFFFFFF)},
        {"lens": struct.pack("<2I", 512, 1025)},
        shards_json("[]"),
        shards_json("{"),
        shards_json('{"volume": "v", "shards": []}'),
        shards_json('{"volume": "", "shards": [{"key": "a", "size": 4096, "version": "1", "etag": "e"}]}'),
        shards_json('{"volume": "a/b", "shards": [{"key": "a", "size": 4096, "version": "1", "etag": "e"}]}'),
        shards_json('{"volume": "v", "shards": [{"key": "a", "size": -1, "version": "1", "etag": "e"}]}'),
        shards_json('{"volume": "v", "shards": [{"key": "a", "size": 1e30, "version": "1", "etag": "e"}]}'),
        shards_json('{"volume": "v", "shards": [{"key": 5, "size": 4096, "version": "1", "etag": "e"}]}'),
        shards_json('{"volume": "v", "shards": [{"size": 4096}]}'),
        shards_json('{"volume": "v", "shards": [{"key": "", "size": 4096, "version": "1", "etag": "e"}]}'),
        shards_json('{"volume": "v", "shards": [{"key": "\\ud800", "size": 4096, "version": "1", "etag": "e"}]}'),
        shards_json("[" * 100_000),
        {"names": b""},
        {"names": struct.pack("<2I", 1, 99)},
        {"names": struct.pack("<3I", 2, 0, 0)},
    ],
)
def test_sections_that_cannot_be(change: dict[str, bytes]) -> None:
    with pytest.raises(stoker.CorruptError, match="stoker seal"):
        Seal(sealed(sections(**change), 2, 1, 1536, 3))


@pytest.mark.parametrize(
    "block",
    [
        b"\x00",  # ends within a name
        b"\x01\x01x\x00\x01y",  # shares with nothing
        b"\x00\x05x",  # longer than the section
        b"\x00\x01x\x02\x01y",  # shares more than there is
        b"\x00\xff\xff\xff\xff\xff\xff\xff",  # a number without end
        b"\x00\xff\xff\x03" + bytes(65535),  # too long
    ],
)
def test_names_that_cannot_be(block: bytes) -> None:
    read = Seal(sealed(sections(names=struct.pack("<2I", 1, 0) + block), 2, 1, 1536, 3))
    with pytest.raises(stoker.CorruptError):
        list(read.names())
    with pytest.raises(stoker.CorruptError):
        read.name(1)


def test_counts_that_cannot_be() -> None:
    for samples, shards, total in [(1 << 33, 1, 1536), (2, 1 << 40, 1536), (2, 1, 1535), (3, 1, 1536)]:
        with pytest.raises(stoker.CorruptError):
            Seal(sealed(sections(), samples, shards, total, 3))
    with pytest.raises(stoker.CorruptError, match="no flag"):
        Seal(sealed(sections(), 2, 1, 1536, 2))


def test_any_damage_is_an_error_not_a_crash() -> None:
    """With checksums made right again, so that what is behind them is reached."""
    chance = random.Random(11)
    for _ in range(300):
        whole = bytearray(seal_bytes("v", ROWS, SAMPLES))[:-8]
        for _ in range(chance.randrange(1, 4)):
            whole[chance.randrange(8, len(whole))] = chance.randrange(256)
        whole[120:128] = struct.pack("<Q", crc64(whole[:120]))
        data = bytes(whole) + struct.pack("<Q", crc64(whole))
        try:
            read = Seal(data)
            read.locate_many(range(len(read)))
            for number in range(len(read)):
                read.name(number)
        except (stoker.CorruptError, ValueError):
            pass


def test_a_sample_is_a_few_bytes_of_a_seal() -> None:
    rows = [{"key": f"shard-{n:06}.tar", "size": 1000 * 1024, "version": f"{n:024x}", "etag": ""} for n in range(200)]
    samples = [[(f"images/{1000 * s + n:09}", n * 1024, 1024) for n in range(1000)] for s in range(200)]
    data = seal_bytes("v", rows, samples)
    assert len(data) < 15 * 200_000
    read = Seal(data)
    assert read.locate(199_999) == (199, 999 * 1024, 1024) and read.name(199_999) == "images/000199999"


# With a node


def test_opening_is_one_fetch(store: stoker.Store, place: str) -> None:
    path = make_dataset(store, place)
    read = Seal.open(store, path)
    assert len(read) == 100 and read.name(42) == "000042"
    shard, offset, length = read.locate(42)
    with store.open(read.shard_path(shard)) as file:
        file.seek(offset)
        assert content(42, 100) in file.read(length)


def test_long_seals_are_mapped(store: stoker.Store, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "IN_MEMORY_MAX", 100)
    path = make_dataset(store, place)
    before = set(os.listdir("/proc/self/fd"))
    read = Seal.open(store, path)
    assert type(read._view.obj).__name__ == "mmap" and read.name(99) == "000099"
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the mapping's own


def test_what_is_no_seal(store: stoker.Store, place: str) -> None:
    store.write(f"{place}/short", b"x")
    store.write(f"{place}/tar", pack([("a", {"b": bytes(3000)})]).data)
    for name in ("short", "tar"):
        with pytest.raises(ValueError, match=f"{name}.*no seal.*stoker seal"):
            Seal.open(store, f"{place}/{name}")
    with pytest.raises(FileNotFoundError):
        Seal.open(store, f"{place}/none.seal")
    with pytest.raises(FileNotFoundError):
        Seal.open(store, "no-such-volume/none.seal")


def test_sources_travel_without_their_connection(store: stoker.Store, place: str) -> None:
    source = open_seal(make_dataset(store, place), store=store)
    sent: Any = pickle.dumps(source)
    assert len(sent) < 1000  # the seal does not travel, it is fetched
    there = pickle.loads(sent)
    assert there.identity == source.identity and there.name(5) == "000005"
    store.write(f"{place}/train.seal", seal_bytes("v", ROWS, SAMPLES))
    with pytest.raises(stoker.ConflictError, match="replaced"):
        len(pickle.loads(sent))
