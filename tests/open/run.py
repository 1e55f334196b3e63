#!/usr/bin/env python3
"""Files that stay open, as data loaders keep them, while a small ring turns over.

  python3 tests/open/run.py --stoker target/release/stoker                         two minutes
  python3 tests/open/run.py --stoker ... --minutes 60 --ring 1GiB --files 60        as long as you like

A mount, NFS and the Python package keep many files open and read them at random places, for far longer than their chunks stay in
the ring. Meanwhile files are written, replaced, renamed and deleted through another door, all of it drains and is evicted, and the
node is stopped and killed and comes back. Every block says which file, version and place it is of. While a node runs, an open file
can be read, also when it was replaced or deleted: in Python it goes on with the version that it was opened with, on a mount and by NFS
it may go on with a newer one. After a restart it goes on if its name still has that version, and else it may fail
(docs/semantics.md, Reading). Blocks of another file, version or place are never right.
Exit code: 0 passed, 1 something failed, 3 what it needs could not be had.
"""

import argparse
import itertools
import mmap
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

# The checkout stays as it is.
sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "clients"))
sys.path.insert(0, str(ROOT / "crates" / "stoker" / "tests" / "nfs"))

import wire  # noqa: E402
from node import Node  # noqa: E402

NOT_HERE = 3
VOLUME = "data"
BLOCK = 4096
# Which content, and which block of it.
MARK = struct.Struct("<QQ")
# Of a read that waits for a lake, or for a node that comes back.
SECONDS_MAX = 120


