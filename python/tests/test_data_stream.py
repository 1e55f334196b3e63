"""Streams over a real node: bytes, budgets, bad samples, states, and what they cost the node."""

from __future__ import annotations

import json
import mmap
import os
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import paths
from stoker.data import SKIP, BadSample, Stream, open_files, open_seal, open_tars, reading, tars
from stoker.data.reading import Fetcher

from .conftest import start
from .sealing import content, make_dataset, pack, seal_bytes


@pytest.fixture(scope="module")
def thousands(node: Any) -> Any:
    """4,000 samples in 8 shards, made once."""
    store = stoker.connect(dir=node.folder)
    return open_seal(make_dataset(store, "data/thousands", shards=8, each=500, size=200), store=store)


def number_of(sample: dict[str, Any], size: int) -> int:
    """The number of a sample whose bytes are right."""
    number = int(sample["cls"])
    assert sample["bin"] == content(number, size + number % 700) and sample["__key__"] == f"{number:06}"
    return number


def test_thousands_of_samples_once_for_all_ranks(thousands: Any) -> None:
    for world, batch, block in [(1, 64, 1), (3, 50, 25), (4, None, 1)]:
        seen = []
        for rank in range(world):
            stream = Stream(thousands, batch_size=batch, rank=rank, world=world, seed=3, block=block)
            for one in stream:
                seen += [number_of(sample, 200) for sample in (one if batch else [one])]
        assert sorted(seen) == list(range(4000))


def test_bytes_come_in_the_order_of_the_epoch(thousands: Any) -> None:
    stream = Stream(thousands, batch_size=32, seed=5, epoch=2)
    numbers = [number_of(sample, 200) for batch in stream for sample in batch]
    assert numbers == list(stream.order().samples(range(4000)))
    sent = pickle.loads(pickle.dumps(stream))
    assert [number_of(s, 200) for batch in sent for s in batch] == numbers


def test_a_stream_goes_on_where_it_was(thousands: Any) -> None:
    whole = [[number_of(s, 200) for s in batch] for batch in Stream(thousands, batch_size=50, seed=1)]
    stream = Stream(thousands, batch_size=50, seed=1)
    had = [[number_of(s, 200) for s in batch] for batch in islice(stream, 33)]
    state = json.loads(json.dumps(stream.state_dict()))
    assert state == Stream(thousands, batch_size=50, seed=1).state_after(33)
    later = Stream(thousands, batch_size=50, seed=1)
    later.load_state_dict(state)
    assert had + [[number_of(s, 200) for s in batch] for batch in later] == whole
    # And with other numbers.
    rest = []
    for rank in range(3):
        other = Stream(thousands, batch_size=20, seed=1, rank=rank, world=3)
        other.load_state_dict(state)
        rest += [number_of(s, 200) for batch in other for s in batch]
    assert sorted(rest + [n for batch in had for n in batch]) == list(range(4000))


def test_a_state_of_another_dataset(thousands: Any, store: stoker.Store, place: str) -> None:
    other = Stream(open_seal(make_dataset(store, place, shards=1, each=10), store=store), batch_size=2)
    with pytest.raises(ValueError, match="another dataset"):
        other.load_state_dict(Stream(thousands, batch_size=2).state_dict())


def test_files_and_tars(store: stoker.Store, place: str) -> None:
    for number in range(30):
        store.write(f"{place}/f/{number:03}.bin", content(number, 100 * number))
    files = open_files(f"{place}/f/", store=store)
    seen = {sample["__key__"]: sample["bin"] for sample in Stream(files)}
    assert seen == {f"{place.partition('/')[2]}/f/{n:03}": content(n, 100 * n) for n in range(30)}
    some = [f"{place}/f/{number:03}.bin" for number in (3, 4)]
    assert [len(s["bin"]) for s in Stream(open_files(some, store=store), shuffle=False)] == [300, 400]
    listed = [info for info in store.list(f"{place}/f/") if info.size > 2000]
    assert len(open_files(listed, store=store)) == 9
    with pytest.raises(FileNotFoundError):
        open_files([f"{place}/f/none"], store=store)
    with pytest.raises(FileNotFoundError):
        open_files(f"{place}/f/", suffix=".jpg", store=store)
    make_dataset(store, f"{place}/t", shards=2, each=10)
    tars = Stream(open_tars(f"{place}/t/", store=store), batch_size=7)
    assert sorted(number_of(s, 3000) for batch in tars for s in batch) == list(range(20))


