"""Samples: bytes become what the training loop wants, and what happens to those that do not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

from .._stoker import Run
from .sources import Source
from .stats import Tally

log = logging.getLogger("stoker.data")

#: Bad samples that a process names; the rest is only counted.
NAMED_MAX = 20

#: A sample as the decode hook gets it: its stem as ``__key__``, and the bytes of each member by extension.
Raw = dict[str, Any]
Decode = Callable[[Raw], Any]


class BadSample(ValueError):
    """A sample that could not be read or decoded; ``__cause__`` is why."""

    def __init__(self, message: str, *, sample: int = -1, name: str = "", path: str = "") -> None:
        super().__init__(message)
        self.sample, self.name, self.path = sample, name, path


class _Skip:
    def __repr__(self) -> str:
        return "stoker.data.SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


#: What a ``bad`` hook returns for a sample that is to be left out.
SKIP = _Skip()

Bad = Literal["raise", "skip"] | Callable[[BadSample], Any]


class Maker:
    """Makes samples of bytes, as the hooks say."""

    def __init__(self, source: Source, decode: Decode | None, bad: Bad, views: bool) -> None:
        if not callable(bad) and bad not in ("raise", "skip"):
            raise ValueError(f"bad is 'raise', 'skip' or a function of a BadSample, not {bad!r}")
        self._source, self._decode, self._bad, self._views = source, decode, bad, views
        #: Whether samples come as dictionaries already.
        self._whole = source.is_tar
        #: Names of samples that were passed over, as many as are kept.
        self.skipped: list[str] = []

    def make(self, run: Run, step: tuple[Any, ...], tally: Tally) -> tuple[list[Any], int]:
        """The samples of a step without those that are skipped, and their bytes before they were decoded."""
        found, faults, size, _, reads, read_bytes = step
        if reads:
            tally.add("reads", reads)
            tally.add("read_bytes", read_bytes)
        if self._decode is None and self._whole and not faults:
            return found, size
        bad, made = dict(faults), []
        for index, raw in enumerate(found):
            one = self._one(run, index, raw, bad.get(index), tally)
            if one is SKIP:
                size -= run.length(index)
            else:
                made.append(one)
        return made, size

    def _one(self, run: Run, index: int, raw: Any, fault: BaseException | None, tally: Tally) -> Any:
        try:
            if fault is not None:
                raise fault
            if not self._whole:
                raw = self._source.members(run.number(index), raw, views=self._views)
            return raw if self._decode is None else self._decode(raw)
        except Exception as caught:
            return self._settle(run.number(index), caught, tally)

    def _settle(self, sample: int, fault: Exception, tally: Tally) -> Any:
        name = self._source.name(sample)
        path = self._source.file_path(self._source.locate_many([sample])[0][0])
        message = f"{path}: sample {sample} ({name}): {type(fault).__name__}: {fault}"
        if self._bad == "raise":
            hint = "bad='skip' passes over such samples, a function may replace them"
            raise BadSample(f"{message}; {hint}", sample=sample, name=name, path=path) from fault
        bad = BadSample(message, sample=sample, name=name, path=path)
        bad.__cause__ = fault
        made = self._bad(bad) if callable(self._bad) else SKIP
        if made is SKIP:
            tally.add("skipped", 1)
            if len(self.skipped) < NAMED_MAX:
                self.skipped.append(name)
                log.warning("bad sample skipped: %s", message)
                if len(self.skipped) == NAMED_MAX:
                    log.warning("more bad samples of this process are counted, but not named")
        return made
