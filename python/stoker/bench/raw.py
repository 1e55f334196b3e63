"""What the drive and the memory can do without Stoker."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: As the bare side of `stoker bench` reads and writes long files.
PIECE = 4 << 20
DEPTH = 8

Piece = tuple[int, int, int]
"""Descriptor, offset, length."""


def _pieces(fd: int, size: int, piece: int) -> list[Piece]:
    return [(fd, start, min(piece, size - start)) for start in range(0, size, piece)]


def _run(pieces: Sequence[Piece], depth: int, piece: int, work: Callable[[Piece, memoryview], None]) -> float:
    """Works on all pieces, ``depth`` of them at once, each thread with page-aligned memory of its own. Returns seconds."""
    buffers = [mmap.mmap(-1, piece) for _ in range(depth)]
    for buffer in buffers:
        buffer.write(os.urandom(piece))
    todo = iter(pieces)

    def worker(buffer: mmap.mmap) -> None:
        view = memoryview(buffer)
        # `next` of a list's iterator is one step for the interpreter, so threads share it.
        while (one := next(todo, None)) is not None:
            work(one, view[: one[2]])
        view.release()

    with ThreadPoolExecutor(depth) as pool:
        start = time.monotonic()
        for done in [pool.submit(worker, buffer) for buffer in buffers]:
            done.result()
        return time.monotonic() - start


def _read(one: Piece, into: memoryview) -> None:
    fd, offset, size = one
    if os.preadv(fd, [into], offset) != size:
        raise OSError(5, "a file became shorter while it was read")


def _write(one: Piece, data: memoryview) -> None:
    fd, offset, size = one
    if os.pwrite(fd, data, offset) != size:
        raise OSError(28, "the drive took a part of a write")


def read_files(files: Sequence[Path], *, piece: int = PIECE, depth: int = DEPTH) -> float:
    """Reads files from front to back with O_DIRECT. Returns seconds."""
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in files]
    try:
        # A direct read is a multiple of a block long, also at the end of a file, where it returns less.
        pieces: list[Piece] = []
        for fd in fds:
            size = os.fstat(fd).st_size
            pieces += _pieces(fd, size - size % 4096, piece)
        return _run(pieces, depth, piece, _read)
    finally:
        for fd in fds:
            os.close(fd)


def read_places(file: Path, offsets: Sequence[int], size: int, *, depth: int) -> float:
    """Reads pieces of a file in the order that is given, with O_DIRECT. Returns seconds."""
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        return _run([(fd, offset, size) for offset in offsets], depth, size, _read)
    finally:
        os.close(fd)


def write_file(path: Path, size: int, *, piece: int = PIECE, depth: int = DEPTH) -> float:
    """Writes a file with O_DIRECT and O_DSYNC; if it is there it is overwritten in place. Returns seconds."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT | os.O_DSYNC, 0o600)
    try:
        return _run(_pieces(fd, size - size % 4096, piece), depth, piece, _write)
    finally:
        os.close(fd)