def test_samples_that_are_no_tar_members(store: stoker.Store, place: str) -> None:
    receipt = store.write(f"{place}/x.npy", content(1, 2000))
    row = {"key": receipt.key, "size": receipt.size, "version": receipt.version, "etag": receipt.etag}
    store.write(f"{place}/raw.seal", seal_bytes("data", [row], [[("x", 0, 512), ("y", 1024, 976)]], tar=False))
    (one, two) = Stream(open_seal(f"{place}/raw.seal", store=store), shuffle=False)
    assert one == {"__key__": "x", "npy": content(1, 2000)[:512]} and two["npy"] == content(1, 2000)[1024:]


def test_hooks(thousands: Any) -> None:
    stream = Stream(thousands, batch_size=8, decode=lambda sample: int(sample["cls"]), collate=sum, shuffle=False)
    assert next(iter(stream)) == sum(range(8))
    views = Stream(thousands, batch_size=100, views=True, shuffle=False)
    kept = [sample for batch in views for sample in batch]
    assert all(type(sample["bin"]) is memoryview for sample in kept)
    assert [int(bytes(sample["cls"])) for sample in kept] == list(range(4000))


# Bad samples


@pytest.fixture
def with_bad(store: stoker.Store, place: str) -> Any:
    """20 samples of which 3 and 11 are no tar: their bytes are what was written, but there are no members in them."""
    packed = pack((f"{n:03}", {"cls": str(n).encode()}) for n in range(20))
    data = bytearray(packed.data)
    for number in (3, 11):
        data[packed.samples[number][1] + 257] ^= 1
    receipt = store.write(f"{place}/bad.tar", data)
    row = {"key": receipt.key, "size": receipt.size, "version": receipt.version, "etag": receipt.etag}
    store.write(f"{place}/bad.seal", seal_bytes("data", [row], [packed.samples]))
    return open_seal(f"{place}/bad.seal", store=store)


