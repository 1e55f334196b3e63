"""Shares and states: every sample once, for any number of ranks and workers, also when those change in the middle."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice

import pytest

from stoker.data import Progress, Share, global_state
from stoker.data.course import Course
from stoker.data.states import State

IDENTITY = "00000000deadbeef"


class Walk(Course):
    """One worker's course: what a dataset does, without bytes."""

    def __init__(self, count: int, worker: int = 0, workers: int = 1, **options: object) -> None:
        settings: dict[str, object] = dict(
            batch_size=None, shuffle=True, block=1, seed=7, epoch=0, rank=0, world=1, even="keep"
        )
        super().__init__(IDENTITY, count, **{**settings, **options})  # type: ignore[arg-type]
        self._me = worker, workers

    def _worker(self) -> tuple[int, int]:
        return self._me

    def batches(self, size: int) -> Iterator[list[int]]:
        """As a worker of a loader makes them: its own batches, or ``size`` samples each."""
        leg, batch = self._leg(), list[int]()
        turn = self._begin(leg)
        for samples, sizes in leg.plan():
            numbers = iter(samples.tolist())
            for piece in sizes:
                batch += islice(numbers, piece)
                if self.batch_size or len(batch) == size:
                    self._gave(turn, len(batch))
                    yield batch
                    batch = []
            assert next(numbers, None) is None
        if batch:
            self._gave(turn, len(batch))
            yield batch


class Loader:
    """A loader of one rank: asks its workers in turn, and keeps their states as of the batch that was handed out."""

    def __init__(self, count: int, workers: int, size: int, state: State | None, **options: object) -> None:
        self.walks = [Walk(count, worker, workers, **options) for worker in range(workers)]
        if state is not None:
            for walk in self.walks:
                walk.load_state_dict(state)
        self.states = [walk.state_dict() for walk in self.walks]
        self._size = size

    def __iter__(self) -> Iterator[list[int]]:
        streams = {worker: walk.batches(self._size) for worker, walk in enumerate(self.walks)}
        while streams:
            for worker in list(streams):
                batch = next(streams[worker], None)
                if batch is None:
                    del streams[worker]
                else:
                    # Through JSON, as a checkpoint would.
                    self.states[worker] = json.loads(json.dumps(self.walks[worker].state_dict()))
                    yield batch


def epoch_of(count: int, world: int, workers: int, size: int, **options: object) -> list[list[list[int]]]:
    """For each rank its batches."""
    return [list(Loader(count, workers, size, None, rank=rank, world=world, **options)) for rank in range(world)]


def assert_once(samples: list[int], count: int) -> None:
    seen = bytearray(count)
    for sample in samples:
        seen[sample] += 1
    assert len(samples) == count and min(seen) == 1 == max(seen)


@pytest.mark.parametrize(
    ("world", "workers", "batch", "block"),
    [(1, 1, 256, 1), (8, 4, 100, 1), (7, 3, 64, 32), (64, 8, 33, 1), (3, 2, None, 1)],
)
def test_a_million_samples_once(world: int, workers: int, batch: int | None, block: int) -> None:
    ranks = epoch_of(1_000_000, world, workers, 50, batch_size=batch, block=block)
    assert_once([sample for rank in ranks for one in rank for sample in one], 1_000_000)
    counts = [sum(len(one) for one in rank) for rank in ranks]
    assert max(counts) - min(counts) <= (batch or 1)


@pytest.mark.parametrize("count", [0, 1, 2, 17, 100, 101])
def test_small_counts_once(count: int) -> None:
    for world in (1, 2, 3, 8, 40):
        for workers in (1, 2, 5):
            for batch in (None, 1, 3, 200):
                ranks = epoch_of(count, world, workers, 3, batch_size=batch)
                samples = [sample for rank in ranks for one in rank for sample in one]
                assert sorted(samples) == list(range(count))


def test_the_order_does_not_depend_on_workers_or_ranks() -> None:
    def steps(world: int, workers: int, batch: int) -> list[int]:
        ranks = epoch_of(10_000, world, workers, 0, batch_size=batch)
        return [sample for step in zip(*ranks) for one in step for sample in one]

    first = steps(1, 1, 20)
    assert first == steps(1, 4, 20) == steps(4, 1, 5) == steps(2, 3, 10) == steps(5, 8, 4)


