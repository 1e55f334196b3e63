"""What fsx does, by NFS: random reads, writes, cuts and reopens of files against a model in memory.

The client is the one of crates/stoker/tests/nfs/wire.py, on two connections, as a kernel with `nconnect` has them.
"""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "crates/stoker/tests/nfs"))

import wire

LENGTH_MAX = 1_000_000
OPERATION_MAX = 128 << 10


class Exercise:
    def __init__(self, rig, seed):
        self.rig, self.dice = rig, random.Random(seed)
        self.connect()
        self.names = [b"one %d" % seed, b"two %d" % seed]
        self.models = {}
        self.handles = {}
        for name in self.names:
            status, self.handles[name], _, _ = self.client.create(self.root, name)
            assert status == wire.OK, status
            self.models[name] = bytearray()

    def connect(self):
        self.clients = [wire.Client(self.rig.nfs_port) for _ in range(2)]
        status, self.root = self.client.mount("/files")
        assert status == wire.OK, status

    @property
    def client(self):
        return self.dice.choice(self.clients)

    def step(self, at):
        name = self.dice.choice(self.names)
        handle, model = self.handles[name], self.models[name]
        what = self.dice.choices(
            ["write", "read", "truncate", "commit", "reopen", "attributes", "rename", "all"], [40, 40, 8, 4, 4, 4, 1, 1]
        )[0]
        getattr(self, what)(at, name, handle, model)

    def write(self, at, name, handle, model):
        offset = self.dice.randrange(LENGTH_MAX - OPERATION_MAX)
        # Mostly where there is something already; sometimes far behind the end.
        if self.dice.random() < 0.7:
            offset = min(offset, len(model))
        data = self.dice.randbytes(self.dice.randrange(1, OPERATION_MAX))
        stable = wire.FILE_SYNC if self.dice.random() < 0.1 else wire.UNSTABLE
        status, (_, after), committed, _ = self.client.write(handle, offset, data, stable)
        assert status == wire.OK and committed >= stable, f"step {at}: write says {status}, {committed}"
        if len(model) < offset + len(data):
            model.extend(bytes(offset + len(data) - len(model)))
        model[offset : offset + len(data)] = data
        assert after is None or after["size"] == len(model), f"step {at}: {after['size']} and not {len(model)} bytes"

    def read(self, at, name, handle, model):
        offset = self.dice.randrange(len(model) + 1000)
        count = self.dice.randrange(1, OPERATION_MAX)
        status, data, is_end = self.client.read(handle, offset, count)
        expect = bytes(model[offset : offset + count])
        # A server may answer with less; what it gives has to be right.
        assert status == wire.OK and expect.startswith(data), f"step {at}: wrong bytes of {name} at {offset}, {count}"
        assert data or not expect, f"step {at}: nothing read of {name} at {offset} of {len(model)}"
        assert is_end == (offset + len(data) >= len(model)), f"step {at}: the end of {name} is wrong"

    def truncate(self, at, name, handle, model):
        size = self.dice.randrange(LENGTH_MAX)
        status, _ = self.client.setattr(handle, wire.sattr(size=size))
        assert status == wire.OK, f"step {at}: truncate says {status}"
        model[size:] = bytes(max(0, size - len(model)))

    def commit(self, at, name, handle, model):
        assert self.client.commit(handle)[0] == wire.OK, f"step {at}: commit"

    def reopen(self, at, name, handle, model):
        if self.dice.random() < 0.2:
            self.connect()
        status, self.handles[name], found = self.client.lookup(self.root, name)
        assert status == wire.OK, f"step {at}: lookup says {status}"
        assert found is None or found["size"] == len(model), f"step {at}: {found['size']} and not {len(model)} bytes"

    def attributes(self, at, name, handle, model):
        status, found = self.client.getattr(handle)
        assert status == wire.OK and found["size"] == len(model), f"step {at}: {status}, {found}, not {len(model)} bytes"

    def rename(self, at, name, handle, model):
        new = b"renamed %d" % at
        status, _ = self.client.rename(self.root, name, self.root, new)
        assert status == wire.OK, f"step {at}: rename says {status}"
        self.names[self.names.index(name)] = new
        self.models[new], self.handles[new] = self.models.pop(name), self.handles.pop(name)

    def all(self, at, name, handle, model):
        assert self.client.read_all(handle) == bytes(model), f"step {at}: {name} is not what it should be"


def nfs(rig, run):
    """The same against the NFS door; at the end the mount shows the same bytes."""
    seeds, steps = run.number(1, 3, 10), run.number(2_000, 100_000, 100_000)
    for seed in range(run.seed, run.seed + seeds):
        exercise = Exercise(rig, seed)
        try:
            for at in range(steps):
                exercise.step(at)
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong
        for name in exercise.names:
            assert exercise.client.commit(exercise.handles[name])[0] == wire.OK
            shown = (rig.mnt / name.decode()).read_bytes()
            assert shown == bytes(exercise.models[name]), f"seed {seed}: the mount shows other bytes of {name}"
    return f"{seeds} seeds of {steps:,} operations"