def label(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def test_bad_samples_are_raised(with_bad: Any) -> None:
    stream = Stream(with_bad, decode=label, shuffle=False)
    got = []
    with pytest.raises(BadSample, match="bad.tar: sample 3 .003.: TarError.*bad='skip'") as caught:
        for one in stream:
            got.append(one)
    assert got == [0, 1, 2] and caught.value.sample == 3 and caught.value.name == "003"
    assert caught.value.path.endswith("/bad.tar") and caught.value.__cause__ is not None


def test_bad_samples_are_skipped_counted_and_named(with_bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(with_bad, batch_size=5, decode=label, bad="skip", shuffle=False)
    assert [len(batch) for batch in stream] == [4, 5, 4, 5]
    assert stream.stats().skipped == 2 and stream.stats().samples == 18 and stream.skipped == ["003", "011"]
    assert caplog.text.count("bad sample skipped") == 2
    # They count as had, so that states stay right.
    again = Stream(with_bad, decode=label, bad="skip", shuffle=False)
    assert list(islice(again, 4)) == [0, 1, 2, 4]
    assert again.state_dict()["consumed"] == 5


def test_bad_samples_are_named_up_to_a_limit(thousands: Any, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(thousands, decode=lambda sample: 1 // (label(sample) % 2), bad="skip")
    assert len(list(stream)) == 2000
    assert stream.stats().skipped == 2000 and len(stream.skipped) == 20
    assert caplog.text.count("bad sample skipped") == 20


def test_bad_samples_are_replaced(with_bad: Any) -> None:
    asked: list[str] = []

    def replace(bad: BadSample) -> Any:
        asked.append(bad.name)
        return -1 if bad.sample == 3 else SKIP

    stream = Stream(with_bad, batch_size=10, decode=label, bad=replace, shuffle=False)
    assert list(stream) == [[0, 1, 2, -1, 4, 5, 6, 7, 8, 9], [10, 12, 13, 14, 15, 16, 17, 18, 19]]
    assert asked == ["003", "011"]


def test_a_batch_that_is_all_bad(with_bad: Any) -> None:
    stream = Stream(with_bad, batch_size=4, decode=lambda sample: 1 // 0, bad="skip")
    with pytest.raises(BadSample, match="all 4 samples"):
        next(iter(stream))


def test_files_that_went_away_are_bad_samples(store: stoker.Store, place: str) -> None:
    for number in range(6):
        store.write(f"{place}/{number}.txt", str(number).encode())
    files = open_files(f"{place}/", store=store)
    store.remove(f"{place}/2.txt")
    store.write(f"{place}/4.txt", b"X")
    stream = Stream(files, bad="skip", shuffle=False)
    assert [sample["txt"] for sample in stream] == [b"0", b"1", b"3", b"5"]
    assert [name[-5:] for name in stream.skipped] == ["2.txt", "4.txt"]


def test_shards_that_are_not_what_was_sealed(store: stoker.Store, place: str) -> None:
    source = open_seal(make_dataset(store, place, shards=1, each=10), store=store)
    store.write(f"{place}/shard-0000.tar", bytes(source.seal.shards[0].size))
    with pytest.raises(stoker.ConflictError, match="replaced.*shard-0000.tar"):
        list(Stream(source, bad="skip"))  # that is no matter of one sample
    store.remove(f"{place}/shard-0000.tar")
    with pytest.raises(FileNotFoundError, match="shard-0000.tar"):
        list(Stream(open_seal(f"{place}/train.seal", store=store), bad="skip"))


# Reads


def test_neighbours_are_one_read(thousands: Any) -> None:
    in_order = Stream(thousands, batch_size=100, shuffle=False)
    assert sum(len(batch) for batch in in_order) == 4000
    assert in_order.stats().reads < 30
    blocks = Stream(thousands, batch_size=100, block=50)
    assert sum(len(batch) for batch in blocks) == 4000
    assert blocks.stats().reads < 200
    assert blocks.stats().read_bytes < 2 * blocks.stats().bytes


@pytest.mark.parametrize("memory", [64 << 10, 300 << 10, 2 << 20])
def test_memory_stays_in_its_budget(thousands: Any, memory: int) -> None:
    stream = Stream(thousands, batch_size=64, memory=memory, threads=3)
    assert sum(len(batch) for batch in stream) == 4000
    assert stream._tools is not None and 0 < stream._tools[1].memory_peak <= memory


def test_a_sample_larger_than_the_budget_is_read_alone(store: stoker.Store, place: str) -> None:
    source = open_seal(make_dataset(store, place, shards=2, each=5, size=300_000), store=store)
    stream = Stream(source, memory=100_000)
    assert sorted(number_of(sample, 300_000) for sample in stream) == list(range(10))
    assert stream._tools is not None and stream._tools[1].memory_peak < 310_000


def test_whoever_stops_early_leaves_nothing_behind(thousands: Any) -> None:
    stream = Stream(thousands, batch_size=10)
    for _ in range(5):
        first: Iterator[Any] = iter(stream)
        next(first)
        first.close()  # type: ignore[attr-defined]
    assert sum(len(batch) for batch in stream) == 4000
    two, three = iter(stream), iter(stream)  # side by side: each gets all
    assert sum(len(a) + len(b) for a, b in zip(two, three)) == 8000


def test_planned_reads_are_the_samples(thousands: Any) -> None:
    fetcher = Fetcher(thousands, memory=1 << 20, threads=2)
    wish = [5, 5, 4, 3999, 0, 6, 2000, 2001, 5]
    run = fetcher.read(wish)
    step = run.next()
    assert step is not None and [number_of(sample, 200) for sample in step[0]] == wish
    assert [run.number(index) for index in range(len(wish))] == wish and run.next() is None
    assert fetcher.read([]).next() is None
    with pytest.raises(IndexError, match="sample 4000 of 4000"):
        fetcher.read([0, 4000]).next()


def test_views_are_of_memory_that_stays(thousands: Any) -> None:
    whole = [sample for batch in Stream(thousands, batch_size=50, seed=2) for sample in batch]
    small = Stream(thousands, batch_size=50, seed=2, views=True, memory=1 << 20)
    views = [sample for batch in small for sample in batch]
    assert [{name: one if name == "__key__" else bytes(one) for name, one in sample.items()} for sample in views] == whole
    assert not views[0]["bin"].readonly and len({id(sample["bin"].obj) for sample in views}) < 1000


def test_names_of_any_kind(store: stoker.Store, place: str) -> None:
    """Extensions in capitals, of other alphabets and of no alphabet; names that are no UTF-8; members without a dot."""
    names = [b"a/\xff.JPG", b"b/\xc3\x84.\xc3\x84\xff", b"c", "\u0130.\u0130".encode()]
    packed = pack((paths.text(tars.stem_of(name)[0]), {paths.text(tars.stem_of(name)[1]): name}) for name in names[:2])
    store.write(f"{place}/odd.tar", packed.data)
    for sample, name in zip(Stream(open_tars(f"{place}/odd.tar", store=store), shuffle=False), names):
        stem, extension = (paths.text(part) for part in tars.stem_of(name))
        assert sample == {"__key__": stem, extension.lower(): name}


def test_statistics(thousands: Any) -> None:
    stream = Stream(thousands, batch_size=100)
    assert stream.stats().samples_per_s == 0
    for _ in stream:
        pass
    stats = stream.stats()
    assert (stats.samples, stats.batches, stats.skipped) == (4000, 40, 0)
    assert stats.bytes == thousands.seal.bytes_total
    assert stats.elapsed_s >= stats.waited_s > 0 and stats.samples_per_s > 0 and "samples" in str(stats)


# What it costs the node


def counters(store: stoker.Store) -> dict[str, float]:
    return {one["name"]: one["value"] for one in json.loads(store._client.counters()) if not one["labels"]}


def test_samples_ask_the_catalog_nothing(store: stoker.Store, place: str) -> None:
    """One open for the seal and one for each shard, whatever the number of samples and epochs is; and no listing."""
    path = make_dataset(store, place, shards=5, each=200, size=100)
    before = counters(store)
    stream = Stream(open_seal(path, store=store), batch_size=50)
    for epoch in range(3):
        stream.set_epoch(epoch)
        assert sum(len(batch) for batch in stream) == 1000
    after = counters(store)
    assert after["opens_total"] - before["opens_total"] == 1 + 5
    assert after["lists_total"] == before["lists_total"]


def test_an_epoch_makes_no_catalog_operations(thousands: Any, store: stoker.Store) -> None:
    """Once the shards are open, samples ask the catalog nothing. The node itself does, for its own work and to answer for its
    counters; so 4,000 samples may go with a few questions, in the quietest of some epochs, but not with one each."""
    names = ("catalog_reads_total", "catalog_commits_total")
    if not all(name in counters(store) for name in names):
        pytest.skip("this node does not count what its catalog does")
    stream = Stream(thousands, batch_size=50, decode=label)
    assert sum(map(len, stream)) == 4000
    asked = []
    for epoch in range(1, 6):
        stream.set_epoch(epoch)
        before = counters(store)
        assert sum(map(len, stream)) == 4000
        after = counters(store)
        asked.append(sum(after[name] - before[name] for name in names))
    assert min(asked) < 40, asked


def test_open_files_have_a_limit(thousands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "OPEN_MAX", 2)
    stream = Stream(thousands, batch_size=40)
    assert sum(len(batch) for batch in stream) == 4000
    assert stream._tools is not None and 0 < stream._tools[1].files_open <= 2


def test_forked_processes_read_by_themselves(thousands: Any) -> None:
    stream = Stream(thousands, batch_size=100, seed=4)
    whole = list(islice(stream, 5))
    ways = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mine = list(islice(iter(stream), 5))
            os.write(ways[1], b"same" if mine == whole else b"other")
        finally:
            os._exit(0)
    os.close(ways[1])
    assert os.read(ways[0], 10) == b"same"
    os.waitpid(child, 0)
    os.close(ways[0])
    assert list(islice(stream, 5)) == whole


def test_an_iteration_that_was_begun_before_a_fork(thousands: Any) -> None:
    """Its reads are the parent's. The child is told so, and what it drops is not given back a second time."""
    stream = Stream(thousands, batch_size=100, seed=4)
    begun = iter(stream)
    first = next(begun)
    ways = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                next(begun)
            except RuntimeError as fault:
                os.write(ways[1], str(fault).encode())
            del begun
            assert next(iter(stream)) == first
            os.write(ways[1], b", and went on")
        finally:
            os._exit(0)
    os.close(ways[1])
    os.waitpid(child, 0)
    said = os.read(ways[0], 1000)
    os.close(ways[0])
    assert b"before the process was forked" in said and said.endswith(b", and went on")
    assert 100 + sum(map(len, begun)) == 4000


def test_arguments_are_checked(thousands: Any) -> None:
    for wrong, words in [
        (dict(bad="ignore"), "bad is"),
        (dict(collate=sum), "batch_size"),
        (dict(batch_size=0), "at least one"),
        (dict(block=0), "block"),
        (dict(rank=3, world=2), "rank 3"),
        (dict(even="x"), "even"),
    ]:
        with pytest.raises(ValueError, match=words):
            Stream(thousands, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one thread"):
        next(iter(Stream(thousands, threads=0)))
    with pytest.raises(ValueError, match="batch_size and the workers"):
        Stream(thousands).state_after(3)


def test_damaged_bytes_are_bad_samples_and_only_those(tmp_path: Path) -> None:
    """A byte of a drive is changed behind the node's back: its sample is bad, and those that the node reads in one
    piece with it; the other samples of the same call are not."""
    node = start(tmp_path)
    try:
        store = stoker.connect(dir=node.folder)
        path = make_dataset(store, "data/damaged", shards=1, each=40, size=200_000)
        damage(tmp_path, content(17, 100_000))
        source = open_seal(path, store=store)
        with pytest.raises(BadSample, match="shard-0000.tar: sample .*CorruptError.*CRC"):
            list(Stream(source, batch_size=8))
        stream = Stream(source, batch_size=8, bad="skip")
        seen = {number_of(s, 200_000) for batch in stream for s in batch}
        bad = {int(name) for name in stream.skipped}
        assert 17 in bad <= set(range(11, 24)) and seen == set(range(40)) - bad
        assert stream.stats().skipped == len(bad)
    finally:
        node.kill()


def damage(folder: Path, wanted: bytes) -> None:
    """Changes one byte in the middle of the bytes that are looked for, in the files of the drives."""
    found = 0
    for file in folder.rglob("*"):
        if not file.is_file() or "lake" in file.relative_to(folder).parts or file.stat().st_size < len(wanted):
            continue
        with file.open("r+b") as drive:
            with mmap.mmap(drive.fileno(), 0) as memory:
                at = memory.find(wanted)
                while at >= 0:
                    memory[at + len(wanted) // 2] ^= 1
                    found += 1
                    at = memory.find(wanted, at + 1)
                memory.flush()
    assert found
