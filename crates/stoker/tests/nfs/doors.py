"""Three doors, one namespace: random changes through FUSE, NFS and S3 in turn, each seen through all three at once."""

import os
import random
import sys
import urllib.error

import s3
from wire import *

port, mnt, endpoint, access, secret, volume = int(sys.argv[1]), *sys.argv[2:7]
seed, steps, OWNER = int(sys.argv[7]), int(sys.argv[8]), (int(sys.argv[9]), int(sys.argv[10]))
dice = random.Random(seed)
client = Client(port)
status, ROOT = client.mount("/" + volume)
assert status == OK, status
DIRECTORIES = ["", "a/", "a/deep/", "b/"]
NAMES = ["one", "two", "three", "a name with spaces", "ümlaut"]
PLACES = [directory + name for directory in DIRECTORIES for name in NAMES]
# What each file is, whose it is, and its mode where POSIX said it: S3 says none.
files, owners, modes, told = {}, {}, {}, []


def data():
    size = dice.choice([0, 1, 3, 4095, 4096, 70_000, 300_000])
    start = dice.randrange(251)
    return bytes((start + at * 7 + at // 251) & 0xFF for at in range(size))


def tell(*words):
    told.append(" ".join(str(word) for word in words))
    del told[:-40]


class Fuse:
    def at(self, place):
        return os.path.join(mnt, place)

    def put(self, place, content):
        with open(self.at(place), "wb") as file:
            file.write(content)
            if dice.random() < 0.3:
                file.flush()
                os.fsync(file.fileno())

    def patch(self, place, offset, content):
        with open(self.at(place), "r+b", buffering=0) as file:
            assert os.pwrite(file.fileno(), content, offset) == len(content)

    def append(self, place, content):
        with open(self.at(place), "ab") as file:
            file.write(content)

    def truncate(self, place, size):
        os.truncate(self.at(place), size)

    def chmod(self, place, mode):
        os.chmod(self.at(place), mode)

    def chown(self, place, *owner):
        os.chown(self.at(place), *owner)

    def rename(self, place, to):
        os.rename(self.at(place), self.at(to))

    def remove(self, place):
        os.unlink(self.at(place))

    def get(self, place):
        try:
            with open(self.at(place), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        found = os.stat(self.at(place))
        assert found.st_size == len(content), (place, found.st_size, len(content))
        assert modes.get(place) in (None, found.st_mode & 0o7777), (place, oct(found.st_mode))
        assert owners.get(place) == (found.st_uid, found.st_gid), (place, owners.get(place), found)
        return content

    def list(self, directory):
        return {name + "/" * os.path.isdir(os.path.join(mnt, directory, name)) for name in os.listdir(self.at(directory))}


class Nfs:
    def walk(self, path):
        handle = ROOT
        for name in filter(None, path.split("/")):
            status, handle, _ = client.lookup(handle, name.encode())
            if status:
                return status, None
        return OK, handle

    def split(self, place):
        directory, _, name = place.rpartition("/")
        status, handle = self.walk(directory)
        assert status == OK, (directory, status)
        return handle, name.encode()

    def file(self, place):
        status, handle = self.walk(place)
        assert status == OK, (place, status)
        return handle

    def write(self, handle, offset, content):
        stable = dice.choice([UNSTABLE, FILE_SYNC])
        for at in range(0, len(content), 1 << 17):
            status, *_ = client.write(handle, offset + at, content[at : at + (1 << 17)], stable)
            assert status == OK, status
        # What is not committed is for the clients of this door alone.
        assert client.commit(handle)[0] == OK

    def put(self, place, content):
        handle, name = self.split(place)
        status, file, *_ = client.create(handle, name, wish=sattr(mode=0o644, size=0))
        assert status == OK, status
        self.write(file, 0, content)

    def patch(self, place, offset, content):
        self.write(self.file(place), offset, content)

    def append(self, place, content):
        handle = self.file(place)
        status, attr = client.getattr(handle)
        assert status == OK, status
        self.write(handle, attr["size"], content)

    def set(self, place, wish):
        status, _ = client.setattr(self.file(place), wish)
        assert status == OK, status

    def truncate(self, place, size):
        self.set(place, sattr(size=size))

    def chmod(self, place, mode):
        self.set(place, sattr(mode=mode))

    def chown(self, place, uid, gid):
        self.set(place, sattr(uid=uid, gid=gid))

    def rename(self, place, to):
        status, _ = client.rename(*self.split(place), *self.split(to))
        assert status == OK, status

    def remove(self, place):
        status, _ = client.remove(*self.split(place))
        assert status == OK, status

    def get(self, place):
        status, handle = self.walk(place)
        if status == NOENT:
            return None
        assert status == OK, status
        status, attr = client.getattr(handle)
        content = client.read_all(handle)
        assert status == OK and attr["size"] == len(content), (place, status, attr)
        assert modes.get(place) in (None, attr["mode"]), (place, oct(attr["mode"]))
        assert owners.get(place) == (attr["uid"], attr["gid"]), (place, owners.get(place), attr)
        return content

    def list(self, directory):
        status, handle = self.walk(directory)
        assert status == OK, status
        entries = client.list_all(handle, plus=True)
        names = {entry["name"].decode() + "/" * (entry["attr"]["type"] == 2) for entry in entries}
        return names - {"./", "../"}


class S3:
    def ask(self, method, place, body=None, headers=()):
        return s3.request(method, endpoint, f"{volume}/{place}", access, secret, body, headers)

    def put(self, place, content):
        self.ask("PUT", place, content)

    def copy(self, place, to):
        source = s3.quoted(f"/{volume}/{place}")
        self.ask("PUT", to, None, [("x-amz-copy-source", source)])

    def remove(self, place):
        self.ask("DELETE", place)

    def get(self, place):
        try:
            return self.ask("GET", place)
        except urllib.error.HTTPError as fault:
            if fault.code != 404:
                raise
            return None


fuse, nfs, bucket = Fuse(), Nfs(), S3()
POSIX = [fuse, nfs]


def see(place):
    for door in (fuse, nfs, bucket):
        found, wanted = door.get(place), files.get(place)
        words = lambda content: None if content is None else f"{len(content)} bytes"
        assert found == wanted, f"{place} through {type(door).__name__}: {words(found)}, not {words(wanted)}"


def put(place):
    door, content = dice.choice([*POSIX, bucket]), data()
    tell(type(door).__name__, "put", place, len(content))
    door.put(place, content)
    if door is bucket or place not in files:
        modes.pop(place, None)
        owners[place] = OWNER if door is bucket else (0, 0)
    files[place] = content


def patch(place):
    door, content = dice.choice(POSIX), data()
    offset = dice.randrange(len(files[place]) + 10_000)
    tell(type(door).__name__, "patch", place, offset, len(content))
    door.patch(place, offset, content)
    if content:
        old = files[place].ljust(offset, b"\0")
        files[place] = old[:offset] + content + old[offset + len(content) :]


def append(place):
    door, content = dice.choice(POSIX), data()
    tell(type(door).__name__, "append", place, len(content))
    door.append(place, content)
    files[place] += content


def truncate(place):
    door, size = dice.choice(POSIX), dice.randrange(len(files[place]) + 5_000)
    tell(type(door).__name__, "truncate", place, size)
    door.truncate(place, size)
    files[place] = files[place][:size].ljust(size, b"\0")


def chmod(place):
    door, mode = dice.choice(POSIX), dice.choice([0o600, 0o640, 0o755, 0o444])
    tell(type(door).__name__, "chmod", place, oct(mode))
    door.chmod(place, mode)
    modes[place] = mode


def chown(place):
    door, owner = dice.choice(POSIX), (dice.randrange(1, 9999), dice.randrange(1, 9999))
    tell(type(door).__name__, "chown", place, owner)
    door.chown(place, *owner)
    owners[place] = owner


def rename(place):
    door, to = dice.choice(POSIX), dice.choice(PLACES)
    tell(type(door).__name__, "rename", place, "to", to)
    door.rename(place, to)
    files[to], owners[to] = files.pop(place), owners.pop(place)
    mode = modes.pop(place, None) if to != place else modes.get(place)
    if mode is None:
        modes.pop(to, None)
    else:
        modes[to] = mode
    see(to)


def copy(place):
    to = dice.choice([other for other in PLACES if other != place])
    tell("S3 copy", place, "to", to)
    bucket.copy(place, to)
    files[to], owners[to] = files[place], OWNER
    modes.pop(to, None)
    see(to)


def remove(place):
    door = dice.choice([*POSIX, bucket])
    tell(type(door).__name__, "remove", place)
    door.remove(place)
    del files[place], owners[place]
    modes.pop(place, None)


def look():
    for directory in DIRECTORIES:
        below = [place[len(directory) :] for place in (*files, *DIRECTORIES) if place.startswith(directory)]
        names = {rest.partition("/")[0] + "/" * ("/" in rest) for rest in below if rest}
        for door in POSIX:
            found = door.list(directory)
            assert found == names, f"{directory!r} through {type(door).__name__}: {found ^ names}"


for directory in DIRECTORIES[1:]:
    os.makedirs(os.path.join(mnt, directory), exist_ok=True)
try:
    for step in range(steps):
        place = dice.choice(PLACES)
        change = put if place not in files else dice.choice([put, patch, append, truncate, chmod, chown, rename, copy, remove])
        change(place)
        see(place)
        see(dice.choice(PLACES))
        if step % 50 == 49:
            look()
    for place in PLACES:
        see(place)
    look()
except BaseException:
    print(f"seed {seed}, the last steps:", *told, sep="\n  ", file=sys.stderr)
    raise
print(f"seed {seed}: {steps} changes")
