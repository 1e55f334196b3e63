"""Tar shards: the samples of a shard that has no seal.

Only as much of tar as shards have: regular files, long names of both kinds (GNU and pax), large sizes. Everything else is
passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .._stoker import TarError

BLOCK = 512
#: Names and pax records longer than this are refused.
EXTRA_MAX = 1 << 20
#: How much is read at once while headers are looked for.
WINDOW = 256 << 10

_REGULAR = (0x30, 0x00, 0x37)
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = 0x4C, 0x4B, 0x78, 0x67
_END = bytes(BLOCK)
_OCTAL = re.compile(rb"[0-7]{11}[\0 ]").fullmatch


def stem_of(name: bytes) -> tuple[bytes, bytes]:
    """Stem and extension: the path up to the first dot of its last component, and what follows that dot.

    >>> stem_of(b"train/0001.seg.png")
    (b'train/0001', b'seg.png')
    """
    folder = name.rfind(b"/") + 1
    dot = name.find(b".", folder)
    return (name, b"") if dot < 0 else (name[:dot], name[dot + 1 :])


def _number(field: bytes) -> int:
    if _OCTAL(field):  # as nearly all are
        return int(field[:11], 8)
    if field[:1] in (b"\x80", b"\xff"):
        value = int.from_bytes(field[1:], "big")
        if field[0] == 0xFF or value >= 1 << 63:
            raise TarError("a size of a member is out of range")
        return value
    digits = field.replace(b"\0", b" ").strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        raise TarError(f"{digits!r} is no size of a member") from None


def _pax(record: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(record):
        space = record.find(b" ", at)
        if space < 0 or not record[at:space].isdigit() or space - at > 8:
            raise TarError("a pax record cannot be read")
        end = at + int(record[at:space])
        key, equals, value = record[space + 1 : end - 1].partition(b"=")
        if end <= space or end > len(record) or not equals:
            raise TarError("a pax record cannot be read")
        found[key] = value
        at = end
    return found


@dataclass(slots=True)
class _Extras:
    """What headers in front of a member say of it."""

    name: bytes | None = None
    size: int | None = None


def _name_in(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[345] and header[257:263] == b"ustar\0":
        return header[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _learn(extras: _Extras, kind: int, record: bytes) -> None:
    if len(record) > EXTRA_MAX:
        raise TarError(f"a name or record of more than {EXTRA_MAX} bytes")
    if kind == _LONG_NAME:
        extras.name = record.rstrip(b"\0")
        return
    found = _pax(record)
    if any(name.startswith(b"GNU.sparse.") for name in found):
        raise TarError("a sparse member: make the tar without --sparse")
    if b"path" in found:
        extras.name = found[b"path"]
    if b"size" in found:
        if not found[b"size"].isdigit() or len(found[b"size"]) > 18:
            raise TarError("a pax size cannot be read")
        extras.size = int(found[b"size"])


def samples_of(read: Callable[[int, int], bytes], size: int) -> Iterator[tuple[bytes, int, int]]:
    """The samples of a whole tar: stem, offset, length. ``read(offset, length)`` is asked for the headers only, which come with
    what is near them."""
    window, begins = b"", 0

    def piece(at: int, length: int) -> bytes:
        nonlocal window, begins
        if at + length > size:
            raise TarError(f"the tar ends within a header or a record at {at}")
        if at < begins or at + length > begins + len(window):
            window, begins = read(at, max(length, min(WINDOW, size - at))), at
        return window[at - begins : at - begins + length]

    stem: bytes | None = None
    first = last = at = 0
    member: int | None = None  # where the headers of the next member begin
    extras = _Extras()
    while at + BLOCK <= size:
        header = piece(at, BLOCK)
        if header == _END:
            break
        _check_header(header, at)
        member = at if member is None else member
        kind, length, start = header[156], _number(header[124:136]), at + BLOCK
        if kind in _REGULAR:
            length = length if extras.size is None else extras.size
            name = extras.name if extras.name is not None else _name_in(header)
            own = stem_of(name)[0]
            if own != stem:
                if stem is not None:
                    yield stem, first, last - first
                stem, first = own, member
        elif kind in (_LONG_NAME, _PAX):
            if length > EXTRA_MAX:
                raise TarError(f"a name or record of more than {EXTRA_MAX} bytes")
            _learn(extras, kind, piece(start, length))
        at = start + (length + BLOCK - 1) // BLOCK * BLOCK
        if at > size:
            raise TarError(f"a member at {start - BLOCK} does not end inside of the tar")
        if kind in _REGULAR:
            last = at
        if kind not in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            member, extras = None, _Extras()
    else:
        raise TarError(f"it has no mark of its end within {size} bytes: it was cut off")
    if member is not None:
        raise TarError(f"it ends within the headers of a member at {member}")
    if stem is not None:
        yield stem, first, last - first


def _check_header(header: bytes, at: int) -> None:
    said = _number(header[148:156])
    if header[257:262] != b"ustar" or sum(header) - sum(header[148:156]) + 8 * 32 != said:
        raise TarError(f"there is no header of a member at {at}")
