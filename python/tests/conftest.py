"""A real node for the tests: the program that STOKER_BIN names, or `stoker` on the path."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stoker


@dataclass
class Node:
    folder: Path
    process: subprocess.Popen[str]
    said: dict[str, Any]

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def program() -> str:
    named = os.environ.get("STOKER_BIN") or shutil.which("stoker")
    if not named:
        pytest.skip("no stoker program: set STOKER_BIN")
    return named


def start(folder: Path, *more: str) -> Node:
    args = ["up", "--dir", str(folder), "--size", "1GiB", "--memory", "256MiB", "--json"]
    args += ["--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--peers", "127.0.0.1:0"]
    process = subprocess.Popen([program(), *args, *more], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"stoker up ended: {process.wait()}"
    return Node(folder, process, json.loads(line))


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="stoker-python-") as folder:
        node = start(Path(folder))
        yield node
        node.process.terminate()
        node.process.wait()


@pytest.fixture
def store(node: Node) -> stoker.Store:
    return stoker.connect(dir=node.folder)


@pytest.fixture
def place(store: stoker.Store, request: pytest.FixtureRequest) -> str:
    """A directory of the test's own."""
    return f"data/{request.node.name}"
