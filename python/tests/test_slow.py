"""`stoker explain slow` over real runs: a cause is planted, a loop trains against a real node, and the verdict names the cause.

They take a minute and want a machine to themselves, so they are of the full tier; STOKER_TEST_SLOW=1 runs them without torch. What
follows from the numbers of a run is in the tables of `crates/planner/src/tests.rs`, which every check runs.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
import stoker.planner
from stoker.bench.calibrating import Bare
from stoker.bench.measuring import Ground
from stoker.bench.node import Node
from stoker.bench.samples import Scale, _write_tree
from stoker.bench.workers import Config, Workers
from stoker.data import Recorder, Stream, open_files, open_seal

from .conftest import program

if importlib.util.find_spec("torch") is None and not os.environ.get("STOKER_TEST_SLOW"):
    pytest.skip("of the full tier", allow_module_level=True)


class World:
    """A node with data, and what its drive and its catalog do when nothing is wrong."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.ground = Ground(node, folder, rounds=1)
        want = self.ground.want
        self.large = want("drive", "packed", 128 << 10)[0]
        self.small = want("drive", "packed", 4 << 10)[0]
        self.files = want("drive", "files", 4 << 10)[0]
        #: What nobody reads before it is to come from the drive.
        self.fresh = want("drive", "packed", 96 << 10)[0]
        self.warm = want("memory", "packed", 128 << 10)[0]
        self.cold = want("lake", "packed", 128 << 10)[0]
        bare = Bare(self.ground)
        self.ground.settle()
        self.store = node.store()
        self.calibration = bare.run()

    def seal(self, place: str, **options: Any) -> Stream:
        source = open_seal(f"{place}.seal", store=self.store)
        return Stream(source, **{"batch_size": 32, "block": 32, "seed": 1, "rank": 0, "world": 1, **options})

    def verdict(self, recorder: Recorder) -> dict[str, Any]:
        """As the program says it."""
        run, measured = self.folder / "run.json", self.folder / "calibration.json"
        recorder.save(run)
        measured.write_text(json.dumps(self.calibration))
        command = [program(), "explain", "slow", str(run), "--json", "--calibration", str(measured)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert stoker.planner.explain(run, calibration=measured).title == said["title"]
        return {**said, "run": json.loads(run.read_text())}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    os.environ["STOKER_BIN"] = program()
    with tempfile.TemporaryDirectory(prefix="stoker-slow-") as name:
        folder = Path(name)
        with Node(folder / "node", ring=2 << 30, memory=512 << 20) as node:
            yield World(node, folder)


def train(recorder: Recorder, batches: Any, *, step_s: float = 0.0, steps: int = 400) -> None:
    """A training loop: what is between two batches is its step."""
    for _ in itertools.islice(recorder(batches), steps):
        if step_s:
            # The step of a GPU, which leaves the processor alone.
            time.sleep(step_s)


def epochs(stream: Stream, count: int) -> Iterator[Stream]:
    """The same samples several times, each time in another order."""
    for number in range(count):
        stream.set_epoch(number)
        yield stream


def test_nothing_is_wrong(world: World) -> None:
    # Out of memory, so that the drive of a busy machine has no part in it.
    stream = world.seal(world.warm, batch_size=8)
    for again in epochs(stream, 2):
        list(again)
    recorder = Recorder(stream, store=world.store, job="fine")
    train(recorder, stream, step_s=0.05)
    said = world.verdict(recorder)
    assert said["cause"] == "nothing_wrong", said


def test_tiny_files(world: World) -> None:
    stream = Stream(open_files(f"{world.files}/", store=world.store), batch_size=32, seed=1, rank=0, world=1)
    recorder = Recorder(stream, store=world.store)
    train(recorder, stream)
    said = world.verdict(recorder)
    assert said["cause"] == "tiny_files" and "pack" in said["advice"], said


def burn(sample: dict[str, Any]) -> int:
    """A decoder that takes its time."""
    return sum(sample["bin"])


def test_one_worker(world: World) -> None:
    """The loop decodes by itself while a core stands idle."""
    stream = world.seal(world.warm, decode=burn)
    recorder = Recorder(stream, store=world.store)
    train(recorder, stream, steps=12)
    run = recorder.record()
    if run["cores"] < 2:
        pytest.skip("needs a second core, which stands idle")
    said = world.verdict(recorder)
    assert said["cause"] == "one_worker" and "workers" in said["advice"], said


def test_decoding(world: World) -> None:
    """Every core has a worker, and all of them decode."""
    cores = len(os.sched_getaffinity(0))
    dir, place = world.node.dir, world.warm

    def source() -> Any:
        return open_seal(f"{place}.seal", store=stoker.connect(dir=dir))

    with Workers(source, Config(cores, 32, 32, decode=burn)) as workers:
        recorder = Recorder(store=world.store, workers=cores)

        def epochs() -> Iterator[int]:
            for number in range(2):
                epoch = workers.epoch(number, 320)
                for one in epoch.stats:
                    recorder.add(one)
                yield epoch.samples

        train(recorder, epochs())
    said = world.verdict(recorder)
    assert said["cause"] == "decode_bound", said


def test_random_small_reads(world: World) -> None:
    stream = world.seal(world.small, block=1, batch_size=64)
    recorder = Recorder(stream, store=world.store)
    train(recorder, stream)
    said = world.verdict(recorder)
    assert said["cause"] == "random_reads" and "blocks" in said["advice"], said


def test_small_batches(world: World) -> None:
    stream = world.seal(world.small, block=1024, batch_size=1)
    recorder = Recorder(stream, store=world.store)
    train(recorder, itertools.chain.from_iterable(epochs(stream, 5)), steps=50_000)
    said = world.verdict(recorder)
    assert said["cause"] == "small_batch", said


def test_a_cold_lake(world: World) -> None:
    stream = world.seal(world.cold)
    recorder = Recorder(stream, store=world.store)
    train(recorder, stream)
    said = world.verdict(recorder)
    assert said["cause"] == "cold_lake" and "stage" in said["advice"], said


def test_a_metadata_storm(world: World) -> None:
    """Others ask the catalog for all that it can do while the job opens files."""
    stop, done = threading.Event(), []

    def storm() -> None:
        store, count = world.node.store(), 0
        while not stop.is_set():
            store.exists(f"drive/nothing-{count}")
            count += 1
        done.append(count)

    def rate() -> float:
        names = ("catalog_reads_total", "catalog_commits_total")
        rows = json.loads(world.store._client.counters())
        return float(sum(row["value"] for row in rows if row["name"] in names))

    threads = [threading.Thread(target=storm) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        # What the catalog can do is what it does for the storm alone.
        before, began = rate(), time.monotonic()
        time.sleep(1.0)
        capacity = (rate() - before) / (time.monotonic() - began)
        stream = Stream(open_files(f"{world.files}/", store=world.store), batch_size=32, seed=2, rank=0, world=1)
        recorder = Recorder(stream, store=world.store, metadata_capacity=capacity)
        train(recorder, stream)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    said = world.verdict(recorder)
    assert said["cause"] == "metadata_storm", (said, capacity)


class Narrow:
    """A port in front of another one that carries no more than a rate: a real one, with sockets and bytes."""

    def __init__(self, to: tuple[str, int], rate: float) -> None:
        self._to, self._rate = to, rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection(self._to)
            for one, other, rate in ((here, there, float("inf")), (there, here, self._rate)):
                threading.Thread(target=_carry, args=(one, other, rate), daemon=True).start()

    def close(self) -> None:
        self._listener.close()


def _carry(one: socket.socket, other: socket.socket, rate: float) -> None:
    due = time.monotonic()
    try:
        while data := one.recv(1 << 16):
            due = max(due, time.monotonic()) + len(data) / rate
            # That a port takes its time for bytes is what it is here for.
            time.sleep(max(0.0, due - time.monotonic()))
            other.sendall(data)
    except OSError:
        pass
    finally:
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def test_the_network(world: World) -> None:
    """A node that is reached by TCP, over a port that carries little."""
    rate, folder = 8e6, world.folder / "far"
    (folder / "drive").mkdir(parents=True)
    config = folder / "stoker.toml"
    config.write_text(
        f'[node]\ndir = "{folder}/node"\nmemory = "256MiB"\n[[drive]]\npath = "{folder}/drive"\nsize = "512MiB"\n'
        '[s3]\nlisten = ["127.0.0.1:0"]\n[admin]\nlisten = "127.0.0.1:0"\n[door]\nlisten = ["127.0.0.1:0"]\n'
    )
    command = [program(), "serve", "--json", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            host, _, port = json.loads(node.stdout.readline())["door"][0].rpartition(":")
            narrow = Narrow((host, int(port)), rate)
            token = (folder / "node" / "token").read_text().strip()
            store = stoker.connect(f"127.0.0.1:{narrow.port}", token=token)
            volume = [program(), "volume", "create", "far", "--lake", "none", "--dir", str(folder / "node")]
            subprocess.run(volume, check=True, capture_output=True)
            tree = folder / "tree"
            _write_tree(Scale("far", 128, 128 << 10, 32, 0, 0), tree)
            stoker.pack(tree, "far/train", store=stoker.connect(dir=folder / "node"))
            stream = Stream(open_seal("far/train.seal", store=store), batch_size=32, block=32, seed=1, rank=0, world=1)
            recorder = Recorder(stream, store=store, network_rate=rate)
            train(recorder, stream)
            found = world.verdict(recorder)
            narrow.close()
        finally:
            node.terminate()
    assert found["cause"] == "network_bound", found


class Throttle:
    """A control group whose members get no more than so many bytes per second from a device."""

    ROOT = Path("/sys/fs/cgroup/blkio")

    def __init__(self, path: Path, rate: int, pids: list[int]) -> None:
        device = path.stat().st_dev
        self.folder = self.ROOT / f"stoker-slow-{os.getpid()}"
        try:
            self.folder.mkdir()
            line = f"{os.major(device)}:{os.minor(device)} {rate}"
            (self.folder / "blkio.throttle.read_bps_device").write_text(line)
            for pid in pids:
                (self.folder / "cgroup.procs").write_text(str(pid))
        except OSError as fault:
            self.end(pids)
            pytest.skip(f"no control group slows a drive down here: {fault}")

    def end(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                (self.ROOT / "cgroup.procs").write_text(str(pid))
            except OSError:
                pass
        try:
            self.folder.rmdir()
        except OSError:
            pass


def test_a_throttled_drive(world: World) -> None:
    process = world.node._process
    assert process is not None
    pids = [process.pid, os.getpid()]
    # A twentieth of what it brings when it is sound, and no more bytes than that takes seconds for.
    rate = int(world.calibration["values"]["drive_read"]["value"] / 20)
    throttle = Throttle(world.node.dir, max(rate, 1 << 20), pids)
    try:
        stream = world.seal(world.fresh, batch_size=8, memory=4 << 20)
        recorder = Recorder(stream, store=world.store)
        train(recorder, stream, steps=6)
    finally:
        throttle.end(pids)
    said = world.verdict(recorder)
    assert said["cause"] == "throttled_drive" and "drive" in said["advice"], said
