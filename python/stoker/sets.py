"""Checkpoint sets: shards of many ranks that become visible together or not at all."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any

from . import paths, replacing
from ._stoker import Client
from .files import Writer
from .receipts import Receipt, receipt_of


@dataclass(frozen=True)
class SetStatus:
    """How far a set is."""

    #: "open", "published", "aborted" or "expired".
    state: str
    #: Shards that are durable, and how many there are when it is whole.
    present: int
    shards: int
    #: Bytes of those that are there.
    bytes: int
    #: Numbers of the shards that lack: whom to look for.
    laggards: tuple[int, ...]
    #: "clean" once all of it is in the lake.
    drain: str


class CheckpointSet:
    """A checkpoint in the making, or a published one. Any process on any node may add shards, by the set's id.

    >>> made = store.begin_set("data/run/step-1000", shards=2)
    >>> made.write(0, weights)                             # on one rank
    >>> store.open_set("data", made.id).write(1, more)     # on another
    >>> made.publish()                                     # now, and not before, all of it is there
    >>> store.latest("data/run/")
    'stoker://data/run/step-1000/'
    """

    def __init__(self, client: Client, row: dict[str, Any]) -> None:
        self._client = client
        self._row = row

    def __repr__(self) -> str:
        return f"<stoker.CheckpointSet {self.id} {self.path} {self.state}>"

    @property
    def id(self) -> int:
        """Names the set inside its volume."""
        return int(self._row["set"])

    @property
    def volume(self) -> str:
        return str(self._row["volume"])

    @property
    def key(self) -> bytes:
        return bytes(self._row["path"])

    @property
    def path(self) -> str:
        """The directory that it is, or will be."""
        return paths.join(self.volume, self.key)

    @property
    def state(self) -> str:
        """As of the last call: "open", "published", "aborted" or "expired"."""
        return str(self._row["state"])

    @property
    def owner(self) -> str:
        return str(self._row["owner"])

    @property
    def shards(self) -> int:
        return int(self._row["shards"])

    def open(
        self, number: int, name: str | None = None, *, writer: str | None = None, size: int | None = None
    ) -> Writer:
        """Begins a shard; when it is closed it is durable and not yet visible. One of the same number is replaced."""
        key = self.key + paths.key_of(name or f"shard-{number:05}")
        who = writer or f"{socket.gethostname()}:{os.getpid()}"
        native = self._client.sets.shard(self.volume, key, self.id, number, who, size)
        return Writer(native, paths.join(self.volume, key), lambda said: receipt_of(said, self._client, key))

    def write(self, number: int, data: Any, name: str | None = None, *, writer: str | None = None) -> Receipt:
        """Writes a shard."""
        with self.open(number, name, writer=writer, size=memoryview(data).nbytes) as file:
            file.write(data)
        assert file.receipt is not None
        return file.receipt

    def publish(self) -> None:
        """Makes all of it visible at once; one that was begun with ``overwrite`` replaces what has its name, in one step. Raises
        :class:`stoker.ConflictError`, which names who is missing. Doing it again is fine."""
        self._row = json.loads(self._client.sets.publish(self.volume, self.id))
        if replacing.settle(self._client, self._row):
            self._row = json.loads(self._client.sets.status(self.volume, self.id))["info"]

    def abort(self) -> None:
        """Gives it up; nothing of it stays."""
        self._row = json.loads(self._client.sets.abort(self.volume, self.id))

    def status(self) -> SetStatus:
        """How far it is, and who lacks."""
        row = json.loads(self._client.sets.status(self.volume, self.id))
        self._row = row["info"]
        return SetStatus(
            self.state, row["present"], self.shards, row["bytes"], tuple(row["laggards"]), row["drain"]
        )
