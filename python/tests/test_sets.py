"""Checkpoint sets."""

from __future__ import annotations

import multiprocessing

import pytest

import stoker


def _rank(store: stoker.Store, volume: str, id: int, number: int) -> None:
    store.open_set(volume, id).write(number, bytes([number]) * 100_000, writer=f"rank {number}")


def test_shards_of_several_processes_show_together(store: stoker.Store, place: str) -> None:
    made = store.begin_set(f"{place}/step-1", shards=4)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(store, made.volume, made.id, number)) for number in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    status = made.status()
    assert (status.state, status.present, status.laggards) == ("open", 3, (3,))
    with pytest.raises(stoker.ConflictError, match="3"):
        made.publish()
    assert list(store.list(f"{place}/step-1")) == [] and store.latest(place) is None
    made.write(3, b"last")
    made.publish()
    assert made.state == "published"
    assert store.latest(f"{place}/") == f"stoker://{place}/step-1/"
    assert store.read(f"{place}/step-1/shard-00002") == bytes([2]) * 100_000
    with pytest.raises(stoker.ConflictError):
        made.write(0, b"too late")


def test_the_same_owner_goes_on_and_another_is_refused(store: stoker.Store, place: str) -> None:
    first = store.begin_set(f"{place}/step-1", shards=2, owner="run-7")
    assert store.begin_set(f"{place}/step-1", shards=2, owner="run-7").id == first.id
    with pytest.raises(OSError):
        store.begin_set(f"{place}/step-1", shards=2, owner="run-8")
    found = store.find_set(f"{place}/step-1")
    assert found is not None and found.id == first.id
    first.abort()
    assert first.state == "aborted"
    assert store.find_set(f"{place}/step-1") is None
