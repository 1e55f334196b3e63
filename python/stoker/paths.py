"""Paths: ``VOLUME/KEY`` or ``stoker://VOLUME/KEY``. Keys are bytes; text is UTF-8, and bytes that are not come as surrogates."""

from __future__ import annotations

import os

SCHEME = "stoker://"


def text(key: bytes) -> str:
    """A key as text, which :func:`split` turns into the same key again."""
    return key.decode("utf-8", "surrogateescape")


def key_of(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def split(path: str | os.PathLike[str]) -> tuple[str, bytes]:
    """Volume and key of a path; the key may be empty."""
    whole = os.fspath(path)
    if not isinstance(whole, str):
        raise TypeError(f"a path is text, not {type(whole).__name__}")
    inside = whole[len(SCHEME) :] if whole.startswith(SCHEME) else whole.lstrip("/")
    volume, _, name = inside.partition("/")
    if not volume:
        raise ValueError(f"{whole!r}: a path is VOLUME/KEY or {SCHEME}VOLUME/KEY")
    return volume, key_of(name)


def split_file(path: str | os.PathLike[str]) -> tuple[str, bytes]:
    """The same for a path that has to name a file."""
    volume, key = split(path)
    if not key:
        raise ValueError(f"{os.fspath(path)!r} names a volume; a file is VOLUME/KEY")
    return volume, key


def join(volume: str, key: bytes) -> str:
    return f"{SCHEME}{volume}/{text(key)}"