def block(number, place):
    return MARK.pack(number, place) * (BLOCK // MARK.size)


def content(number, blocks):
    return b"".join(block(number, place) for place in range(blocks))


class Gone(Exception):
    """The door says that what was open cannot be read any more."""


class Model:
    """Which content each name has, which it had, and how often the node started."""

    def __init__(self, names, seed):
        self.lock, self.names, self.dice = threading.Lock(), names, random.Random(seed)
        # By name: the number of its content; by number: its blocks.
        self.now, self.blocks = {}, {}
        # By name: what it had, oldest first, a number or None.
        self.history = {name: [None] for name in names}
        # How far that is sure; what comes after it is under way.
        self.settled = dict.fromkeys(names, 0)
        self.numbers = itertools.count(1)
        self.starts, self.wrong = 0, []
        self.reads, self.opened, self.changes, self.gone = {}, {}, 0, {}

    def set(self, name, number):
        self.history[name].append(number)
        self.settled[name] = len(self.history[name]) - 1
        if number is None:
            self.now.pop(name, None)
        else:
            self.now[name] = number

    def count(self, of, what):
        with self.lock:
            of[what] = of.get(what, 0) + 1

    def fail(self, text):
        with self.lock:
            self.wrong.append(text)
        print(f"open: {text}", flush=True)


class Mounted:
    """Through a mount, past the kernel's cache."""

    said, has_open_files, is_pinned = "mount", True, False

    def __init__(self, run):
        self.folder, self.room = run.folder / "mnt", mmap.mmap(-1, BLOCK)

    def open(self, name):
        try:
            return os.open(self.folder / name, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            raise Gone(error) from None

    def read(self, handle, at):
        try:
            return self.room[: os.preadv(handle, [self.room], at)]
        except OSError as error:
            raise Gone(error) from None

    def close(self, handle):
        os.close(handle)


class ByNfs:
    """By NFS: a handle that is kept, and sent again to a node that comes back."""

    said, has_open_files, is_pinned = "NFS", False, False

    def __init__(self, run):
        self.run, self.client, self.root = run, None, None

    def do(self, call, *args):
        end = time.monotonic() + SECONDS_MAX
        while True:
            try:
                if self.client is None:
                    port = int(self.run.node.ready["nfs"].rsplit(":", 1)[1])
                    self.client = wire.Client(port, timeout=SECONDS_MAX)
                    self.root = self.client.mount(f"/{VOLUME}")[1]
                return getattr(self.client, call)(*(self.root if arg is None else arg for arg in args))
            except (OSError, wire.Refused, struct.error) as error:
                self.client = None
                if time.monotonic() > end:
                    raise Gone(error) from None
                time.sleep(0.2)

    def open(self, name):
        found = self.do("lookup", None, name.encode())
        if found[0] != wire.OK:
            raise Gone(found[0])
        return found[1]

    def read(self, handle, at):
        status, data, _ = self.do("read", handle, at, BLOCK)
        if status != wire.OK:
            raise Gone(status)
        return data

    def close(self, handle):
        pass


class ByPython:
    """By the Python package, which reads the drive itself where it can."""

    said, has_open_files, is_pinned = "Python", True, True

    def __init__(self, run):
        self.run = run

    def open(self, name):
        try:
            return self.run.store().open(f"{VOLUME}/{name}", "rb", buffering=0)
        except OSError as error:
            raise Gone(error) from None

    def read(self, handle, at):
        try:
            handle.seek(at)
            return handle.read(BLOCK)
        except OSError as error:
            raise Gone(error) from None

    def close(self, handle):
        try:
            handle.close()
        except OSError:
            pass


class Run:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.model = Model([f"f{at}" for at in range(args.files)], args.seed)
        # Held by whoever changes names, and by whoever stops the node: what a change did is always known.
        self.changing = threading.Lock()
        self.over = threading.Event()
        self.node, self.mount, self.stoker_module = None, None, None
        self.connected = (None, -1)

    def start(self):
        more = ["--lake", f"file://{self.folder}/lake", "--memory", "512MiB", "--nfs", "127.0.0.1:0"]
        if self.model.starts:
            # The settings stay.
            more = []
        node = Node(self.args.stoker, self.folder, size=self.args.ring, args=more)
        self.node = node.__enter__()
        with self.model.lock:
            self.model.starts += 1

    def stoker(self, *args):
        environment = dict(os.environ, STOKER_DIR=str(self.node.dir))
        return subprocess.run([str(self.args.stoker), *args], env=environment, check=True, capture_output=True, text=True, timeout=SECONDS_MAX).stdout

    def store(self):
        """A connection of this start of the node."""
        starts = self.model.starts
        if self.connected[1] != starts:
            self.connected = (self.stoker_module.connect(), starts)
        return self.connected[0]

    def prepare(self):
        (self.folder / "lake").mkdir()
        (self.folder / "mnt").mkdir()
        self.start()
        self.stoker("volume", "set", VOLUME, "--drain-quiet", "1s")
        place = self.folder / "package"
        shutil.copytree(ROOT / "python" / "stoker", place / "stoker", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        shutil.copy(self.args.stoker.parent / "lib_stoker.so", place / "stoker" / "_stoker.abi3.so")
        sys.path.insert(0, str(place))
        os.environ["STOKER_DIR"] = str(self.node.dir)
        import stoker

        self.stoker_module = stoker
        command = [str(self.args.stoker), "mount", "-f", VOLUME, str(self.folder / "mnt")]
        self.mount = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.mount.stdout.readline().startswith("mounted"), "it is not mounted"
        for name in self.model.names:
            self.put(name)

    def put(self, name):
        model = self.model
        with model.lock:
            number = next(model.numbers)
            blocks = model.dice.randrange(1, self.args.blocks)
            model.blocks[number] = blocks
            # From here on an opener may see it.
            model.history[name].append(number)
        self.patiently(lambda: self.store().write(f"{VOLUME}/{name}", content(number, blocks)))
        with model.lock:
            model.set(name, number)

    def patiently(self, change):
        """A ring that is full of what has to drain first says so; a data loader's writer waits."""
        end = time.monotonic() + SECONDS_MAX
        while True:
            try:
                return change()
            except OSError as error:
                if time.monotonic() > end:
                    raise AssertionError(f"a change is refused for {SECONDS_MAX} s: {error}") from None
                time.sleep(0.5)

    def change(self):
        """Replaces, renames and deletes, until the end."""
        model = self.model
        while not self.over.is_set():
            with self.changing:
                name, other = model.dice.sample(model.names, 2)
                what = model.dice.randrange(6)
                has, number = name in model.now, model.now.get(name)
                if what == 0 and has:
                    with model.lock:
                        model.history[name].append(None)
                    self.patiently(lambda: self.store().remove(f"{VOLUME}/{name}"))
                    with model.lock:
                        model.set(name, None)
                elif what == 1 and has:
                    with model.lock:
                        model.history[other].append(number)
                        model.history[name].append(None)
                    self.patiently(lambda: self.store().rename(f"{VOLUME}/{name}", f"{VOLUME}/{other}"))
                    with model.lock:
                        model.set(name, None)
                        model.set(other, number)
                else:
                    self.put(name)
                model.changes += 1
            self.over.wait(self.args.pause)

    def restart(self):
        """Stops the node in order and by a kill in turn."""
        for at in itertools.count():
            if self.over.wait(self.args.restart):
                return
            with self.changing:
                if at % 2:
                    self.node.process.kill()
                    self.node.process.wait()
                elif not self.node.stop():
                    self.model.fail(f"the node did not stop in order: {self.node.last_words()}")
                self.start()

    def read(self, door, seed):
        """Keeps files open at a door and reads them, until the end."""
        dice, model, opened = random.Random(seed), self.model, []
        while not self.over.is_set():
            if len(opened) < self.args.opened:
                name = dice.choice(model.names)
                with model.lock:
                    before, starts = model.settled[name], model.starts
                try:
                    handle = door.open(name)
                except Gone:
                    continue
                with model.lock:
                    begun = set(model.history[name][before:]) - {None}
                opened.append([handle, name, begun, starts, before])
                model.count(model.opened, door.said)
            at = dice.randrange(len(opened))
            if not self.one(door, opened[at], dice) or dice.random() < 0.001:
                door.close(opened.pop(at)[0])
            if self.args.think:
                self.over.wait(self.args.think)
        for handle, *_ in opened:
            door.close(handle)

    def one(self, door, file, dice):
        """Reads one block; false if the file is of no more use."""
        model = self.model
        handle, name, begun, starts, before = file
        place = dice.randrange(max(model.blocks[number] for number in begun) + 1) if begun else 0
        with model.lock:
            running = model.starts
        try:
            data = door.read(handle, place * BLOCK)
        except Gone as why:
            model.count(model.gone, door.said)
            with model.lock:
                same_start = running == starts == model.starts and not self.changing_node()
                kept = set(model.history[name][before:]) == begun and len(begun) == 1
            if door.has_open_files and same_start:
                model.fail(f"{door.said}: {name} is open and cannot be read at block {place}: {why}")
            elif isinstance(door, Mounted) and kept and not self.changing_node():
                model.fail(f"{door.said}: {name} still has the version that was opened, and cannot be read after a restart: {why}")
            return False
        model.count(model.reads, door.said)
        number = MARK.unpack_from(data)[0] if data else None
        allowed = begun
        if not door.is_pinned and (number is None or number not in begun):
            allowed = self.later(name, begun, before)
        if not data:
            # Behind the end of a short one.
            if all(model.blocks[number] > place for number in allowed):
                model.fail(f"{door.said}: {name} ends before block {place}, and none of {sorted(allowed)} does")
            return True
        if number not in allowed or data != block(number, place):
            model.fail(f"{door.said}: {name} at block {place} has {MARK.unpack_from(data)} and {len(data)} bytes; right is one of {sorted(allowed)}")
            return False
        if door.is_pinned:
            # From now on it is this one and no other.
            file[2] = {number}
        return True

    def later(self, name, begun, before):
        """What a file may be that is not held to its version: what its names had since it was opened, and those that it got."""
        history = self.model.history
        with self.model.lock:
            allowed, names = set(begun) | set(history[name][before:]) - {None}, {name}
            grows = True
            while grows:
                moved = [other for other in history if other not in names and not allowed.isdisjoint(history[other])]
                for other in moved:
                    names.add(other)
                    first = min(at for at, number in enumerate(history[other]) if number in allowed)
                    allowed |= set(history[other][first:]) - {None}
                grows = bool(moved)
            return allowed

    def changing_node(self):
        return self.node.process.poll() is not None

    def metric(self, name):
        import urllib.request

        ready = self.node.ready
        request = urllib.request.Request(f"{ready['admin'].rstrip('/')}/metrics", headers={"Authorization": f"Bearer {ready['token']}"})
        with urllib.request.urlopen(request, timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def run(self):
        self.prepare()
        doors = [Mounted(self), Mounted(self), ByNfs(self), ByPython(self), ByPython(self)]
        threads = [threading.Thread(target=self.guarded, args=(self.read, door, self.args.seed * 100 + at)) for at, door in enumerate(doors)]
        threads += [threading.Thread(target=self.guarded, args=(self.change,)), threading.Thread(target=self.guarded, args=(self.restart,))]
        for thread in threads:
            thread.start()
        end = time.monotonic() + self.args.minutes * 60
        while time.monotonic() < end and len(self.model.wrong) < 10 and not self.over.is_set():
            self.over.wait(min(30, max(end - time.monotonic(), 0)))
            print(f"open: {self.words()}", flush=True)
        self.over.set()
        for thread in threads:
            thread.join(SECONDS_MAX * 2)
        fetched = self.metric("stoker_lake_read_bytes_total")
        print(f"open: {fetched / (1 << 20):.0f} MiB came from the lake since the last start", flush=True)
        self.let_go()
        return not self.model.wrong

    def guarded(self, what, *args):
        try:
            what(*args)
        except BaseException as error:  # noqa: BLE001
            import traceback

            self.model.fail(f"{what.__name__} ended: {error!r} {traceback.format_exc()}")
            self.over.set()

    def let_go(self):
        """What was kept for readers goes when they are gone."""
        self.stoker("umount", str(self.folder / "mnt"))
        self.mount.wait(timeout=60)
        self.connected = (None, -1)
        kept = self.folder / "lake" / VOLUME / ".stoker-open"
        end = time.monotonic() + SECONDS_MAX
        while time.monotonic() < end:
            left = [path for path in kept.rglob("*") if path.is_file()] if kept.is_dir() else []
            if not left:
                return
            time.sleep(0.5)
        self.model.fail(f"nobody reads, and {len(left)} objects are kept for readers: {left[:3]}")

    def words(self):
        model = self.model
        with model.lock:
            each = ", ".join(f"{door} {model.reads.get(door, 0)} reads of {model.opened.get(door, 0)} files ({model.gone.get(door, 0)} gone)" for door in ("mount", "NFS", "Python"))
            return f"{each}; {model.changes} changes, {model.starts - 1} restarts, {len(model.wrong)} wrong"

    def end(self):
        if self.mount and self.mount.poll() is None:
            self.mount.kill()
            self.mount.wait()
            subprocess.run(["umount", "-l", str(self.folder / "mnt")], check=False, capture_output=True)
        if self.node and self.node.process:
            self.node.process.kill()
            self.node.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program; lib_stoker.so lies beside it")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--ring", default="512MiB", help="size of the ring")
    parser.add_argument("--files", type=int, default=60, help="names")
    parser.add_argument("--blocks", type=int, default=6000, help="most blocks of 4 KiB of a file")
    parser.add_argument("--opened", type=int, default=20, help="files that each reader keeps open")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between changes")
    parser.add_argument("--restart", type=float, default=40, help="seconds between restarts of the node")
    parser.add_argument("--think", type=float, default=0, help="seconds between reads of a reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", default=None, help="where to make the folder of the run")
    args = parser.parse_args()
    args.stoker = args.stoker.resolve()
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        print("open: it needs FUSE and root", file=sys.stderr)
        return NOT_HERE
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-open-", dir=args.dir))
    run = Run(args, folder)
    try:
        passed = run.run()
        print(f"open: {'passed' if passed else 'FAILED'}: {run.words()}", flush=True)
        return 0 if passed else 1
    finally:
        run.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
