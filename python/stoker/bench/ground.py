"""Where figures are measured: the folder, the machine, and what is taken out of the page cache."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DROP_CACHES = "/proc/sys/vm/drop_caches"


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def human(size: int) -> str:
    """A number of bytes."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def parse_size(text: str) -> int:
    """``16KiB``, ``2GiB``, ``4096``."""
    units = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "b": 1}
    number = text.strip().lower()
    for name, unit in units.items():
        if number.endswith(name):
            return int(float(number[: -len(name)]) * unit)
    return int(number)


@contextmanager
def scratch(dir: Path, size: int) -> Iterator[Path]:
    """A folder on the drive, if so many bytes fit there; gone at the end, also after Ctrl-C and SIGTERM."""
    if not dir.is_dir():
        raise NotADirectoryError(20, "--dir is a directory on the drive that is to be measured", str(dir))
    free = shutil.disk_usage(dir).free
    if free < size:
        raise OSError(28, f"{human(size)} are needed and {human(free)} free: choose smaller sizes or another --dir", str(dir))

    def stop(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    folder = Path(tempfile.mkdtemp(prefix="stoker-bench-", dir=dir)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


class Cold:
    """Takes what will be read out of the page cache, as far as this user may."""

    def __init__(self) -> None:
        self.words = "nothing was dropped"

    def drop(self, *folders: Path) -> None:
        # Only what is clean can be dropped.
        os.sync()
        try:
            with open(DROP_CACHES, "w") as file:
                file.write("3")
            self.words = "drop_caches 3"
            return
        except OSError:
            self.words = "posix_fadvise on each file; names and inodes stay in memory"
        for folder in folders:
            for root, _, names in os.walk(folder):
                for name in names:
                    fd = os.open(os.path.join(root, name), os.O_RDONLY)
                    try:
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    finally:
                        os.close(fd)


def machine(dir: Path) -> dict[str, Any]:
    """A figure without it is none."""
    return {
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu(),
        "filesystem": _filesystem(dir.resolve()),
        "load_average": " ".join(f"{one:.2f}" for one in os.getloadavg()),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _filesystem(dir: Path) -> str:
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, name, *_ = line.split(" ")
        if dir.is_relative_to(point) and len(point) > len(best):
            best, kind = point, name
    return kind
