"""``stoker://`` without a writer or reader.

torch asks fsspec whether it knows the protocol of a ``checkpoint_id`` and then makes an ``FsspecWriter`` or ``FsspecReader`` for it.
That writer puts one file after the other into the directory, where all of them can be seen, and moves ``.metadata`` to its name
last. Nothing unfinished has a ``.metadata``, so it is not taken for a checkpoint; but shards of a save that died stay, saving to the
same directory again mixes old and new, there is no receipt and no `latest`. So, for ``stoker://`` and nothing else,
``FsspecWriter(path)`` makes a :class:`stoker.torch.StokerWriter` and ``FsspecReader(path)`` a :class:`stoker.torch.StokerReader`.

This is in place once ``stoker.torch`` is imported, and whenever ``torch.distributed.checkpoint`` itself looks for ``stoker://``.
What differs from torch's own: a checkpoint that exists is not overwritten (``FileExistsError``), and the object that is made is not
an instance of ``FsspecWriter``. From a writer that torch makes itself there is no receipt to be had: ask
``stoker.connect().receipt(path)`` for a file, or name a writer.

With ``STOKER_TORCH_HOOK=0`` in the environment torch's own classes stay. Given more than a path they stay, too.
"""

from __future__ import annotations

import os
from typing import Any

from ..paths import SCHEME

_done = False


def _new(original: Any, make: Any) -> Any:
    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and str(args[0]).startswith(SCHEME) and cls is original:
            return make(args[0])
        return object.__new__(cls)

    return staticmethod(__new__)


def install() -> bool:
    """Puts the writer and the reader in place; whether they are. Calling it again does nothing."""
    global _done
    if _done or os.environ.get("STOKER_TORCH_HOOK") == "0":
        return _done
    try:
        import fsspec

        try:
            from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader, FsspecWriter
        except ImportError:
            from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
    except ImportError:
        # Without fsspec torch takes no URI at all: the writer has to be named.
        return False
    from .reader import StokerReader
    from .writer import StokerWriter

    # As installed, fsspec knows it already; from a checkout it does not.
    fsspec.register_implementation("stoker", "stoker.fs.StokerFileSystem", clobber=True)
    FsspecWriter.__new__ = _new(FsspecWriter, StokerWriter)  # type: ignore[method-assign]
    FsspecReader.__new__ = _new(FsspecReader, StokerReader)  # type: ignore[method-assign]
    _done = True
    return True
