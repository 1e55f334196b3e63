"""Datasets in the loaders of torch: workers that are forked and spawned, states of what the loop has had."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import Any

import pytest

import stoker
from stoker import data

from .sealing import content, make_dataset

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, default_collate  # noqa: E402

SIZE = 100


@pytest.fixture(scope="module")
def source(node: Any) -> Any:
    """1,000 samples in 5 shards."""
    store = stoker.connect(dir=node.folder)
    return data.open_seal(make_dataset(store, "data/torch", shards=5, each=200, size=SIZE), store=store)


def number(sample: dict[str, Any]) -> int:
    """Decodes a sample to its number, if its bytes are right."""
    found = int(sample["cls"])
    assert sample["bin"] == content(found, SIZE + found % 700)
    return found


def plain(batches: Any) -> list[list[int]]:
    return [[int(one) for one in batch] for batch in batches]


def loader(dataset: Any, workers: int, kind: Any = DataLoader, **options: Any) -> Any:
    context = options.pop("context", "fork")
    extra = dict(multiprocessing_context=context) if workers else {}
    return kind(dataset, num_workers=workers, **{"batch_size": None, **extra, **options})


# Plain loaders, iterable


@pytest.mark.parametrize(("workers", "context"), [(0, ""), (1, "fork"), (3, "fork"), (2, "spawn"), (2, "forkserver")])
def test_any_workers_give_the_same_batches(source: Any, workers: int, context: str) -> None:
    dataset = data.StreamDataset(source, batch_size=32, seed=3, decode=number, collate=default_collate)
    wanted = plain(data.Stream(source, batch_size=32, seed=3, decode=number))
    assert plain(loader(dataset, workers, context=context)) == wanted
    assert sorted(sum(wanted, [])) == list(range(1000))
    assert len(loader(dataset, 0)) == len(wanted) == 32


def test_spawned_after_use_in_the_main_process(source: Any) -> None:
    dataset = data.StreamDataset(source, batch_size=100, decode=number)
    first = plain(dataset)
    assert plain(loader(dataset, 2, context="spawn")) == first == plain(loader(dataset, 2))


def test_ranks_share_an_epoch(source: Any) -> None:
    seen: list[int] = []
    for rank in range(3):
        dataset = data.StreamDataset(source, batch_size=16, rank=rank, world=3, decode=number)
        seen += sum(plain(loader(dataset, 2)), [])
    assert sorted(seen) == list(range(1000))


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_reach_the_workers(source: Any, persistent: bool) -> None:
    dataset = data.StreamDataset(source, batch_size=100, decode=number)
    loads = loader(dataset, 2, persistent_workers=persistent)
    epochs = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        epochs.append(plain(loads))
        assert epochs[-1] == plain(data.Stream(source, batch_size=100, epoch=epoch, decode=number))
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("after", [(1, 0), (1, 3), (2, 2), (4, 1)])
def test_plain_loaders_go_on_by_the_count_of_the_loop(source: Any, after: tuple[int, int]) -> None:
    """The workers are ahead of the loop; what counts is what the loop had."""
    had: list[int] = []
    for rank in range(2):
        dataset = data.StreamDataset(source, batch_size=20, rank=rank, world=2, decode=number)
        dataset.set_epoch(1)
        had += sum(plain(islice(loader(dataset, 3), 7)), [])
    with pytest.raises(RuntimeError, match="state_after"):
        dataset.state_dict()
    state = json.loads(json.dumps(dataset.state_after(7)))
    assert state["consumed"] == 2 * 7 * 20 == len(had) and state["epoch"] == 1
    world, workers = after
    for rank in range(world):
        later = data.StreamDataset(source, batch_size=20, rank=rank, world=world, decode=number)
        later.load_state_dict(state)
        assert later.epoch == 1
        later.set_epoch(1)
        had += sum(plain(loader(later, workers)), [])
    assert sorted(had) == list(range(1000))


def test_loaders_that_batch_samples_themselves(source: Any) -> None:
    dataset = data.StreamDataset(source, decode=number)
    had = sum(plain(islice(loader(dataset, 3, batch_size=8), 11)), [])
    state = dataset.state_after(11, batch_size=8, workers=3)
    assert state["ahead"]  # two workers were asked four times, one three times
    later = data.StreamDataset(source, decode=number)
    later.load_state_dict(state)
    assert sorted(had + sum(plain(loader(later, 2, batch_size=8)), [])) == list(range(1000))


def test_the_epoch_after_a_resumed_one_is_whole(source: Any) -> None:
    dataset = data.StreamDataset(source, batch_size=100, decode=number)
    dataset.load_state_dict(dataset.state_after(4))
    loads = loader(dataset, 2, persistent_workers=True)
    assert len(plain(loads)) == 6
    dataset.set_epoch(1)
    assert len(plain(loads)) == 10
    dataset.load_state_dict(dataset.state_after(3))
    with pytest.raises(RuntimeError, match="new DataLoader"):
        list(loads)


def test_errors_of_workers_say_which_sample(source: Any) -> None:
    def bad(sample: dict[str, Any]) -> int:
        return 1 // (number(sample) - 500)

    dataset = data.StreamDataset(source, batch_size=10, decode=bad)
    with pytest.raises(data.BadSample, match="shard-0002.tar: sample 500 .000500.: ZeroDivisionError"):
        list(loader(dataset, 2))
    skipping = data.StreamDataset(source, batch_size=10, decode=bad, bad="skip")
    assert sum(len(batch) for batch in loader(skipping, 2)) == 999
    assert skipping.stats().skipped == 1


def test_statistics_of_all_workers(source: Any) -> None:
    dataset = data.StreamDataset(source, batch_size=10, decode=number)
    for context in ("fork", "spawn"):
        list(loader(dataset, 3, context=context))
    stats = dataset.stats()
    assert stats.samples == 2000 and stats.bytes == 2 * source.seal.bytes_total and stats.samples_per_s > 0


def test_datasets_are_small_to_send(source: Any) -> None:
    dataset = data.StreamDataset(source, batch_size=10)
    list(islice(dataset, 3))
    state = dataset.__getstate__()
    assert state["_tools"] is None
    assert len(pickle.dumps(source)) < 1000


def test_ranks_come_from_the_process_group(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    dataset = data.StreamDataset(source, batch_size=10)
    assert (dataset.rank, dataset.world) == (1, 4)


# Map-style


@pytest.mark.parametrize(("workers", "context"), [(0, ""), (2, "fork"), (2, "spawn")])
def test_map_style(source: Any, workers: int, context: str) -> None:
    dataset = data.MapDataset(source, decode=number)
    batches = data.Batches(source, 32, seed=3)
    options = dict(multiprocessing_context=context) if workers else {}
    loads = DataLoader(dataset, batch_sampler=batches, num_workers=workers, **options)
    wanted = plain(data.Stream(source, batch_size=32, seed=3, decode=number))
    assert plain(loads) == wanted and len(loads) == 32
    assert dataset.stats().samples == 1000


def test_map_style_alone(source: Any) -> None:
    dataset = data.MapDataset(source, decode=number)
    assert dataset[7] == 7 and dataset[-1] == 999 and len(dataset) == 1000
    assert dataset.__getitems__([3, 3, 999, 0]) == [3, 3, 999, 0]
    with pytest.raises(IndexError):
        dataset[1000]
    shuffled = DataLoader(dataset, batch_size=50, shuffle=True)  # torch's own sampler
    assert sorted(sum(plain(shuffled), [])) == list(range(1000))
    bad = data.MapDataset(source, decode=lambda sample: 1 // number(sample), bad="skip")
    assert bad.__getitems__([0, 1]) == [1]
    with pytest.raises(data.BadSample):
        bad[0]


def test_neighbours_of_a_batch_are_one_read(source: Any) -> None:
    dataset = data.MapDataset(source, decode=number)
    assert dataset.__getitems__(list(range(100, 150))) == list(range(100, 150))
    assert dataset.stats().reads == 1


def test_map_style_goes_on_by_the_count_of_the_loop(source: Any) -> None:
    dataset, batches = data.MapDataset(source, decode=number), data.Batches(source, 32, epoch=2)
    had = plain(islice(DataLoader(dataset, batch_sampler=batches, num_workers=2), 9))
    state = batches.state_after(9)
    rest = []
    for rank in range(2):
        later = data.Batches(source, 10, epoch=2, rank=rank, world=2)
        later.load_state_dict(state)
        rest += plain(DataLoader(dataset, batch_sampler=later, num_workers=1))
    assert sorted(sum(had + rest, [])) == list(range(1000))


# StatefulDataLoader


@pytest.fixture
def stateful() -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize(("workers", "context"), [(0, ""), (1, "fork"), (3, "fork"), (2, "spawn")])
def test_stateful_loaders_go_on(source: Any, stateful: Any, workers: int, context: str, size: int | None) -> None:
    def make() -> Any:
        dataset = data.StreamDataset(source, batch_size=size, seed=1, epoch=4, decode=number)
        return dataset, loader(dataset, workers, stateful, context=context, batch_size=None if size else 16)

    whole = plain(make()[1])
    _, first = make()
    had = plain(islice(first, 10))
    state = pickle.loads(pickle.dumps(first.state_dict()))
    _, again = make()
    again.load_state_dict(state)
    rest = plain(again)
    assert had + rest == whole
    # The same state, with other numbers of ranks and workers.
    everything = data.global_state(state)
    assert everything["epoch"] == 4
    others = []
    for rank in range(3):
        other = data.StreamDataset(source, batch_size=7, seed=1, rank=rank, world=3, decode=number)
        other.load_state_dict(everything)
        others += plain(loader(other, 2, stateful))
    assert sorted(sum(had + others, [])) == list(range(1000))


def test_stateful_loaders_refuse_what_is_not_theirs(source: Any, stateful: Any) -> None:
    dataset = data.StreamDataset(source, batch_size=16, world=2, rank=0, decode=number)
    first = loader(dataset, 2, stateful)
    list(islice(first, 3))
    alone = loader(data.StreamDataset(source, batch_size=16, decode=number), 2, stateful)
    alone.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="global_state"):
        list(alone)


def test_stateful_loaders_and_epochs(source: Any, stateful: Any) -> None:
    dataset = data.StreamDataset(source, batch_size=100, decode=number)
    loads = loader(dataset, 2, stateful, persistent_workers=True)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert len(plain(loads)) == 10
    dataset.set_epoch(2)
    list(islice(loads, 3))
    state = loads.state_dict()
    later_set = data.StreamDataset(source, batch_size=100, decode=number)
    later = loader(later_set, 2, stateful, persistent_workers=True)
    later.load_state_dict(state)
    rest = plain(later)
    assert rest == plain(data.Stream(source, batch_size=100, epoch=2, decode=number))[3:]
    later_set.set_epoch(3)
    assert plain(later) == plain(data.Stream(source, batch_size=100, epoch=3, decode=number))


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_map_style(source: Any, stateful: Any, workers: int) -> None:
    dataset = data.MapDataset(source, decode=number)

    def make() -> Any:
        return stateful(dataset, batch_sampler=data.Batches(source, 30, seed=2), num_workers=workers)

    whole, first = plain(make()), make()
    had = plain(islice(first, 9))
    state = first.state_dict()
    again = make()
    again.load_state_dict(state)
    assert had + plain(again) == whole
    other = data.Batches(source, 50, seed=2)
    other.load_state_dict(data.global_state(state))
    rest = plain(DataLoader(dataset, batch_sampler=other, num_workers=3))
    assert sorted(sum(had + rest, [])) == list(range(1000))
