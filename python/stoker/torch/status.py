"""What there is of checkpoints: the latest one, and what became of those that are not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

from .. import paths
from ..sets import CheckpointSet
from ..store import Store

Path = str | os.PathLike[str]

METADATA = ".metadata"
#: Laggards that a message names.
NAMED_MAX = 16


def shard_name(rank: int) -> str:
    """The file of a rank."""
    return f"__{rank}_0.distcp"


def volume_missing(store: Store, volume: str) -> FileNotFoundError:
    """Says that there is no such volume, and which there are."""
    there = ", ".join(store.volumes()[:NAMED_MAX]) or "none"
    message = f"there is no volume {volume!r} (there are: {there}); make it with `stoker volume create {volume}`"
    return FileNotFoundError(2, message, f"{paths.SCHEME}{volume}")


@dataclass(frozen=True)
class CheckpointStatus:
    """How far a checkpoint is.

    >>> stoker.torch.status("stoker://run/step-2000").laggards
    ('rank 3',)
    """

    path: str
    #: "open", "published", "aborted" or "expired".
    state: str
    #: Who began it.
    owner: str
    #: Shards that are durable, and how many there are when it is whole: one for each rank, and the metadata.
    present: int
    shards: int
    bytes: int
    #: Who has not written: "rank 3"; "metadata" is what the coordinator writes when all others have.
    laggards: tuple[str, ...]
    #: "clean" once all of it is in the lake.
    drain: str

    def __str__(self) -> str:
        said = {
            "open": "is not complete",
            "expired": "was given up at its deadline",
            "aborted": "was given up",
            "published": "is complete",
        }.get(self.state, self.state)
        text = f"checkpoint {self.path} (begun by {self.owner}) {said}"
        if self.state == "published" or not self.shards:
            return text
        missing = ", ".join(self.laggards[:NAMED_MAX])
        if len(self.laggards) > NAMED_MAX:
            missing += f" and {len(self.laggards) - NAMED_MAX} more"
        return f"{text}: {self.present} of {self.shards} shards" + (f"; missing: {missing}" if missing else "")


def sets_below(store: Store, path: Path) -> Iterator[CheckpointSet]:
    """All sets whose directory begins like this, in the order in which they were begun."""
    volume, prefix = paths.split(path)
    after: int | None = None
    while True:
        page = json.loads(store._client.sets.list(volume, after))
        for row in page["sets"]:
            one = CheckpointSet(store._client, row)
            after = one.id
            if one.key.startswith(prefix):
                yield one
        if not page["more"] or not page["sets"]:
            return


def status_of(made: CheckpointSet) -> CheckpointStatus:
    """How far a set is that :class:`stoker.torch.StokerWriter` began."""
    now = made.status()
    names = tuple("metadata" if one == now.shards - 1 else f"rank {one}" for one in now.laggards)
    return CheckpointStatus(made.path, now.state, made.owner, now.present, now.shards, now.bytes, names, now.drain)


def status(path: Path, *, store: Store | None = None) -> CheckpointStatus | None:
    """What became of the checkpoint of this name; of several attempts, the last. None if nobody has tried, or none is known
    any more (attempts that failed are remembered for an hour)."""
    store = _store(store)
    volume, key = paths.split_file(path)
    own = key if key.endswith(b"/") else key + b"/"
    try:
        tried = [one for one in sets_below(store, paths.join(volume, own)) if one.key == own]
    except FileNotFoundError:
        raise volume_missing(store, volume) from None
    return status_of(tried[-1]) if tried else None


def incomplete(prefix: Path, *, store: Store | None = None) -> list[CheckpointStatus]:
    """Checkpoints below a prefix that were begun and are not published."""
    store = _store(store)
    return [status_of(one) for one in sets_below(store, prefix) if one.state != "published"]


def latest(prefix: Path, *, store: Store | None = None) -> str | None:
    """The checkpoint that was published last of those whose path begins like this; None if there is none.

    >>> stoker.torch.latest("stoker://run/")
    'stoker://run/step-1000/'
    """
    store = _store(store)
    try:
        return store.latest(prefix)
    except FileNotFoundError:
        raise volume_missing(store, paths.split(prefix)[0]) from None


def _store(store: Store | None) -> Store:
    if store is not None:
        return store
    from ..connecting import connect

    return connect()
