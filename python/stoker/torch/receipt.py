"""What a save reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .. import paths
from ..receipts import Holder, Receipt
from ..sets import CheckpointSet
from ..store import Store

#: How often something is looked at that nobody announces.
LOOK_S_MIN = 0.02
LOOK_S_MAX = 1.0


def looks() -> Iterator[None]:
    """Goes on for ever, slower and slower."""
    pause = LOOK_S_MIN
    while True:
        yield None
        time.sleep(pause)
        pause = min(pause * 1.5, LOOK_S_MAX)


@dataclass(frozen=True)
class SaveReceipt:
    """The receipt of a checkpoint: true when it was made, and to be asked again.

    >>> receipt = writer.wait()
    >>> receipt.nodes, receipt.copies
    (('node-1', 'node-2'), 2)
    >>> receipt.wait_drained()  # now it is in the lake  # doctest: +SKIP
    """

    path: str
    set_id: int
    #: Shards, with the metadata, and the bytes of all of them.
    shards: int
    bytes: int
    #: Of the shard that this rank wrote.
    shard: Receipt
    _set: CheckpointSet = field(repr=False, compare=False)
    _store: Store = field(repr=False, compare=False)

    def files(self) -> list[Receipt]:
        """Receipts of all files of the checkpoint, as of now; one question for each."""
        return [self._store.receipt(one.path) for one in self._store.list(self.path, recursive=True)]

    @property
    def copies(self) -> int:
        """Durable copies of each byte of this rank's shard, on different nodes."""
        return self.shard.copies

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Drives that hold this rank's shard."""
        return self.shard.holders

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that hold this rank's shard."""
        return tuple(sorted({one.node for one in self.shard.holders}))

    @property
    def drives(self) -> tuple[str, ...]:
        """Drives that hold this rank's shard."""
        return tuple(sorted({one.drive for one in self.shard.holders}))

    def wait_drained(self, timeout: float | None = None) -> None:
        """Waits until all of the checkpoint, of all ranks, is in the lake. Raises ``TimeoutError``, and ``ValueError`` if it
        will never be there."""
        policy = self._store.volume(paths.split(self.path)[0])
        if policy["lake"] is None or policy["policy"]["drain"] == "never":
            raise ValueError(f"{self.path}: its volume has no lake or never drains")
        end = None if timeout is None else time.monotonic() + timeout
        for _ in looks():
            state = self._set.status().drain
            if state == "clean":
                return
            if state == "conflict":
                raise ValueError(f"{self.path}: somebody else changed it in the lake; see `stoker conflict`")
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"{self.path}: not in the lake after {timeout} s")
