"""s5cmd: many files at once."""

import json
import shutil

from harness import MIB, Suite, content, equal, same, target
from programs import Program, make_tree, read_tree, same_trees

suite = Suite("s5cmd")
scenario = suite.scenario


class Room:
    def __init__(self, at):
        self.at, self.url = at, "s3://s5cmd"
        self.s5cmd = Program([f"{at.programs['tools']}/s5cmd", "--endpoint-url", at.s3, "-r", "1"], at.environment())
        self.folder = at.scratch / "s5cmd"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.s5cmd("mb", self.url)

    def keys(self, pattern):
        return sorted(json.loads(line)["key"] for line in self.s5cmd.text("--json", "ls", pattern).splitlines())


@scenario("cp of a tree, both ways")
def copy(room):
    here, there = room.folder / "tree", room.folder / "back"
    tree = make_tree(here)
    room.s5cmd("cp", "--part-size", "8", f"{here}/", f"{room.url}/tree/")
    equal(room.keys(f"{room.url}/tree/*"), sorted(f"{room.url}/tree/{name}" for name in tree), "ls")
    room.s5cmd("cp", "--part-size", "8", f"{room.url}/tree/*", f"{there}/")
    same_trees(read_tree(there), tree, "copied back")


@scenario("a file of 64 MiB in parts, both ways")
def large(room):
    body, source, back = content("s5cmd", 64 * MIB), room.folder / "big", room.folder / "big-back"
    source.write_bytes(body)
    room.s5cmd("cp", "--part-size", "8", "--concurrency", "8", source, f"{room.url}/big")
    room.s5cmd("cp", "--part-size", "8", "--concurrency", "8", f"{room.url}/big", back)
    same(back.read_bytes(), body, "cp")
    source.unlink()
    back.unlink()


@scenario("a thousand small files, listed and removed")
def many(room):
    folder = room.folder / "many"
    count = 10_000 if room.at.is_full else 1_000
    for n in range(count):
        path = folder / f"{n % 10}" / f"{n:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % n)
    room.s5cmd("cp", f"{folder}/", f"{room.url}/many/")
    equal(len(room.keys(f"{room.url}/many/*")), count, "ls")
    equal(len(room.keys(f"{room.url}/many/7/*7")), count // 10, "a pattern")
    same(room.s5cmd("cat", f"{room.url}/many/7/00007"), b"7", "cat")
    room.s5cmd("rm", f"{room.url}/many/*")
    assert "no object found" in room.s5cmd.fails("ls", f"{room.url}/many/*"), "something is left"
    shutil.rmtree(folder)


@scenario("sync, with deletes, and again")
def sync(room):
    here = room.folder / "tree"
    (here / "one").unlink()
    room.s5cmd("sync", "--delete", f"{here}/", f"{room.url}/tree/")
    assert f"{room.url}/tree/one" not in room.keys(f"{room.url}/tree/*")
    equal(room.s5cmd.text("sync", "--delete", f"{here}/", f"{room.url}/tree/"), "", "a second sync")


@scenario("mv, pipe, du, errors")
def verbs(room):
    room.s5cmd("pipe", f"{room.url}/piped", stdin=b"through a pipe")
    room.s5cmd("mv", f"{room.url}/piped", f"{room.url}/moved")
    same(room.s5cmd("cat", f"{room.url}/moved"), b"through a pipe", "moved")
    assert "14 bytes" in room.s5cmd.text("du", f"{room.url}/moved"), "du"
    assert "not found" in (words := room.s5cmd.fails("cat", f"{room.url}/piped")) or "NoSuchKey" in words, words


@scenario("mv and cp beside a neighbour whose name has a plus for a space")
def neighbours(room):
    room.s5cmd("pipe", f"{room.url}/n/a b", stdin=b"space")
    room.s5cmd("pipe", f"{room.url}/n/a+b", stdin=b"plus")
    room.s5cmd("cp", f"{room.url}/n/a b", f"{room.url}/n/copied")
    same(room.s5cmd("cat", f"{room.url}/n/copied"), b"space", "copied")
    room.s5cmd("mv", f"{room.url}/n/a b", f"{room.url}/n/moved space")
    room.s5cmd("mv", f"{room.url}/n/a+b", f"{room.url}/n/moved+plus")
    same(room.s5cmd("cat", f"{room.url}/n/moved space"), b"space", "moved space")
    same(room.s5cmd("cat", f"{room.url}/n/moved+plus"), b"plus", "moved+plus")
    equal(len(room.keys(f"{room.url}/n/*")), 3, "what is left")


@scenario("rm of everything, rb")
def emptied(room):
    room.s5cmd("rm", f"{room.url}/*")
    room.s5cmd("rb", room.url)


if __name__ == "__main__":
    suite.main(Room(target()))
