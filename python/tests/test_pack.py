"""Packing and sealing with a real node; the shards are read back by others."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

import stoker

from .conftest import Node


def grow(root: Path, count: int, size: int = 3000) -> dict[str, bytes]:
    """Samples of two files each, and some names that are hard."""
    files: dict[str, bytes] = {}
    for number in range(count):
        stem = f"c{number % 3}/{number:05}"
        files[f"{stem}.cls"] = str(number % 10).encode()
        files[f"{stem}.jpg"] = os.urandom(number * 37 % size)
    files[f"deep/{'d' * 200}/{'ü' * 90}.bin"] = b"long name"
    files["c0-x.txt"] = b"sorts between c0 and c0/"
    files["empty.txt"] = b""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return files


def stem_of(name: str) -> str:
    head, slash, last = name.rpartition("/")
    return head + slash + last.split(".", 1)[0]


def shards_of(store: stoker.Store, prefix: str) -> list[str]:
    volume, _, start = prefix.partition("/")
    folder = prefix.rpartition("/")[0]
    found = (info.path for info in store.list(folder))
    wanted = re.compile(re.escape(f"stoker://{volume}/{start}") + r"-\d{6}\.tar")
    return [path for path in found if wanted.fullmatch(path)]


def ranges_of(data: bytes) -> tuple[dict[str, object], list[tuple[int, int, int]], list[str]]:
    """A second reader of the seal, written from its description: list of shards, (shard, start, length), names."""
    magic, version, flags, samples, shards, total = struct.unpack_from("<8sIIQQQ", data)
    assert (magic, version, flags) == (b"STKRSEAL", 1, 3)
    at = struct.unpack_from("<10Q", data, 40)
    section = [data[at[2 * n] : at[2 * n] + at[2 * n + 1]] for n in range(5)]
    assert all(offset % 64 == 0 for offset in at[::2])
    head = json.loads(section[0])
    firsts = struct.unpack(f"<{shards + 1}Q", section[1])
    starts = struct.unpack(f"<{samples}I", section[2])
    lens = struct.unpack(f"<{samples}I", section[3])
    assert firsts[-1] == samples and sum(lens) == total and len(head["shards"]) == shards
    rows = [
        (shard, 512 * starts[n], lens[n]) for shard in range(shards) for n in range(firsts[shard], firsts[shard + 1])
    ]
    (blocks,) = struct.unpack_from("<I", section[4])
    text, names, name = io.BytesIO(section[4][4 + 4 * blocks :]), [], b""

    def varint() -> int:
        value = shift = 0
        while True:
            (byte,) = text.read(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    for number in range(samples):
        if number % 16 == 0:
            assert struct.unpack_from("<I", section[4], 4 + number // 4)[0] == text.tell()
        shared = varint()
        name = name[:shared] + text.read(varint())
        names.append(name.decode())
    return head, rows, names


def read_by_seal(store: stoker.Store, seal: str) -> tuple[list[str], dict[str, bytes]]:
    """Names of samples, and all members, each found in its sample's range alone."""
    head, rows, names = ranges_of(store.read(seal))
    tars = [store.read(f"{head['volume']}/{shard['key']}") for shard in head["shards"]]  # type: ignore[attr-defined, index]
    files: dict[str, bytes] = {}
    for name, (shard, start, length) in zip(names, rows, strict=True):
        with tarfile.open(fileobj=io.BytesIO(tars[shard][start : start + length])) as tar:
            members = tar.getmembers()
            assert members and {stem_of(member.name) for member in members} == {name}
            for member in members:
                assert member.name not in files
                file = tar.extractfile(member)
                assert file is not None
                files[member.name] = file.read()
    return names, files


def test_every_file_is_in_the_shards_and_found_by_the_seal(store: stoker.Store, place: str, tmp_path: Path) -> None:
    files = grow(tmp_path, 300)
    said: list[stoker.Progress] = []
    packed = store.pack(tmp_path, f"{place}/train", shard_bytes=200_000, jobs=3, progress=said.append)
    assert (packed.files, packed.samples, packed.resumed) == (603, 303, 0)
    assert packed.seal == f"stoker://{place}/train.seal"
    last = said[-1]
    assert (last.files, last.shards_done, last.bytes_verified) == (603, packed.shards, packed.bytes)

    shards = shards_of(store, f"{place}/train")
    assert len(shards) == packed.shards > 3
    by_tar: dict[str, bytes] = {}
    order: list[str] = []
    for shard in shards:
        data = store.read(shard)
        assert len(data) <= 200_000 and len(data) % 512 == 0
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                by_tar[member.name] = file.read()
                order.append(member.name)
    assert by_tar == files
    assert order == sorted(files, key=lambda name: (stem_of(name).encode(), name.encode()))

    names, by_seal = read_by_seal(store, packed.seal)
    assert by_seal == files and names == sorted({stem_of(name) for name in files}, key=str.encode)
    assert store.read(packed.seal)[:-9:-1].hex() == packed.identity
    # Packed again it is the same dataset, and nothing is written.
    version = store.receipt(shards[0]).version
    again = store.pack(tmp_path, f"{place}/train", shard_bytes=200_000)
    assert (again.identity, again.resumed) == (packed.identity, packed.shards)
    assert store.receipt(shards[0]).version == version
    assert {info.name for info in store.list(place)} == {"train.seal"} | {shard.rpartition("/")[2] for shard in shards}


