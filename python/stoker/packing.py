"""Packing: many small files become few tar shards, and a seal that says where each sample lies in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _stoker, paths

if TYPE_CHECKING:
    from .store import Store

Path = str | os.PathLike[str]

#: How long shards are unless somebody says otherwise.
SHARD_BYTES = 256 << 20


@dataclass(frozen=True)
class Progress:
    """How far a pack or a seal is."""

    #: Files or samples that were found.
    files: int
    #: Bytes of all shards; 0 until that is known.
    bytes_total: int
    #: Bytes of shards that are written.
    bytes_written: int
    #: Bytes of shards that were read back and compared.
    bytes_verified: int
    #: Shards; 0 until that is known.
    shards_total: int
    #: Shards that are complete.
    shards_done: int


@dataclass(frozen=True)
class Packed:
    """A dataset that was packed or sealed."""

    #: Where its seal is.
    seal: str
    #: What tells it from all others: 16 hex digits.
    identity: str
    samples: int
    shards: int
    #: Bytes of all shards.
    bytes: int
    #: Files that were packed; 0 if shards were sealed that were there.
    files: int = 0
    #: Shards that an earlier run had completed.
    resumed: int = 0
    #: Files whose names have nothing in front of a dot: WebDataset skips them, ``stoker.data`` does not.
    skipped_by_webdataset: int = 0


Tell = Callable[[Progress], object]


def _teller(progress: Tell | None) -> Callable[[str], object] | None:
    if progress is None:
        return None
    return lambda said: progress(Progress(**json.loads(said)))


def _packed(said: str) -> Packed:
    row: dict[str, Any] = json.loads(said)
    return Packed(
        seal=f"{paths.SCHEME}{row['volume']}/{row['seal']}",
        identity=row["identity"],
        samples=row["samples"],
        shards=row["shards"],
        bytes=row["bytes"],
        files=row.get("files", 0),
        resumed=row.get("resumed", 0),
        skipped_by_webdataset=row.get("skipped_by_webdataset", 0),
    )


def pack(
    source: Path,
    target: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    jobs: int | None = None,
    replace: bool = False,
    progress: Tell | None = None,
    store: Store | None = None,
) -> Packed:
    """Packs all files below a directory as ``TARGET-000000.tar`` and so on, with the seal ``TARGET.seal``.

    ``source`` is a directory of this machine, or ``stoker://VOLUME/PREFIX``. Files whose names are the same up to the first dot
    of their last part are one sample, which is never divided between shards; WebDataset reads the shards too. Each shard is read
    back and compared before the seal is written, which comes last: a dataset with a seal is complete. Called again after it was
    interrupted, it goes on with the shards that lack. A dataset of other files under this name is only replaced if ``replace``
    is true.

    >>> packed = stoker.pack("/data/imagenet/train", "data/train")  # doctest: +SKIP
    >>> packed.samples, packed.seal  # doctest: +SKIP
    (1281167, 'stoker://data/train.seal')

    Raises ``FileNotFoundError`` for a source or a volume that is not there, ``ConflictError`` for a file that changed meanwhile
    or a dataset that is in the way, ``ValueError`` for names and lengths that cannot be packed; all with the path.
    """
    if store is None:
        from .connecting import connect

        store = connect()
    volume, prefix = paths.split(target)
    name = os.fspath(source)
    inside = paths.split(name) if isinstance(name, str) and name.startswith(paths.SCHEME) else name
    said = _stoker.pack(store._client, inside, volume, prefix, shard_bytes, jobs, replace, _teller(progress))
    return _packed(said)


def seal(
    store: Store,
    shards: Path | Iterable[Path],
    to: Path,
    *,
    jobs: int | None = None,
    replace: bool = False,
    progress: Tell | None = None,
) -> Packed:
    """See ``Store.seal``."""
    named = [shards] if isinstance(shards, (str, os.PathLike)) else list(shards)
    split = [paths.split(one) for one in named]
    if not split:
        raise ValueError("seal: no shards are named")
    volumes = {volume for volume, _ in split}
    if len(volumes) > 1:
        raise ValueError(f"a seal is about shards of one volume, not of {', '.join(sorted(volumes))}")
    to_volume, key = paths.split_file(to)
    prefixes = [prefix for _, prefix in split]
    said = _stoker.seal(store._client, split[0][0], prefixes, to_volume, key, jobs, replace, _teller(progress))
    return _packed(said)