def test_a_million_samples_with_changes_in_the_middle() -> None:
    """The loop stops anywhere and goes on with other numbers of ranks, workers and samples in a batch; twelve times."""
    count, chance = 1_000_000, random.Random(3)
    state: State | None = None
    seen: list[int] = []
    for turn in range(13):
        world, workers, batch = chance.choice([1, 2, 5, 16]), chance.choice([1, 3, 4]), chance.choice([17, 64, 250])
        loaders = [Loader(count, workers, 0, state, rank=r, world=world, batch_size=batch) for r in range(world)]
        wanted = 80_000 // (world * batch) if turn < 12 else count
        for number, step in enumerate(zip(*map(iter, loaders)), start=1):
            seen += [sample for one in step for sample in one]
            if number == wanted:
                break
        else:
            # The last step of the epoch may have something for some ranks only.
            break
        made = [global_state(loader.states) for loader in loaders]
        assert all(one == made[0] for one in made)
        counted = Walk(count, rank=0, world=world, batch_size=batch)
        if state is not None:
            counted.load_state_dict(state)
        assert counted.state_after(wanted) == made[0]
        state = made[0]
        assert state["consumed"] == len(seen) and state["ahead"] == []
    assert len(seen) == len(set(seen)) and len(seen) > 900_000


@pytest.mark.parametrize("seed", range(40))
def test_any_sequence_of_changes(seed: int) -> None:
    """Samples one by one, loaders that batch them: what was had is no beginning of the order, and nothing is lost or twice."""
    chance = random.Random(seed)
    count = chance.choice([50, 333, 2000])
    state: State | None = None
    seen: list[int] = []
    for _ in range(200):
        own = chance.random() < 0.4
        world, workers, size = chance.choice([1, 2, 3]), chance.choice([1, 2, 4]), chance.choice([1, 4, 10])
        options = dict(world=world, batch_size=size if own else None, block=9)
        loaders = [Loader(count, workers, size, state, rank=rank, **options) for rank in range(world)]
        stop, had, iterators = chance.randrange(1, 8), 0, [iter(loader) for loader in loaders]
        while had < stop:
            step = [next(one, None) for one in iterators]
            seen += [sample for one in step if one is not None for sample in one]
            if step[0] is None:
                break
            had += 1
        before, state = state, global_state(loaders[0].states)
        counted = Walk(count, rank=0, **options)
        if before is not None:
            counted.load_state_dict(before)
        assert counted.state_after(had, batch_size=size, workers=workers) == state
        if state["consumed"] == count:
            break
    assert_once(seen, count)


def test_same_numbers_go_on_in_each_worker() -> None:
    """As StatefulDataLoader does it: the state of a worker goes to the same worker."""
    whole = list(Loader(1000, 3, 7, None))
    loader = Loader(1000, 3, 7, None)
    had = list(islice(loader, 20))
    again = Loader(1000, 3, 7, None)
    for walk, state in zip(again.walks, loader.states):
        walk.load_state_dict(state)
    # The loader remembers whose turn it is.
    streams = [walk.batches(7) for walk in again.walks]
    rest, turn = [], 20 % 3
    while (batch := next(streams[turn], None)) is not None:
        rest.append(batch)
        turn = (turn + 1) % 3
    assert had + rest == whole[: len(had + rest)]
    assert sum(map(len, had + rest)) >= 1000 - 14


