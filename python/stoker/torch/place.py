"""Where a checkpoint is: what its reader and its writer have in common."""

from __future__ import annotations

from .. import paths
from ..connecting import connect
from ..store import Path, Store


class Placed:
    """A store, and a directory in it. Connects when the store is first needed."""

    def __init__(self, path: Path | None, store: Store | None) -> None:
        super().__init__()
        self._store = store
        self._path = "" if path is None else directory(path)

    @property
    def store(self) -> Store:
        """The store that the checkpoint is in."""
        if self._store is None:
            self._store = connect()
        return self._store

    @property
    def checkpoint_id(self) -> str:
        """The directory of the checkpoint."""
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """Whether torch may ask for this one here."""
        return str(checkpoint_id).startswith(paths.SCHEME)


def directory(path: Path) -> str:
    """A path with its scheme and a ``/`` at its end."""
    volume, key = paths.split_file(path)
    return paths.join(volume, key.rstrip(b"/") + b"/")
