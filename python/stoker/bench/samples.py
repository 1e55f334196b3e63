"""The data of the loader's benchmark: a tree of small files, the shards that it is packed to, and a plain copy of these."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import stoker

from .ground import human, say

FILES_PER_FOLDER = 1000
#: Bytes that samples are cut from: each of them is different, and making them costs little.
POOL = 64 << 20


@dataclass(frozen=True)
class Scale:
    """How many samples of which size, and how they are taken."""

    name: str
    count: int
    size: int
    batch: int
    #: Samples that webdataset shuffles among.
    buffer: int
    #: Samples that lie together and stay together in the block shuffle.
    block: int

    @property
    def bytes(self) -> int:
        return self.count * self.size

    def __str__(self) -> str:
        return f"{self.count:,} samples of {human(self.size)}"


@dataclass(frozen=True)
class Data:
    """Where everything lies."""

    scale: Scale
    tree: Path
    files: list[str]
    shards: list[Path]
    #: Keys of the shards in the volume, in the same order.
    keys: list[str]
    seal: str


def make(scale: Scale, folder: Path, store: stoker.Store, volume: str) -> Data:
    """Writes the tree, packs it, and copies the shards to a plain directory."""
    tree, plain = folder / f"{scale.name}-tree", folder / f"{scale.name}-shards"
    say(f"{scale.name}: writing {scale} as files")
    files = _write_tree(scale, tree)
    say(f"{scale.name}: packing")
    packed = stoker.pack(tree, f"{volume}/{scale.name}", store=store)
    if packed.samples != scale.count:
        raise AssertionError(f"{packed.samples} samples were packed, not {scale.count}")
    say(f"{scale.name}: copying {packed.shards} shards to a plain directory")
    plain.mkdir()
    shards, keys = [], []
    prefix = f"{scale.name}-"
    for info in store.list(volume):
        name = info.path.rpartition("/")[2]
        if not name.startswith(prefix) or not name.endswith(".tar"):
            continue
        with store.open(info.path) as source, open(plain / name, "wb") as target:
            shutil.copyfileobj(source, target, 8 << 20)
        shards.append(plain / name)
        keys.append(name)
    return Data(scale, tree, files, shards, keys, packed.seal)


def _write_tree(scale: Scale, tree: Path) -> list[str]:
    pool = random.Random(7).randbytes(max(POOL, 2 * scale.size))
    places = random.Random(8)
    files = []
    for number in range(scale.count):
        folder = tree / f"{number // FILES_PER_FOLDER:04}"
        if number % FILES_PER_FOLDER == 0:
            folder.mkdir(parents=True)
        start = places.randrange(len(pool) - scale.size)
        path = folder / f"{number:08}.bin"
        with open(path, "wb") as file:
            file.write(pool[start : start + scale.size])
        files.append(str(path))
    return files
