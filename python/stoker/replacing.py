"""A checkpoint in place of another one of the same name.

The new one is gathered as a set of its own beside the old one, ``.NAME.overwrite/`` for ``NAME/``. Once it is published, complete and
durable, the two directories exchange their names, in one transaction; then the old one, which has the other name now, is
removed. So whoever reads ``NAME/`` finds the old checkpoint or the new one, whole. What a crash leaves:

- before the publish: an open set, which is given up at its deadline or by the next save;
- before the exchange: the new checkpoint beside the old one. The next save that overwrites completes the exchange first;
- before the removal: the old one under the other name. The next save that overwrites removes it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import paths
from ._stoker import Client, ConflictError

if TYPE_CHECKING:
    from .store import Store

#: What is deleted first: what lacks it is not taken for a checkpoint.
METADATA = b".metadata"
SUFFIX = b".overwrite/"
#: Removed by one request.
REMOVED_AT_ONCE = 1000
#: Tries while somebody else removes or makes the directory that is to be replaced.
TRIES_MAX = 5


def beside(key: bytes) -> bytes:
    """The directory that is gathered for a key, to replace what is there."""
    parent, name = _split(key)
    return parent + b"." + name + SUFFIX


def replaced(key: bytes) -> bytes | None:
    """The directory that one of this key is to replace; None for others."""
    parent, name = _split(key)
    start, end = name[:1], (name + b"/").endswith(SUFFIX)
    inner = name[1 : 1 - len(SUFFIX)]
    return parent + inner + b"/" if start == b"." and end and inner else None


def _split(key: bytes) -> tuple[bytes, bytes]:
    parent, slash, name = key.rstrip(b"/").rpartition(b"/")
    return parent + slash, name


def target(store: Store, path: str) -> str:
    """Where a set is to be gathered that shall become ``path``: there, unless something has the name. What an earlier attempt
    left beside it is settled."""
    volume, key = paths.split_file(path)
    key = key.rstrip(b"/") + b"/"
    aside = beside(key)
    left = store.find_set(paths.join(volume, aside))
    if left is not None and left.state == "published":
        there = store.find_set(paths.join(volume, key))
        if there is None or int(there._row["seq"]) < int(left._row["seq"]):
            exchange(store._client, volume, aside, key, left.id)
    if next(store.list(paths.join(volume, key)), None) is None:
        return paths.join(volume, key)
    about = store.volume(volume)
    mode = about["policy"]["lake_mode"]
    if about["lake"] is not None and mode != "owned":
        # The exchange would be refused, after everything was written.
        message = f"a directory is replaced only in a volume whose lake mode is 'owned', this one is {mode!r}: use another name"
        raise ValueError(f"{path}: {message}")
    remove_tree(store._client, volume, aside)
    return paths.join(volume, aside)


def settle(client: Client, row: dict[str, Any]) -> bool:
    """Gives a set that was just published the name of what it replaces, and removes that. False if there is nothing to do."""
    volume, aside = str(row["volume"]), bytes(row["path"])
    key = replaced(aside)
    if key is None:
        return False
    exchange(client, volume, aside, key, int(row["set"]))
    try:
        remove_tree(client, volume, aside)
    except OSError as fault:
        # The new one is in its place; the next one that overwrites removes what is left.
        name = paths.join(volume, aside)
        warnings.warn(f"what was replaced is now {name} and was not removed: {fault}", RuntimeWarning, stacklevel=3)
    return True


def exchange(client: Client, volume: str, aside: bytes, key: bytes, id: int) -> None:
    """Hangs the directory with this number under its final name, and what has that name beside it."""

    def is_done() -> bool:
        return bytes(json.loads(client.sets.status(volume, id))["info"]["path"]) == key

    for _ in range(TRIES_MAX):
        try:
            return client.exchange(volume, aside, key, id)
        except FileNotFoundError:
            # What was to be replaced is gone, or somebody else has done this already.
            if is_done():
                return
        except ConflictError:
            if is_done():
                return
            raise
        try:
            return client.rename(volume, aside, key, False)
        except (FileNotFoundError, FileExistsError):
            if is_done():
                return
    raise ConflictError(16, "others remove and make this directory all the time; publish again", paths.join(volume, key))


def remove_tree(client: Client, volume: str, directory: bytes) -> None:
    """Removes what is below a directory; its metadata first."""
    client.delete(volume, [directory + METADATA])
    while True:
        lines, _ = client.list(volume, directory, None, None, REMOVED_AT_ONCE)
        keys = [bytes(line[0]) for line in lines]
        if not keys:
            return
        client.delete(volume, keys)


def published(client: Client, volume: str, prefix: bytes) -> Iterator[dict[str, Any]]:
    """Sets that were published below a prefix, without those that wait for their exchange."""
    after: int | None = None
    while True:
        page = json.loads(client.sets.list(volume, after))
        for row in page["sets"]:
            after = int(row["set"])
            key = bytes(row["path"])
            if row["state"] == "published" and key.startswith(prefix) and replaced(key) is None:
                yield row
        if not page["more"] or not page["sets"]:
            return
