"""Clients that work all the while, remember what was acknowledged, and are told apart from what they saw.

Each is alone with its keys, so it knows at each moment what it has to find there. An error that reaches one of them is counted,
what it was about is in doubt from then on, and it goes on.
"""

import contextlib
import json
import pathlib
import random
import subprocess
import sys
import threading
import time

from harness import MIB, content, equal, same, wait_until
from load import client as made

# Names that are written again and again; every so often one is written that stays as it is for the rest of the walk.
NAMES, KEPT_EVERY = 12, 25
# Between two operations: clients that pause are told from those that are slow, and nodes get on with their work.
PACE_S = 0.03
# Operations of one S3 client before the next takes its place: an old connection stays with its node.
STEPS = 10
# What waits for longer is a client that hangs.
OPERATION_S_MAX = 180
# The default session of boto3 is not for several threads.
MAKING = threading.Lock()


def client(*args, **config):
    with MAKING:
        return made(*args, **config)


class Worker(threading.Thread):
    """One client. What it does is up to its children; `lock` is free between two operations."""

    kind = ""

    def __init__(self, crowd, label):
        super().__init__(daemon=True)
        self.crowd, self.label, self.lock = crowd, label, threading.Lock()
        self.dice, self.number, self.doing = random.Random(label), 0, ""
        # What is there: the name of the content, and its size. What is in doubt is in neither.
        self.model, self.doubted, self.begun, self.name_now, self.tries = {}, set(), None, None, 0

    def run(self):
        while not self.crowd.stopping.is_set():
            with self.lock:
                self.tries, self.begun, verb, error = 0, time.monotonic(), self.kind, None
                try:
                    verb = self.step()
                except Exception as seen:  # whatever reaches a client is what a user would have seen
                    error = f"{self.label}: {self.doing} after {time.monotonic() - self.begun:.1f} s: {seen!r:.400}"
                    self.doubt()
                row = (self.begun, time.monotonic(), f"{self.kind} {verb}", self.tries, error)
                self.begun = None
                self.crowd.rows.append(row)
            self.crowd.stopping.wait(PACE_S)

    def doubt(self):
        """What it did may have been done or not."""
        if self.name_now:
            self.model.pop(self.name_now, None)
            self.doubted.add(self.name_now)

    def chosen(self):
        """A name to write, which is given up for good if it is in doubt."""
        self.number += 1
        if self.number % KEPT_EVERY == 0:
            return f"kept-{self.number:05}"
        names = [name for at in range(NAMES) if (name := f"{at:02}") not in self.doubted]
        return self.dice.choice(names) if names else f"more-{self.number:05}"

    def known(self):
        """A name to read."""
        return self.dice.choice(sorted(self.model)) if self.model else None

    def body(self, name, size):
        source = (f"{self.label} {name} {self.number}", size)
        return source, content(*source)

    def about(self, verb, name):
        self.name_now, self.doing = (name if verb in ("put", "upload", "delete", "write", "remove") else None), f"{verb} {name}"


class S3Worker(Worker):
    """boto3 as anybody would make it: no timeouts and no retries but those that it comes with."""

    kind = "s3"

    def __init__(self, crowd, label, at, endpoint, bucket, scratch, **config):
        super().__init__(crowd, label)
        self.at, self.endpoint, self.bucket, self.config = at, endpoint, bucket, config
        self.prefix, self.left, self.file = f"s3/{label}/", 0, pathlib.Path(scratch) / f"{label}.upload"

    def step(self):
        if self.left == 0:
            self.s3, self.left = client(self.at, self.endpoint, **self.config), STEPS
            self.s3.meta.events.register("needs-retry.s3", self.note)
        self.left -= 1
        verb = self.dice.choices([self.put, self.upload, self.get, self.delete, self.list], [8, 1, 8, 2, 2])[0]
        return verb()

    def note(self, response, caught_exception, **_):
        if caught_exception is not None or response[0].status_code >= 500:
            self.tries += 1

    def put(self):
        name = self.chosen()
        self.about("put", name)
        source, body = self.body(name, self.dice.choice([0, 1, 4096, 70_001, 300_000]))
        self.s3.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=body)
        self.model[name] = source
        return "put"

    def upload(self):
        name = f"large{self.dice.randrange(2)}"
        if name in self.doubted:
            return self.put()
        self.about("upload", name)
        source, body = self.body(name, 9 * MIB)
        self.file.write_bytes(body)
        self.s3.upload_file(str(self.file), self.bucket, self.prefix + name)
        self.model[name] = source
        return "upload"

    def get(self):
        name = self.known()
        if name is None:
            return self.put()
        self.about("get", name)
        # Repeated by the client as a whole, as `get_object` is not once its answer began.
        self.s3.download_file(self.bucket, self.prefix + name, str(self.file))
        same(self.file.read_bytes(), content(*self.model[name]), self.prefix + name)
        return "get"

    def delete(self):
        name = self.dice.choice([name for name in self.model if name.isdigit()] or [self.chosen()])
        self.about("delete", name)
        self.s3.delete_object(Bucket=self.bucket, Key=self.prefix + name)
        self.model.pop(name, None)
        return "delete"

    def list(self):
        self.about("list", self.prefix)
        self.compare_list(self.s3)
        return "list"

    def compare_list(self, s3):
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        rows = {row["Key"][len(self.prefix) :]: row["Size"] for page in pages for row in page.get("Contents", [])}
        rows = {name: size for name, size in rows.items() if name not in self.doubted}
        equal(rows, {name: size for name, (_, size) in self.model.items()}, f"list {self.prefix}")

    def verify(self, endpoint):
        """Everything that was acknowledged, through one node."""
        s3 = client(self.at, endpoint)
        self.compare_list(s3)
        for name, source in self.model.items():
            got = s3.get_object(Bucket=self.bucket, Key=self.prefix + name)["Body"].read()
            same(got, content(*source), f"{self.prefix}{name} at {endpoint}")
        return len(self.model)


