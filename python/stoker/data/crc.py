"""CRC-64/NVME, the checksum of seals.

Seals have tens of megabytes and are checked on opening. With NumPy many stripes of the bytes are summed side by side and then
joined, which takes a tenth of a second; without it a table and a loop do, which is slow but the same.
"""

from __future__ import annotations

from typing import Any

try:
    import numpy as np
except ImportError:  # the loop below is enough
    np = None  # type: ignore[assignment]

_POLY = 0x9A6C9329AC4BC9B5  # x^64 is left out, lowest power in the highest bit
_ONES = (1 << 64) - 1
#: Stripes that are summed side by side; shorter input is not worth it.
_STRIPES = 4096
_STRIPED_MIN = 1 << 18


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLY if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def _loop(state: int, data: Any) -> int:
    table = _TABLE
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state


def _times(left: int, right: int) -> int:
    """Product of two polynomials modulo the polynomial; the lowest power is the highest bit."""
    product = 0
    for _ in range(64):
        if left >> 63:
            product ^= right
        left = (left << 1) & _ONES
        right = (right >> 1) ^ (_POLY if right & 1 else 0)
    return product


def _zeros(count: int) -> int:
    """What multiplies a state when ``count`` zero bytes follow: x^(8 count)."""
    power, square = 1 << 63, 1 << 55
    while count:
        if count & 1:
            power = _times(square, power)
        square = _times(square, square)
        count >>= 1
    return power


def _striped(view: memoryview) -> int:
    length = len(view) // _STRIPES
    table = np.array(_TABLE, dtype=np.uint64)
    stripes = np.frombuffer(view[: length * _STRIPES], dtype=np.uint8).reshape(_STRIPES, length)
    states = np.zeros(_STRIPES, dtype=np.uint64)
    states[0] = _ONES
    low, eight = np.uint64(0xFF), np.uint64(8)
    for start in range(0, length, 4096):  # a part at a time, so that the transposed copy stays small
        for column in np.ascontiguousarray(stripes[:, start : start + 4096].T):
            states = table[(states ^ column) & low] ^ (states >> eight)
    # Each byte of a state is moved over one stripe by a table of its own.
    move = _zeros(length)
    bits = [_times(1 << bit, move) for bit in range(64)]
    moves = []
    for place in range(8):
        row = [0] * 256
        for byte in range(1, 256):
            lowest = (byte & -byte).bit_length() - 1
            row[byte] = row[byte & (byte - 1)] ^ bits[8 * place + lowest]
        moves.append(row)
    state = 0
    for stripe in states.tolist():
        moved = 0
        for place in range(8):
            moved ^= moves[place][(state >> (8 * place)) & 0xFF]
        state = moved ^ stripe
    return _loop(state, view[length * _STRIPES :])


def crc64(data: Any) -> int:
    """The checksum of some bytes.

    >>> hex(crc64(b"123456789"))
    '0xae8b14860a799888'
    """
    view = memoryview(data).cast("B")
    if np is not None and len(view) >= _STRIPED_MIN:
        return _striped(view) ^ _ONES
    return _loop(_ONES, view) ^ _ONES
