"""What was written through Stoker is a plain object in the lake: same key, same bytes, readable without Stoker."""

import json
import os
import pathlib
import subprocess
import sys

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from boto3_basic import Room, refused
from harness import MIB, Suite, content, equal, same, target, wait_until

suite = Suite(sys.argv[1] if len(sys.argv) > 1 else "drained")
scenario = suite.scenario


class Folder:
    """A lake that is a directory."""

    def __init__(self, at):
        path = at.lake.removeprefix("file://")
        self.root = pathlib.Path(path) if path.startswith("/") else pathlib.Path(at.dir) / path

    def read(self, volume, key):
        path = self.root / volume / key
        return path.read_bytes() if path.is_file() else None

    def write(self, volume, key, body):
        path = self.root / volume / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def keys(self, volume, prefix):
        root = self.root / volume
        names = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        # What the lake keeps for itself is not an object.
        return sorted(name for name in names if name.startswith(prefix) and not name.startswith(".stoker-"))


class Bucket:
    """A lake that is a bucket of another server."""

    def __init__(self, fields):
        self.bucket, self.prefix = fields["bucket"], fields["prefix"]
        self.s3 = boto3.client(
            "s3", endpoint_url=fields["endpoint"], region_name=fields["region"],
            aws_access_key_id=fields["access_key"], aws_secret_access_key=fields["secret_key"],
            config=Config(s3={"addressing_style": "path"}),
        )  # fmt: skip

    def read(self, volume, key):
        try:
            return self.s3.get_object(Bucket=self.bucket, Key=f"{self.prefix}{volume}/{key}")["Body"].read()
        except self.s3.exceptions.NoSuchKey:
            return None

    def write(self, volume, key, body):
        self.s3.put_object(Bucket=self.bucket, Key=f"{self.prefix}{volume}/{key}", Body=body)

    def keys(self, volume, prefix):
        root = f"{self.prefix}{volume}/"
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=root + prefix)
        return [row["Key"].removeprefix(root) for page in pages for row in page.get("Contents", [])]


def lake(at):
    fields = json.loads(os.environ.get("STOKER_LAKE", "null"))
    return Bucket(fields) if fields else Folder(at)


def drain(room):
    """Has everything go to the lake now, and waits until it is there."""
    command = [room.at.stoker, "drain", room.bucket, "--dir", room.at.dir]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"stoker drain: {done.stderr}"
    wait_until(lambda: room.at.status()["dirty_files"] == 0, "drained", 120)


OBJECTS = {
    "plain.txt": 11, "empty": 0, "dir/block": 4096, "dir/sub/chunk": 4 * MIB, "dir/sub/odd": 9 * MIB + 17,
    "a b/ü/日本.bin": 5000, "plus+and&.bin": 77,
}  # fmt: skip


@scenario("objects are in the lake under their own keys, byte for byte")
def plain(room, there):
    for key, size in OBJECTS.items():
        room.put(key, content(key, size), Metadata={"colour": "blue"}, ContentType="text/x-test")
    drain(room)
    equal(there.keys(room.bucket, ""), sorted(OBJECTS), "keys in the lake")
    for key, size in OBJECTS.items():
        same(there.read(room.bucket, key), content(key, size), key)
        same(room.read(key), content(key, size), f"{key} through Stoker, drained")


@scenario("a multipart upload becomes one object")
def multipart(room, there):
    body = content("multipart", 24 * MIB + 5)
    path = room.at.scratch / f"{room.bucket}.part"
    path.write_bytes(body)
    room.s3.upload_file(
        str(path), room.bucket, "large/multipart", Config=TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB)
    )
    path.unlink()
    drain(room)
    same(there.read(room.bucket, "large/multipart"), body, "multipart")


@scenario("an overwrite, a copy and a delete reach the lake")
def changes(room, there):
    room.put("changing", b"first")
    drain(room)
    room.s3.copy_object(Bucket=room.bucket, Key="copied", CopySource={"Bucket": room.bucket, "Key": "changing"})
    room.put("changing", b"second")
    drain(room)
    same(there.read(room.bucket, "changing"), b"second", "overwritten")
    same(there.read(room.bucket, "copied"), b"first", "copy of what was overwritten")
    room.s3.delete_object(Bucket=room.bucket, Key="changing")
    refused("NoSuchKey", 404, room.get, key="changing")
    wait_until(lambda: there.read(room.bucket, "changing") is None, "deleted from the lake")
    same(room.read("copied"), b"first", "the copy stays")


@scenario("an object deleted before it drained never comes back")
def short_lived(room, there):
    room.put("short", content("short", MIB))
    room.s3.delete_object(Bucket=room.bucket, Key="short")
    drain(room)
    equal(there.read(room.bucket, "short"), None, "in the lake")
    refused("NoSuchKey", 404, room.get, key="short")


@scenario("objects that were in the lake before appear without an import")
def adopted(room, there):
    volume, bodies = f"{room.bucket}-adopted", {"a.txt": content("a", 500), "dir/b": content("b", 9 * MIB), "dir/sub/c": b""}
    for key, body in bodies.items():
        there.write(volume, key, body)
    other = Room(room.at, volume)
    equal(other.keys(), sorted(bodies), "listed")
    for key, body in bodies.items():
        same(other.read(key), body, key)
        equal(other.head(key)["ContentLength"], len(body), f"size of {key}")
    same(other.read("dir/b", Range="bytes=5000000-5000099"), bodies["dir/b"][5_000_000:5_000_100], "a range")
    # Somebody else's objects are not written to unless a person says so.
    refused("AccessDenied", 403, other.put, key="a.txt", body=b"ours")
    refused("AccessDenied", 403, other.put, key="new", body=b"ours")
    same(there.read(volume, "a.txt"), bodies["a.txt"], "as it was")


@scenario("what is removed here is gone there")
def emptied(room, there):
    room.remove()
    wait_until(lambda: there.keys(room.bucket, "") == [], "an empty lake")


if __name__ == "__main__":
    at = target()
    suite.main(Room(at, suite.name), lake(at))