class MountWorker(Worker):
    """Programs on a mounted volume. What an fsync returned for is acknowledged."""

    kind = "mount"

    def __init__(self, crowd, label, volume, folder):
        super().__init__(crowd, label)
        self.volume, self.mnt, self.process = volume, pathlib.Path(folder) / f"{label}.mnt", None
        self.mnt.mkdir()
        self.log = pathlib.Path(folder) / f"{label}.log"
        self.files, self.at = self.mnt / "files" / label, None
        command = [sys.executable, str(pathlib.Path(__file__).with_name("hands.py"))]
        self.hands = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def act(self, verb, path, **more):
        """Lets the other process do something; what came of it."""
        self.hands.stdin.write(json.dumps({"verb": verb, "path": str(path), **more}) + "\n")
        self.hands.stdin.flush()
        told = json.loads(self.hands.stdout.readline())
        if "error" in told:
            raise OSError(told["error"])
        return told["done"]

    def mount(self, machine):
        """As `up` prints it, on the machine of a node."""
        line = f"exec stoker mount -f {self.volume} {self.mnt} --dir {machine.dir}"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                machine.command(line), cwd=machine.home, env=machine.environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        said = self.process.stdout.readline()
        assert said.startswith("mounted"), f"not mounted on {machine.name}: {said!r} {self.log.read_text()[-600:]}"
        self.at = machine
        self.act("make", self.files)

    def umount(self):
        self.at.ok(f"stoker umount {self.mnt}", is_told=False)
        assert self.process.wait(timeout=60) == 0, f"the mount did not end well: {self.log.read_text()[-600:]}"

    def move(self, machine):
        """Programs go to another machine, as before one is taken away."""
        with self.lock:
            if self.at is not machine:
                self.umount()
                self.mount(machine)

    def end(self):
        subprocess.run(["umount", "--lazy", str(self.mnt)], capture_output=True)
        for process in filter(None, (self.process, self.hands)):
            process.kill()
            process.wait()

    def step(self):
        return self.dice.choices([self.write, self.read, self.remove, self.list], [8, 8, 2, 2])[0]()

    def write(self):
        name = self.chosen()
        self.about("write", name)
        source, _ = self.body(name, self.dice.choice([0, 10, 4096, 70_001, 300_000, MIB]))
        self.act("write", self.files / name, source=source)
        self.model[name] = source
        return "write and fsync"

    def read(self):
        name = self.known()
        if name is None:
            return self.write()
        self.about("read", name)
        self.act("read", self.files / name, source=self.model[name])
        return "read"

    def remove(self):
        names = [name for name in self.model if name.isdigit()]
        if not names:
            return self.write()
        name = self.dice.choice(names)
        self.about("remove", name)
        self.act("remove", self.files / name)
        del self.model[name]
        return "remove"

    def list(self):
        self.about("list", str(self.files))
        rows = {name: size for name, size in self.act("list", self.files).items() if name not in self.doubted}
        equal(rows, {name: size for name, (_, size) in self.model.items()}, f"list {self.files}")
        return "list"

    def verify(self, s3, bucket):
        """Everything that was acknowledged, on the mount and through a node's S3."""
        for name, source in self.model.items():
            self.act("read", self.files / name, source=source)
            got = s3.get_object(Bucket=bucket, Key=f"files/{self.label}/{name}")["Body"].read()
            same(got, content(*source), f"files/{self.label}/{name} by S3")
        return len(self.model)


