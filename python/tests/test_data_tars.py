"""Tar shards: samples and members are found as tarfile wrote them."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import pytest

import stoker
from stoker.data import open_tars
from stoker.data.sources import tar_members
from stoker.data.tars import TarError, samples_of, stem_of

from .sealing import make_dataset, pack

LONG = "folder/" * 30 + "x" * 90
SAMPLES = [
    ("a/0001", {"jpg": b"picture", "json": b"{}", "seg.png": b"x" * 513}),
    ("a/0002", {"jpg": b"", "cls": b"7"}),
    (LONG, {"JPG": b"long name", "cls": b"8"}),
    ("b/0001", {"bin": bytes(70_000)}),
]


def reader(data: bytes):  # type: ignore[no-untyped-def]
    return lambda offset, length: data[offset : offset + length]


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_samples_are_found(format: int) -> None:
    wanted = [one for one in SAMPLES if format != tarfile.USTAR_FORMAT or one[0] != LONG]
    packed = pack(wanted, format)
    found = list(samples_of(reader(packed.data), len(packed.data)))
    assert found == [(stem.encode(), start, length) for stem, start, length in packed.samples]
    for (stem, members), (_, start, length) in zip(wanted, packed.samples):
        sample = tar_members(memoryview(packed.data)[start : start + length])
        assert sample.pop("__key__") == stem
        assert sample == {extension.lower(): data for extension, data in members.items()}


def test_ustar_prefixes() -> None:
    stem = "p" * 80 + "/" + "q" * 80
    packed = pack([(stem, {"x": b"1"})])
    assert [one[0].decode() for one in samples_of(reader(packed.data), len(packed.data))] == [stem]


def test_names_that_are_not_utf8_and_sizes_in_pax() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape") as tar:
        info = tarfile.TarInfo("caf\udce9.txt")
        info.size, info.pax_headers = 5, {"comment": "nothing"}
        tar.addfile(info, io.BytesIO(b"bytes"))
    data = file.getvalue()
    ((stem, start, length),) = samples_of(reader(data), len(data))
    sample = tar_members(memoryview(data)[start : start + length])
    assert sample["txt"] == b"bytes" and sample["__key__"].encode("utf-8", "surrogateescape") == stem == b"caf\xe9"


def test_directories_and_links_are_passed_over() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind, data in [
            ("a", tarfile.DIRTYPE, b""),
            ("a/1.jpg", tarfile.REGTYPE, b"one"),
            ("a/l", tarfile.SYMTYPE, b""),
            ("a/1.cls", tarfile.REGTYPE, b"7"),
            ("a/2.jpg", tarfile.REGTYPE, b"two"),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), "a/1.jpg" if kind == tarfile.SYMTYPE else ""
            tar.addfile(info, io.BytesIO(data))
    data = file.getvalue()
    found = list(samples_of(reader(data), len(data)))
    assert [one[0] for one in found] == [b"a/1", b"a/2"]
    made = [tar_members(memoryview(data)[start : start + length]) for _, start, length in found]
    assert made == [{"__key__": "a/1", "jpg": b"one", "cls": b"7"}, {"__key__": "a/2", "jpg": b"two"}]


def test_stems() -> None:
    assert stem_of(b"a.b/c.d.e") == (b"a.b/c", b"d.e")
    assert stem_of(b"a.b/c") == (b"a.b/c", b"")
    assert stem_of(b"c") == (b"c", b"")


def test_samples_that_are_none() -> None:
    packed = pack([("x", {"a": b"1"}), ("y", {"a": b"2"}), ("x", {"A": b"3", "a": b"4"})])
    both = memoryview(packed.data)
    with pytest.raises(TarError, match="two samples"):
        tar_members(both[: packed.samples[2][1]])
    with pytest.raises(TarError, match="two members"):
        tar_members(both[packed.samples[2][1] : packed.samples[2][1] + packed.samples[2][2]])
    for piece in (both[:0], both[:512], both[:100], bytes(512), b"x" * 512, b"x" * 100):
        with pytest.raises(TarError):
            tar_members(memoryview(piece))


def test_any_damage_is_an_error_not_a_crash() -> None:
    chance = random.Random(5)
    data = pack(SAMPLES, tarfile.PAX_FORMAT).data[:20_000]
    for _ in range(1000):
        hurt = bytearray(data)
        for _ in range(chance.randrange(1, 5)):
            hurt[chance.randrange(len(hurt))] = chance.randrange(256)
        for call in (lambda: list(samples_of(reader(bytes(hurt)), len(hurt))), lambda: tar_members(memoryview(hurt))):
            try:
                call()
            except TarError:
                pass


# With a node


def test_tars_without_a_seal_are_the_same_dataset(store: stoker.Store, place: str) -> None:
    make_dataset(store, place, shards=3, each=20)
    by_seal = stoker.data.open_seal(f"{place}/train.seal", store=store)
    by_tars = open_tars(f"{place}/", store=store)
    assert len(by_tars) == 60
    assert by_tars.locate_many(range(60)) == by_seal.locate_many(range(60))
    assert [by_tars.name(n) for n in range(60)] == [by_seal.name(n) for n in range(60)]
    again = open_tars([f"{place}/shard-{n:04}.tar" for n in range(3)], store=store)
    assert again.identity == by_tars.identity != open_tars(f"{place}/shard-0000.tar", store=store).identity


def test_what_is_no_tar(store: stoker.Store, place: str) -> None:
    store.write(f"{place}/bad.tar", b"x" * 2000)
    with pytest.raises(stoker.CorruptError, match="bad.tar"):
        open_tars(f"{place}/", store=store)
    store.write(f"{place}/cut.tar", pack([("x", {"a": bytes(5000)})]).data[:3000])
    with pytest.raises(stoker.CorruptError, match="cut.tar"):
        open_tars(f"{place}/cut.tar", store=store)
    with pytest.raises(FileNotFoundError):
        open_tars(f"{place}/nothing/", store=store)


def test_webdataset_sees_the_same_samples(store: stoker.Store, place: str, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    make_dataset(store, place, shards=1, each=30)
    local = tmp_path / "shard.tar"
    local.write_bytes(store.read(f"{place}/shard-0000.tar"))
    theirs = [
        {name: value for name, value in sample.items() if name == "__key__" or not name.startswith("__")}
        for sample in webdataset.WebDataset(str(local), shardshuffle=False)
    ]
    ours = list(stoker.data.Stream(open_tars(f"{place}/", store=store), shuffle=False))
    assert ours == theirs and len(ours) == 30
