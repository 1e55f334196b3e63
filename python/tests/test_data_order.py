"""Orders: permutations that need no memory, the same everywhere."""

from __future__ import annotations

import hashlib
import math
import pickle
from array import array
from collections import Counter

import pytest

from stoker.data import Order, Permutation


GOLDEN = [4, 2, 0, 6, 3, 8, 7, 1, 9, 5]
GOLDEN_BILLION = 780693805


def is_permutation(samples: list[int], count: int) -> bool:
    return len(samples) == count and set(samples) == set(range(count))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 99, 100, 101, 1000])
@pytest.mark.parametrize("block", [1, 2, 7, 64, 5000])
def test_every_sample_has_one_position(count: int, block: int) -> None:
    for epoch in range(3):
        order = Order(count, seed=5, epoch=epoch, block=block)
        one_by_one = [order.sample(position) for position in range(count)]
        assert is_permutation(one_by_one, count)
        assert list(order.samples(range(count))) == one_by_one


@pytest.mark.parametrize("block", [1, 48])
def test_a_million(block: int) -> None:
    samples = Order(1_000_000, seed=1, epoch=2, block=block).samples(range(1_000_000))
    seen = bytearray(1_000_000)
    for sample in samples:
        seen[sample] = 1
    assert len(samples) == 1_000_000 and all(seen)
    assert samples == Order(1_000_000, seed=1, epoch=2, block=block).samples(range(1_000_000))


def test_a_billion_costs_nothing() -> None:
    order = Permutation(1_000_000_000, "x")
    assert [order.position_of(order.at(position)) for position in (0, 5, 999_999_999)] == [0, 5, 999_999_999]
    blocks = Order(1_000_000_001, seed=3, block=100)
    assert 0 <= blocks.sample(1_000_000_000) < 1_000_000_001


def mixed(value: int) -> int:
    word = (1 << 64) - 1
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & word
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & word
    return value ^ (value >> 31)


def plain(count: int, key: str, position: int) -> int:
    """The element at a position of a permutation, in words that anybody can read."""
    digest = hashlib.blake2b(key.encode(), digest_size=64, person=b"stoker.order").digest()
    side = max(1, math.isqrt(max(0, count - 1)) + 1)
    while True:
        left, right = divmod(position, side)
        for round in range(8):
            left, right = right, (left + mixed(right ^ int.from_bytes(digest[8 * round :][:8], "little")) % side) % side
        position = left * side + right
        if position < count:
            return position


def test_plain_arithmetic_gives_the_same_order() -> None:
    for count in (1, 2, 999, 1000, 123_457, (1 << 40) + 3, 1 << 62):
        positions = [0, 1, 2, 500, 998, count // 3, count - 1]
        positions = [position for position in positions if position < count]
        order = Order(count, seed=9, epoch=4)
        assert order.samples(positions) == [plain(count, "seed 9, epoch 4, block 1", one) for one in positions]
        assert order.runs([(one, 1, 0, 1) for one in positions]).tolist() == order.samples(positions)


def test_runs_of_positions() -> None:
    order = Order(1000, seed=3, block=7)
    wanted = [one for start in (5, 105, 205) for one in range(start, start + 20)] + [999]
    assert order.runs([(5, 20, 100, 3), (999, 1, 0, 1)]).tolist() == order.samples(wanted)
    for outside in ((999, 2, 0, 1), (0, 1, 500, 3), (1 << 63, 1, 1 << 63, 9), (0, 1 << 40, 0, 1)):
        with pytest.raises(IndexError):
            order.runs([outside])
    assert pickle.loads(pickle.dumps(order)).samples(range(50)) == order.samples(range(50))
    assert pickle.loads(pickle.dumps(Permutation(50, "x"))).at(3) == Permutation(50, "x").at(3)


def test_the_order_stays_what_it_is() -> None:
    # A state is worth nothing if another version of the package has another order.
    assert list(Order(10, seed=7, epoch=0).samples(range(10))) == GOLDEN
    assert Permutation(1_000_000_000, "seed 7").at(12345) == GOLDEN_BILLION


def test_seed_and_epoch_make_other_orders() -> None:
    orders = {tuple(Order(50, seed=seed, epoch=epoch).samples(range(50))) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_small_orders_are_all_there_and_even() -> None:
    seen = Counter(tuple(Order(4, seed=seed).samples(range(4))) for seed in range(4800))
    assert len(seen) == 24
    # 200 are expected of each; chi-square with 23 degrees of freedom is above 60 once in thirty thousand orders.
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 60


def test_neighbours_are_far_apart_unless_they_are_a_block() -> None:
    samples = Order(100_000, seed=2).samples(range(100_000))
    near = sum(abs(a - b) < 100 for a, b in zip(samples, samples[1:]))
    assert near < 400  # 200 of 100,000 are expected by chance
    blocks = Order(100_000, seed=2, block=50).samples(range(100_000))
    together = sum((b - a) % 100_000 == 1 for a, b in zip(blocks, blocks[1:]))
    assert together >= 100_000 * 49 // 50 - 1


def test_blocks_begin_elsewhere_in_each_epoch() -> None:
    begins = set()
    for epoch in range(20):
        samples = Order(1000, seed=2, epoch=epoch, block=10).samples(range(1000))
        begins.add(samples[0] % 10)
    assert len(begins) > 3


def test_not_shuffled() -> None:
    assert list(Order(20, shuffle=False).samples(range(5, 20, 3))) == [5, 8, 11, 14, 17]


@pytest.mark.parametrize("positions", [[100], [-1], list(range(90, 101)), [*range(20), -1]])
def test_positions_outside_are_refused(positions: list[int]) -> None:
    with pytest.raises(IndexError):
        Order(100).samples(positions)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="block"):
        Order(10, block=0)
    with pytest.raises(ValueError, match="elements"):
        Permutation(-1, "x")
    assert array("Q", Order(0).samples(range(0))) == array("Q")