@pytest.mark.parametrize("world", [1, 3, 8])
def test_even_ends(world: int) -> None:
    for workers in (1, 3):
        dropped = epoch_of(1000, world, workers, 0, batch_size=16, even="drop")
        assert {len(rank) for rank in dropped} == {1000 // (16 * world)}
        assert {len(batch) for rank in dropped for batch in rank} == {16}
        repeated = epoch_of(1000, world, workers, 0, batch_size=16, even="repeat")
        assert {len(rank) for rank in repeated} == {-(-1000 // (16 * world))}
        assert {len(batch) for rank in repeated for batch in rank} == {16}
        samples = [sample for rank in repeated for batch in rank for sample in batch]
        assert set(samples) == set(range(1000)) and len(samples) == 16 * world * -(-1000 // (16 * world))


def test_the_length_is_the_number_of_batches() -> None:
    for count, world, batch in [(0, 1, 3), (1, 4, 3), (100, 3, 7), (100, 7, 50), (96, 4, 8)]:
        for even in ("keep", "drop", "repeat"):
            ranks = epoch_of(count, world, 2, 0, batch_size=batch, even=even)
            said = [len(Walk(count, rank=r, world=world, batch_size=batch, even=even)) for r in range(world)]
            assert said == [len(rank) for rank in ranks]


def test_epochs_have_a_beginning() -> None:
    walk = Walk(100, batch_size=10)
    first = list(islice(walk.batches(0), 3))
    state = walk.state_dict()
    other = Walk(100, batch_size=10)
    other.load_state_dict(state)
    other.set_epoch(0)  # the same epoch: the state holds
    assert sum(map(len, other.batches(0))) == 70
    assert sum(map(len, other.batches(0))) == 100  # again, from its beginning
    other.load_state_dict(state)
    other.set_epoch(1)  # another one begins at its beginning
    again = list(other.batches(0))
    assert sum(map(len, again)) == 100 and again[:3] != first


def state() -> State:
    walk = Walk(100, batch_size=10)
    next(walk.batches(0))
    return walk.state_dict()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": "1111111111111111"}, "another dataset"),
        ({"samples": 99}, "another dataset"),
        ({"seed": 8}, "seed=8"),
        ({"shuffle": False}, "another order"),
        ({"block": 4}, "block=4"),
        ({"format": "x"}, "no state"),
        ({"consumed": -1}, "consumed"),
        ({"consumed": "many"}, "consumed"),
        ({"consumed": 101}, "damaged"),
        ({"epoch": None}, "damaged"),
        ({"ahead": [[5, 6]]}, "not in order"),
        ({"ahead": [[50, 40]]}, "not in order"),
        ({"ahead": ["x"]}, "not in order"),
        ({"ahead": [[50, 400]]}, "damaged"),
    ],
)
def test_foreign_states_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Walk(100, batch_size=10).load_state_dict({**state(), **change})


def test_states_of_workers_stay_with_them() -> None:
    loader = Loader(100, 4, 5, None)
    next(iter(loader))
    with pytest.raises(ValueError, match="global_state"):
        Walk(100, 0, 3).load_state_dict(loader.states[0])
    with pytest.raises(ValueError, match="all workers"):
        global_state(loader.states[:3])
    with pytest.raises(ValueError, match="no state"):
        global_state({"_snapshot": {"x": [1, 2]}})
    with pytest.raises(ValueError, match="one rank at one time"):
        global_state([loader.states[0], *({**one, "epoch": 1} for one in loader.states[1:])])


def test_progress_counts_around_what_is_done() -> None:
    progress = Progress(2, ((4, 6), (9, 10)))
    left = [2, 3, 6, 7, 8, 10, 11, 12]
    assert progress.count == 5
    for start in range(8):
        for stop in range(start, 8):
            assert [one for part in progress.rest(start, stop) for one in part] == left[start:stop]
    assert progress.with_done([(0, 2)]) == Progress(6, ((9, 10),))
    assert progress.with_done([(0, 5)]) == Progress(10)
    assert progress.with_done([(6, 7)]) == Progress(2, ((4, 6), (9, 10), (11, 12)))


@pytest.mark.parametrize(
    "wrong", [dict(rank=1, world=1), dict(world=0), dict(worker=2, workers=2), dict(piece=0), dict(even="odd")]
)
def test_shares_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Share(**wrong)  # type: ignore[arg-type]


def test_the_environment_tells_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    walk = Walk(100, rank=None, world=None)
    assert (walk.rank, walk.world) == (2, 4)
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(ValueError, match="RANK"):
        Walk(100, rank=None, world=None)
    with pytest.raises(ValueError, match="both"):
        Walk(100, rank=1, world=None)


def one_by_one(share: Share, progress: Progress, count: int, given: int) -> list[list[int]]:
    """The positions of each step, counted without any shortcut."""
    left = count - progress.count
    done = set(range(progress.prefix)).union(*(range(start, stop) for start, stop in progress.ahead))
    rest = [position for position in range(count) if position not in done]
    first, skip = divmod(given, share.piece)
    found = []
    for step in range(share.worker + first * share.workers, share.steps(left), share.workers):
        start, stop = share.part(step, left)
        piece = [rest[one] if one < left else (one - left) % count for one in range(start + skip, stop)]
        skip = 0
        found += [piece] if piece else []
    return found


def test_stretches_are_the_steps() -> None:
    chance = random.Random(8)
    for _ in range(400):
        count = chance.randrange(1, 3000)
        prefix = chance.randrange(count + 1)
        ahead, at = list[tuple[int, int]](), prefix
        while chance.random() < 0.4 and at + 3 < count:
            start = chance.randrange(at + 1, count - 1)
            at = chance.randrange(start + 1, count)
            ahead.append((start, at))
        world, workers, piece = chance.randrange(1, 5), chance.randrange(1, 4), chance.choice([1, 2, 7, 64, 5000])
        share = Share(
            chance.randrange(world), world, chance.randrange(workers), workers, piece, chance.choice(["keep", "drop", "repeat"])
        )
        progress, given = Progress(prefix, tuple(ahead)), chance.choice([0, 0, chance.randrange(count)])
        made = []
        for runs, sizes in share.stretches(progress, count, given):
            parts = (range(a + i * stride, a + i * stride + length) for a, length, stride, times in runs for i in range(times))
            positions = iter([one for part in parts for one in part])
            made += [list(islice(positions, size)) for size in sizes]
            assert next(positions, None) is None
        assert made == one_by_one(share, progress, count, given)


def test_long_plans_come_in_parts() -> None:
    parts = list(Share(1, 2, 0, 3, 10).stretches(Progress(7), 1_000_007))
    assert len(parts) > 30 and all(sum(sizes) < 5000 for _, sizes in parts)
    assert sum(sum(sizes) for _, sizes in parts) == Share(1, 2, 0, 3, 10).length(1_000_000)