class CliWorker(Worker):
    """`stoker put` and `stoker get` on machines whose nodes run and are not about to stop."""

    kind = "stoker"

    def __init__(self, crowd, label, volume, machines, scratch):
        super().__init__(crowd, label)
        self.volume, self.machines, self.leaving = volume, machines, set()
        self.source, self.back = (pathlib.Path(scratch) / f"{label}.{end}" for end in ("source", "back"))

    @contextlib.contextmanager
    def away_from(self, machine):
        """Nothing is begun on this machine; what is under way there is over."""
        with self.lock:
            self.leaving.add(machine)
        yield
        with self.lock:
            self.leaving.discard(machine)

    def run_at(self, line):
        machines = [one for one in self.machines if one.is_running() and one.dir and one not in self.leaving]
        machine = self.dice.choice(machines)
        self.doing += f" on {machine.name}"
        code, said = machine.sh(f"{line} --dir {machine.dir}", timeout=OPERATION_S_MAX, is_told=False)
        assert code == 0, f"exit code {code}: {said}"

    def step(self):
        name = self.known() if self.dice.randrange(2) else None
        if name:
            self.about("get", name)
            self.back.unlink(missing_ok=True)
            self.run_at(f"stoker get {self.volume}/cli/{name} {self.back}")
            same(self.back.read_bytes(), content(*self.model[name]), f"{self.volume}/cli/{name}")
            return "get"
        name = self.chosen()
        self.about("put", name)
        source, body = self.body(name, self.dice.choice([0, 70_001, MIB]))
        self.source.write_bytes(body)
        self.run_at(f"stoker put {self.source} {self.volume}/cli/{name}")
        self.model[name] = source
        return "put"

    def verify(self, s3, bucket):
        for name, source in self.model.items():
            same(s3.get_object(Bucket=bucket, Key=f"cli/{name}")["Body"].read(), content(*source), f"cli/{name} by S3")
        return len(self.model)


class Crowd:
    """All of them, and what they saw."""

    def __init__(self):
        self.workers, self.rows, self.stopping = [], [], threading.Event()

    def add(self, worker):
        self.workers.append(worker)
        worker.start()

    def of(self, kind):
        return [worker for worker in self.workers if worker.kind == kind]

    def stop(self):
        self.stopping.set()
        for worker in self.workers:
            worker.join(timeout=OPERATION_S_MAX)

    @contextlib.contextmanager
    def held(self):
        """Nobody works: all clients were asked to stop for a while."""
        with contextlib.ExitStack() as stack:
            for worker in self.workers:
                stack.enter_context(worker.lock)
            yield

    def more(self, count=6):
        """Waits until every client has done so many more operations."""
        before = len(self.rows)

        def is_done():
            done = [row[2].split()[0] for row in self.rows[before:]]
            return all(done.count(worker.kind) >= count * len(self.of(worker.kind)) for worker in self.workers)

        wait_until(is_done, f"{count} more operations of each client: {self.under_way()}", OPERATION_S_MAX)

    def under_way(self):
        now = time.monotonic()
        return [f"{one.label}: {one.doing} for {now - begun:.0f} s" for one in self.workers if (begun := one.begun)]

    def seen(self, since):
        """What clients saw since then: operations, errors, the longest operation, and which one that was."""
        now = time.monotonic()
        rows = [row for row in list(self.rows) if row[1] >= since]
        times = [(ended - max(begun, since), what) for begun, ended, what, _, _ in rows]
        times += [(now - max(begun, since), worker.kind) for worker in self.workers if (begun := worker.begun)]
        pause, what = max(times, default=(0.0, "none"))
        return len(rows), [row[4] for row in rows if row[4]], pause, what, sum(row[3] for row in rows)

    def verify(self, machines, at, bucket):
        """Reads back all that was acknowledged, through every node that runs; each client between two of its operations."""
        objects = 0
        for worker in self.workers:
            with worker.lock:
                for machine in machines:
                    if worker.kind == "s3":
                        objects += worker.verify(machine.s3)
                    else:
                        objects += worker.verify(client(at, machine.s3), bucket)
        return objects
