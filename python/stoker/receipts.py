"""What the store says of files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from . import paths
from ._stoker import Client


@dataclass(frozen=True)
class Holder:
    """A drive that holds a part of a file."""

    node: str
    drive: str
    incarnation: int


@dataclass(frozen=True)
class Receipt:
    """What a write reached: true at the moment it was made, and to be asked again.

    >>> receipt = store.write("data/model.bin", weights)
    >>> receipt.copies
    2
    >>> receipt = receipt.wait_drained()  # now it is an object in the lake  # doctest: +SKIP
    """

    volume: str
    key: str
    version: str
    size: int
    etag: str
    #: Class that the volume asks for: "one", "two" or "three".
    durability: str
    #: Durable copies of each byte, on different nodes.
    copies: int
    holders: tuple[Holder, ...]
    #: "dirty", "clean", "never" or "conflict".
    drain: str
    lake: str | None
    lake_etag: str | None
    seq: int
    _client: Client | None = field(default=None, repr=False, compare=False)

    @property
    def path(self) -> str:
        return f"{paths.SCHEME}{self.volume}/{self.key}"

    def _wait(self, drained: bool) -> Receipt:
        if self._client is None:
            raise ValueError("this receipt came from another process: ask store.receipt(path) for it")
        said = self._client.wait(self.volume, paths.key_of(self.key), self.version, drained)
        return receipt_of(said, self._client)

    def wait_committed(self) -> Receipt:
        """Waits until the bytes are on as many drives as the class says; returns the receipt as of then."""
        return self._wait(drained=False)

    def wait_drained(self) -> Receipt:
        """Waits until the lake has confirmed the file; returns the receipt as of then."""
        return self._wait(drained=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}


def receipt_of(said: str, client: Client, key: bytes | None = None) -> Receipt:
    row = json.loads(said)
    holders = tuple(Holder(one["node"], one["drive"], one["incarnation"]) for one in row["holders"])
    return Receipt(
        volume=row["volume"],
        key=row["key"] if key is None else paths.text(key),
        version=row["version"],
        size=row["size"],
        etag=row["etag"],
        durability=str(row["class"]).lower(),
        copies=row["copies"],
        holders=holders,
        drain=row["drain"],
        lake=row["lake"],
        lake_etag=row["lake_etag"],
        seq=row["seq"],
        _client=client,
    )


@dataclass(frozen=True)
class FileInfo:
    """A file, or a directory of a listing."""

    path: str
    size: int
    is_directory: bool = False
    etag: str = ""
    #: Time of publish, in seconds since 1970.
    modified: float = 0.0

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]
