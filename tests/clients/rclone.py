"""rclone: copies, checks, synchronisation, streams."""

import json
import shutil

from harness import MIB, Suite, content, equal, same, target
from programs import Program, make_tree, read_tree, same_trees

suite = Suite("rclone")
scenario = suite.scenario


class Room:
    def __init__(self, at):
        self.at, self.root = at, "st:rclone"
        environment = {
            **at.environment(),
            "RCLONE_CONFIG_ST_TYPE": "s3",
            "RCLONE_CONFIG_ST_PROVIDER": "Other",
            "RCLONE_CONFIG_ST_ACCESS_KEY_ID": at.access_key,
            "RCLONE_CONFIG_ST_SECRET_ACCESS_KEY": at.secret_key,
            "RCLONE_CONFIG_ST_REGION": at.region,
            "RCLONE_CONFIG_ST_ENDPOINT": at.s3,
        }
        self.rclone = Program(
            [f"{at.programs['tools']}/rclone", "--config", "/dev/null", "--retries", "1"], environment
        )
        self.folder = at.scratch / "rclone"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.rclone("mkdir", self.root)


@scenario("copy, check, check --download, copy back")
def copy(room):
    here, there = room.folder / "tree", room.folder / "back"
    tree = make_tree(here)
    # Parts of the least size, so that a file of 20 MiB has five.
    chunks = ("--s3-upload-cutoff", "8M", "--s3-chunk-size", "5M")
    room.rclone("copy", here, f"{room.root}/tree", *chunks)
    room.rclone("check", here, f"{room.root}/tree")
    room.rclone("check", "--download", here, f"{room.root}/tree")
    room.rclone("copy", f"{room.root}/tree", there, "--multi-thread-cutoff", "8M", "--multi-thread-streams", "4")
    same_trees(read_tree(there), tree, "copied back")
    rows = json.loads(room.rclone("lsjson", "-R", "--files-only", f"{room.root}/tree"))
    equal({row["Path"]: row["Size"] for row in rows}, {name: len(body) for name, body in tree.items()}, "lsjson")


@scenario("modification times survive, and a second sync copies nothing")
def times(room):
    here = room.folder / "tree"
    before = {path.name: int(path.stat().st_mtime) for path in here.rglob("*") if path.is_file()}
    shutil.rmtree(room.folder / "back")
    room.rclone("sync", f"{room.root}/tree", room.folder / "back")
    after = {path.name: int(path.stat().st_mtime) for path in (room.folder / "back").rglob("*") if path.is_file()}
    equal(after, before, "times")
    words = room.rclone.text("sync", "--dry-run", "--use-json-log", here, f"{room.root}/tree")
    assert "Skipped copy" not in words, words


@scenario("sync deletes what is gone, moveto, deletefile")
def sync(room):
    here = room.folder / "tree"
    (here / "one").unlink()
    room.rclone("sync", here, f"{room.root}/tree")
    names = room.rclone.text("lsf", "-R", "--files-only", f"{room.root}/tree").splitlines()
    assert "one" not in names and "block" in names, names
    room.rclone("moveto", f"{room.root}/tree/block", f"{room.root}/tree/moved block")
    same(room.rclone("cat", f"{room.root}/tree/moved block"), (here / "block").read_bytes(), "moved")
    room.rclone("deletefile", f"{room.root}/tree/moved block")
    names = room.rclone.text("lsf", "-R", "--files-only", f"{room.root}/tree").splitlines()
    assert "moved block" not in names and "block" not in names, names


@scenario("rcat of unknown length, cat of a part")
def streams(room):
    body = content("rcat", 12 * MIB + 5)
    room.rclone("rcat", f"{room.root}/stream", "--streaming-upload-cutoff", "1M", "--s3-chunk-size", "5M", stdin=body)
    same(room.rclone("cat", f"{room.root}/stream"), body, "rcat")
    same(room.rclone("cat", "--offset", "5000000", "--count", "1000000", f"{room.root}/stream"), body[5_000_000:6_000_000], "part")


@scenario("purge")
def purge(room):
    room.rclone("purge", f"{room.root}/tree")
    equal(room.rclone.text("lsf", room.root).split(), ["stream"], "left")


@scenario("purge of the bucket")
def emptied(room):
    room.rclone("purge", room.root)


if __name__ == "__main__":
    suite.main(Room(target()))
