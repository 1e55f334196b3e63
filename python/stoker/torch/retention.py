"""Which checkpoints stay."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .. import paths, replacing
from ..sets import CheckpointSet
from ..store import Store
from .status import sets_below

#: Says that a checkpoint goes to the lake and stays there.
KEEP = "_STOKER_KEEP"


@dataclass(frozen=True)
class Retention:
    """What happens to older checkpoints below ``prefix`` after one was published.

    ``keep_last``: so many stay, the newest ones; older ones are deleted, from the lake too. ``drain_every``: every so-manieth one
    is sent to the lake and stays for good. Its volume has to drain on demand: otherwise all of them would go there.
    Only published sets count: what somebody copied there as plain files is left alone.
    """

    keep_last: int | None = None
    drain_every: int | None = None
    prefix: str | None = None

    def __post_init__(self) -> None:
        for name in ("keep_last", "drain_every"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is a number from 1 on, not {value!r}")

    @property
    def wanted(self) -> bool:
        return self.keep_last is not None or self.drain_every is not None

    def check(self, store: Store, path: str) -> None:
        """Refuses what the volume of a checkpoint cannot do."""
        if self.drain_every is None:
            return
        volume = paths.split(path)[0]
        about = store.volume(volume)
        if about["lake"] is None:
            raise ValueError(f"{path}: drain_every needs a lake, and the volume {volume} has none")
        drain = about["policy"]["drain"]
        if drain != "on_demand":
            hint = f"`stoker volume set {volume} --drain on-demand`"
            raise ValueError(f"{path}: drain_every needs a volume that drains on demand, this one drains {drain!r}: {hint}")

    def _prefix(self, path: str) -> str:
        volume, key = paths.split_file(path)
        parent = key.rstrip(b"/").rpartition(b"/")[0]
        prefix = self.prefix if self.prefix is not None else paths.join(volume, parent + b"/" if parent else b"")
        own, start = paths.split(prefix)
        if own != volume or not key.startswith(start):
            raise ValueError(f"{path} is not below the prefix {prefix} of its retention")
        return prefix

    def _published(self, store: Store, path: str) -> list[CheckpointSet]:
        below = sets_below(store, self._prefix(path))
        # One that waits to replace another is not one more.
        found = [one for one in below if one.state == "published" and replacing.replaced(one.key) is None]
        return sorted(found, key=lambda one: int(one._row["seq"]))

    def number(self, store: Store, path: str) -> int | None:
        """Which one the next checkpoint is. Counted only if somebody asks, and kept in the name of the set's owner: the newest
        checkpoint is never deleted, so the count goes on after a restart. One that replaces another has its number."""
        if self.drain_every is None:
            return None
        published = self._published(store, path)
        own = next((number_of(one) for one in published if one.path == path), 0)
        return own or 1 + max((number_of(one) for one in published), default=0)

    def apply(self, store: Store, path: str) -> list[str]:
        """Does it, after ``path`` was published; returns what was deleted. The newest one is never deleted."""
        if not self.wanted:
            return []
        published = self._published(store, path)
        kept = {one.id for one in published if store.exists(one.path + KEEP)}
        if self.drain_every is not None:
            # Not only the newest: whoever published one may have ended before it got here.
            for one in published:
                number = number_of(one)
                if number and number % self.drain_every == 0 and one.id not in kept:
                    store.write(one.path + KEEP, b"")
                    store.drain(one.path)
                    kept.add(one.id)
        gone = []
        if self.keep_last is not None:
            for one in published[: -self.keep_last]:
                if one.id not in kept:
                    delete(store, one)
                    gone.append(one.path)
        return gone


def number_of(one: CheckpointSet) -> int:
    """Which one it was of those that are counted; 0 if it was not."""
    found = re.search(r"#(\d{1,18})$", one.owner)
    return int(found.group(1)) if found else 0


def delete(store: Store, one: CheckpointSet) -> None:
    """Deletes a published checkpoint: first its metadata, so that what is half deleted is not taken for one."""
    replacing.remove_tree(store._client, one.volume, one.key)