def test_a_volume_is_packed_and_bad_wishes_are_refused(store: stoker.Store, place: str, tmp_path: Path) -> None:
    for number in range(20):
        store.write(f"{place}/raw/{number:03}.txt", bytes([number]) * 1000)
    packed = store.pack(f"stoker://{place}/raw", f"{place}/train", shard_bytes=1 << 16)
    names, files = read_by_seal(store, packed.seal)
    assert files == {f"{number:03}.txt": bytes([number]) * 1000 for number in range(20)}
    with pytest.raises(ValueError, match="pack itself"):
        store.pack(f"stoker://{place}/raw", f"{place}/raw/train")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        store.pack(tmp_path / "nowhere", f"{place}/x")
    with pytest.raises(FileNotFoundError, match="stoker://missing"):
        store.pack(tmp_path, "missing/x")
    with pytest.raises(ValueError, match="no file to pack"):
        store.pack(tmp_path, f"{place}/x")
    with pytest.raises(ValueError, match="needs a name"):
        store.pack(tmp_path, f"{place}/")
    with pytest.raises(ValueError, match="at least"):
        store.pack(tmp_path, f"{place}/x", shard_bytes=100)
    # Other files under the same name.
    (tmp_path / "a.txt").write_text("other")
    with pytest.raises(stoker.ConflictError, match="train-000000.tar"):
        store.pack(tmp_path, f"{place}/train")
    assert read_by_seal(store, packed.seal) == (names, files)
    replaced = store.pack(tmp_path, f"{place}/train", replace=True)
    assert read_by_seal(store, replaced.seal) == (["a"], {"a.txt": b"other"})


def test_shards_of_others_are_sealed(store: stoker.Store, place: str) -> None:
    written: dict[str, bytes] = {}
    for number, form in enumerate([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
            folder = tarfile.TarInfo(f"part{number}")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            for sample in range(50):
                long = "" if form == tarfile.USTAR_FORMAT else "x" * (sample * 10)
                for end in ("cls", "seg.png"):
                    name, data = f"part{number}/{sample:04}{long}.{end}", os.urandom(sample * 99)
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                    written[name] = data
        store.write(f"{place}/other-{number}.tar", buffer.getvalue())
    sealed = store.seal(f"{place}/other-", f"{place}/other.seal")
    assert (sealed.shards, sealed.samples) == (3, 150)
    assert read_by_seal(store, sealed.seal)[1] == written
    assert store.seal([f"{place}/other-"], f"{place}/other.seal") == sealed
    with pytest.raises(stoker.ConflictError, match="other.seal"):
        store.seal(f"{place}/other-0.tar", f"{place}/other.seal")
    assert store.seal(f"{place}/other-0.tar", f"{place}/other.seal", replace=True).samples == 50

    with pytest.raises(FileNotFoundError, match="nothing-"):
        store.seal(f"{place}/nothing-", f"{place}/x.seal")
    with pytest.raises(ValueError, match="twice"):
        store.seal([f"{place}/other-", f"{place}/other-0.tar"], f"{place}/x.seal")
    with pytest.raises(ValueError, match="one volume"):
        store.seal([f"{place}/other-", "b/other"], f"{place}/x.seal")
    whole = store.read(f"{place}/other-1.tar")
    for name, data in {"cut": whole[: len(whole) // 2], "noise": os.urandom(4096), "none": b""}.items():
        store.write(f"{place}/bad-{name}.tar", data)
        with pytest.raises(stoker.CorruptError, match=f"bad-{name}"):
            store.seal(f"{place}/bad-{name}.tar", f"{place}/x.seal")
    assert not store.exists(f"{place}/x.seal")


def test_an_error_of_the_callback_ends_it(store: stoker.Store, place: str, tmp_path: Path) -> None:
    grow(tmp_path, 50)

    def no(progress: stoker.Progress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        store.pack(tmp_path, f"{place}/train", progress=no)


PACK = textwrap.dedent(
    """
    import sys, stoker
    store = stoker.connect(dir=sys.argv[1])
    def tell(progress):
        if progress.shards_done:
            print(progress.shards_done, flush=True)
    store.pack(sys.argv[2], sys.argv[3], shard_bytes=1 << 16, jobs=1, progress=tell)
    """
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_pack_that_was_stopped_goes_on(
    node: Node, store: stoker.Store, place: str, tmp_path: Path, number: signal.Signals
) -> None:
    place = place.replace("[", "-").replace("]", "")
    files = grow(tmp_path, 1500, size=50_000)
    args = [sys.executable, "-c", PACK, str(node.folder), str(tmp_path), f"{place}/train"]
    child = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None and child.stdout.readline()
    child.send_signal(number)
    assert child.wait(60) != 0
    assert not store.exists(f"{place}/train.seal")
    packed = store.pack(tmp_path, f"{place}/train", shard_bytes=1 << 16)
    assert 0 < packed.resumed < packed.shards
    assert read_by_seal(store, packed.seal)[1] == files


def test_webdataset_reads_the_shards(store: stoker.Store, place: str, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    source, target = tmp_path / "in", tmp_path / "out"
    target.mkdir()
    files = grow(source, 100)
    store.pack(source, f"{place}/train", shard_bytes=1 << 16)
    urls = []
    for shard in shards_of(store, f"{place}/train"):
        urls.append(str(target / shard.rpartition("/")[2]))
        Path(urls[-1]).write_bytes(store.read(shard))
    found: dict[str, bytes] = {}
    for sample in wds.WebDataset(urls, shardshuffle=False, empty_check=False):
        found |= {f"{sample['__key__']}.{end}": data for end, data in sample.items() if not end.startswith("__")}
    assert found == files
