"""The node that is measured: `stoker up`, as anybody would start it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import stoker

PREPARED = "ring_prepared_bytes_total"
#: A ring that prepared nothing for this long is prepared.
PREPARED_PAUSE_S = 2.0
PATIENCE_S = 300.0
CATALOG = ("catalog_reads_total", "catalog_commits_total")


class Unavailable(Exception):
    """A side cannot be measured here; the text says why."""


def program() -> str:
    named = os.environ.get("STOKER_BIN") or shutil.which("stoker")
    if not named:
        raise FileNotFoundError(2, "no stoker program: set STOKER_BIN, or have it in PATH")
    return named


class Node:
    """One node, or several on this machine of which the first is asked."""

    def __init__(self, folder: Path, *, ring: int, memory: int, nodes: int = 1) -> None:
        self.folder, self.ring, self.memory, self.nodes = folder, ring, memory, nodes
        self.log = folder.with_suffix(".log")
        self._process: subprocess.Popen[str] | None = None
        self.said: dict[str, Any] = {}

    @property
    def dir(self) -> Path:
        """The folder of the node that is asked."""
        return Path(self.said["dir"])

    def __enter__(self) -> Node:
        self.start()
        self.wait_prepared()
        return self

    def __exit__(self, *fault: object) -> None:
        self.stop()

    def start(self, *more: str) -> None:
        args = ["up", "--dir", str(self.folder), "--size", str(self.ring), "--memory", str(self.memory), "--json"]
        if self.nodes > 1:
            args += ["--nodes", str(self.nodes)]
        else:
            args += ["--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--peers", "127.0.0.1:0"]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen([program(), *args, *more], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"`stoker up` ended with {self._process.wait()}: {self.log.read_text()[-2000:]}")
        said = json.loads(line)
        self.said = said[0] if isinstance(said, list) else said

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def restart(self) -> None:
        """What it had in memory is gone."""
        self.stop()
        self.start()

    def store(self) -> stoker.Store:
        return stoker.connect(dir=self.dir)

    def volume(self, name: str, commits: str = "one") -> None:
        """Makes a volume that keeps its files on the drives: nothing goes to the lake unless somebody asks."""
        self.run("volume", "create", name, "--class", commits, "--drain", "on-demand")

    def run(self, *args: str) -> str:
        done = subprocess.run([program(), *args, "--dir", str(self.dir)], capture_output=True, text=True)
        if done.returncode:
            raise ChildProcessError(f"`stoker {' '.join(args)}` ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def wait_prepared(self) -> None:
        """Waits until the new ring is written once, which goes on in the background."""
        store, last, since = self.store(), -1.0, time.monotonic()
        start = since
        while time.monotonic() - since < PREPARED_PAUSE_S:
            if time.monotonic() - start > PATIENCE_S:
                raise TimeoutError(f"the ring is not prepared after {PATIENCE_S:.0f} s")
            if (now := counters(store).get(PREPARED, 0.0)) != last:
                last, since = now, time.monotonic()
            time.sleep(0.1)


class Mount:
    """A volume as a file system."""

    def __init__(self, node: Node, volume: str, point: Path) -> None:
        self.point = point
        point.mkdir(exist_ok=True)
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise Unavailable("this user may not open /dev/fuse")
        args = [program(), "mount", "-f", volume, str(point), "--read-only", "--dir", str(node.dir)]
        log = node.log.with_suffix(".mount.log")
        with open(log, "ab") as out:
            self._process = subprocess.Popen(args, stdout=out, stderr=out)
        end = time.monotonic() + 30
        while not os.path.ismount(point):
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise Unavailable(f"`stoker mount` does not work here: {log.read_text().strip()[-300:]}")
            time.sleep(0.02)

    def __enter__(self) -> Path:
        return self.point

    def __exit__(self, *fault: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def counters(store: stoker.Store) -> dict[str, float]:
    """The node's counters, summed over drives."""
    found: dict[str, float] = {}
    for row in json.loads(store._client.counters()):
        found[row["name"]] = found.get(row["name"], 0.0) + float(row["value"])
    return found


def catalog_ops(before: dict[str, float], after: dict[str, float]) -> float | None:
    """Operations of the catalog between two looks; ``None`` if the node does not count them."""
    if not any(name in after for name in CATALOG):
        return None
    return sum(after.get(name, 0.0) - before.get(name, 0.0) for name in CATALOG)
