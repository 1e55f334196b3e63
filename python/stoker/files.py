"""Files as Python knows them."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import _stoker
from .receipts import Receipt

#: Writes below this are gathered before they are handed on.
GATHER = 256 << 10


class Reader(io.RawIOBase):
    """One version of a file, as it was when it was opened. ``readinto`` fills NumPy arrays, tensors and any other memory.

    >>> with store.open("data/x.npy") as file:
    ...     file.readinto(array)
    """

    def __init__(self, file: _stoker.File, path: str) -> None:
        super().__init__()
        self._file: _stoker.File | None = file
        self._size = int(file.size)
        self._at = 0
        self.name = path

    @property
    def size(self) -> int:
        """Length of the file."""
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        if base + offset < 0:
            raise ValueError("seek in front of the file")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = self._open().read_into(buffer, self._at)
        self._at += count
        return int(count)

    def read(self, size: int | None = -1) -> bytes:
        wish = self.size if size is None or size < 0 else size
        data = self._open().read(self._at, wish)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def read_at(self, offset: int, size: int) -> bytes:
        """Bytes at an offset; does not move, so that threads may share the file."""
        return self._open().read(offset, size)

    def readinto_at(self, buffer: Any, offset: int) -> int:
        """Fills memory from an offset on; does not move."""
        return int(self._open().read_into(buffer, offset))

    def read_many(self, ranges: list[tuple[int, int]], buffer: Any) -> None:
        """Fills memory with many (offset, length) of the file, one behind the other, as many at once as the drive likes."""
        self._open().read_many(ranges, buffer)

    def close(self) -> None:
        # Not when the object goes: the lake keeps what was replaced or deleted for as long as it is open.
        self._file = None
        super().close()

    def _open(self) -> _stoker.File:
        file = self._file
        if file is None:
            raise ValueError("the file is closed")
        return file


class Writer(io.RawIOBase):
    """A file that is there, whole, when it is closed. An error inside of ``with`` leaves nothing of it.

    >>> with store.open("data/x.bin", "wb") as file:
    ...     file.write(tensor.numpy())
    >>> file.receipt.copies
    2
    """

    def __init__(self, writer: _stoker.Writer, path: str, receipt: Callable[[str], Receipt]) -> None:
        super().__init__()
        self._writer: _stoker.Writer | None = writer
        self._made = receipt
        self._gathered = bytearray()
        self._at = 0
        self.name = path
        #: What the write reached; there once it is closed.
        self.receipt: Receipt | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        if self._writer is None:
            raise ValueError("the file is closed")
        view = memoryview(data)
        size = view.nbytes
        if size < GATHER:
            self._gathered += view.cast("B") if view.contiguous and size else bytes(view)
            if len(self._gathered) >= GATHER:
                self._hand_on()
        else:
            self._hand_on()
            self._writer.write(data if view.contiguous else bytes(view))
        self._at += size
        return size

    def _hand_on(self) -> None:
        if self._gathered and self._writer is not None:
            gathered, self._gathered = self._gathered, bytearray()
            self._writer.write(gathered)

    def close(self) -> None:
        if self._writer is None:
            return
        try:
            self._hand_on()
            writer, self._writer = self._writer, None
            self.receipt = self._made(writer.finish())
        finally:
            self._writer = None
            super().close()

    def abort(self) -> None:
        """Gives the file up; what had its name before is still there."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        # A file that nobody closed is not whole: nothing of it must show.
        if getattr(self, "_writer", None) is not None:
            self.abort()
