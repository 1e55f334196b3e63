"""Reading: samples come before they are asked for, many with one call, and never more of them than memory is allowed for."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from .._stoker import File
from .sources import Source
from .stats import Tally

#: Bytes between two samples that are read along rather than asked for in a second call.
GAP_MAX = 8 << 10
#: A group is what is read together: at most this many bytes and samples, and a quarter of the budget.
GROUP_BYTES_MAX = 8 << 20
GROUP_SAMPLES_MAX = 1024
#: Files that a process keeps open.
OPEN_MAX = 4096

_MEMORY_MIN = 64 << 10


class _Files:
    """Open files of this process, the ones used last; each is opened once, however many threads want it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Future[File]] = OrderedDict()

    def get(self, number: int) -> File:
        with self._lock:
            known = self._open.get(number)
            mine = known is None
            if known is None:
                known = self._open[number] = Future()
                if len(self._open) > OPEN_MAX:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(number)
        if mine:
            try:
                known.set_result(self._source.open(number))
            except BaseException as fault:
                with self._lock:
                    if self._open.get(number) is known:
                        del self._open[number]
                known.set_exception(fault)
        return known.result()


class _Memory:
    """Buffers within a budget; those that were given back are used again."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = self.peak = 0
        self._idle: list[bytearray] = []

    def fits(self, size: int) -> bool:
        idle = sum(len(one) for one in self._idle)
        return self.used - idle + size <= self.budget or self.used == idle

    def take(self, size: int) -> bytearray:
        for number, one in enumerate(self._idle):
            if size <= len(one) <= 2 * size:
                return self._idle.pop(number)
        while self._idle and self.used + size > self.budget:
            self.used -= len(self._idle.pop())
        self.used += size
        self.peak = max(self.peak, self.used)
        return bytearray(size)

    def give_back(self, buffer: bytearray, again: bool) -> None:
        if again:
            self._idle.append(buffer)
        else:
            self.used -= len(buffer)


class _Group:
    """Some samples that are read together into one buffer."""

    def __init__(self, samples: Sequence[int], places: Sequence[tuple[int, int, int]]) -> None:
        self.samples, self.places = samples, places
        #: For each file: where its bytes begin in the buffer, and which ranges of it they are.
        self.files: list[tuple[int, int, list[tuple[int, int]]]] = []
        self.starts = [0] * len(samples)
        self.size = self.reads = 0
        self._plan()

    def _plan(self) -> None:
        number, begin, end = -1, 0, 0
        for index in sorted(range(len(self.places)), key=self.places.__getitem__):
            file, offset, length = self.places[index]
            if file != number:
                number = file
                self.files.append((file, self.size, []))
                begin = end = -1
            ranges = self.files[-1][2]
            if begin >= 0 and offset <= end + GAP_MAX:
                more = max(0, offset + length - end)
                ranges[-1] = (begin, end + more - begin)
                end, self.size = end + more, self.size + more
            else:
                begin, end = offset, offset + length
                ranges.append((begin, length))
                self.size += length
                self.reads += 1
            self.starts[index] = self.size - (end - offset)


class Fetcher:
    """Reads samples of a source for one process. ``memory`` bounds the bytes that were read and not yet given on; one sample
    that is larger is read by itself."""

    def __init__(self, source: Source, *, memory: int, threads: int = 8, again: bool = True) -> None:
        if threads < 1:
            raise ValueError(f"at least one thread reads, not {threads}")
        self._source, self._threads, self._again = source, threads, again
        self._files = _Files(source)
        self._memory = _Memory(max(memory, _MEMORY_MIN))
        self._group_bytes = max(1, min(GROUP_BYTES_MAX, self._memory.budget // 4))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stoker-read")

    @property
    def memory_peak(self) -> int:
        """The most bytes that were held at once."""
        return self._memory.peak

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def stream(self, samples: Iterable[int], tally: Tally) -> Iterator[tuple[int, memoryview | BaseException]]:
        """The bytes of samples, in this order, or for one that is bad why. A view is good until the next one is asked for,
        unless buffers are not used again."""
        groups = self._groups(iter(samples))
        waiting: deque[tuple[_Group, bytearray, list[Future[None]]]] = deque()
        next_group = next(groups, None)
        try:
            while next_group is not None or waiting:
                while next_group is not None and (not waiting or self._memory.fits(next_group.size)):
                    waiting.append(self._begin(next_group, tally))
                    next_group = next(groups, None)
                group, buffer, calls = waiting[0]
                yield from self._finish(group, buffer, calls)
                waiting.popleft()
                self._memory.give_back(buffer, self._again)
        finally:
            # Whoever stops early must not leave threads that write to memory which is used again.
            for _, buffer, calls in waiting:
                for call in calls:
                    call.cancel()
                wait(calls)
                self._memory.give_back(buffer, self._again)

    def _groups(self, samples: Iterator[int]) -> Iterator[_Group]:
        numbers: list[int] = []
        places: list[tuple[int, int, int]] = []
        size = 0
        while chunk := list(itertools.islice(samples, GROUP_SAMPLES_MAX)):
            for sample, place in zip(chunk, self._source.locate_many(chunk)):
                full = size + place[2] > self._group_bytes or len(numbers) >= GROUP_SAMPLES_MAX
                if numbers and full:
                    yield _Group(numbers, places)
                    numbers, places, size = [], [], 0
                numbers.append(sample)
                places.append(place)
                # What lies between neighbours may be read along.
                size += place[2] + GAP_MAX
        if numbers:
            yield _Group(numbers, places)

    def _begin(self, group: _Group, tally: Tally) -> tuple[_Group, bytearray, list[Future[None]]]:
        buffer = self._memory.take(group.size)
        tally.add("reads", group.reads)
        tally.add("read_bytes", group.size)
        count = min(self._threads, len(group.files))
        calls = [self._pool.submit(self._read, memoryview(buffer), group.files[i::count]) for i in range(count)]
        return group, buffer, calls

    def _read(self, view: memoryview, files: list[tuple[int, int, list[tuple[int, int]]]]) -> None:
        for number, begin, ranges in files:
            size = sum(length for _, length in ranges)
            if size:
                self._files.get(number).read_many(ranges, view[begin : begin + size])

    def _finish(
        self, group: _Group, buffer: bytearray, calls: list[Future[None]]
    ) -> Iterator[tuple[int, memoryview | BaseException]]:
        wait(calls)
        failed = any(call.exception() is not None for call in calls)
        view = memoryview(buffer)
        for sample, start, place in zip(group.samples, group.starts, group.places):
            yield sample, self._read_one(place) if failed else view[start : start + place[2]]

    def _read_one(self, place: tuple[int, int, int]) -> memoryview | BaseException:
        """Something of a group is bad: each sample by itself, so that only those are bad that are."""
        file, offset, length = place
        try:
            return memoryview(self._files.get(file).read(offset, length))
        except self._source.sample_faults as fault:
            return fault


def fetched_size(found: Any) -> int:
    """Bytes of what :meth:`Fetcher.stream` gave."""
    return len(found) if isinstance(found, memoryview) else 0
