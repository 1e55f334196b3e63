"""The AWS command line: `aws s3` and `aws s3api`."""

import json
import shutil
import urllib.request

from harness import MIB, Suite, content, equal, same, target
from programs import Program, make_tree, read_tree, same_trees

suite = Suite("awscli")
scenario = suite.scenario


class Room:
    def __init__(self, at):
        self.at, self.bucket = at, "awscli"
        self.url = f"s3://{self.bucket}"
        self.folder = at.scratch / "awscli"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        # None of whoever runs this: with the region that a node tells, every command signs as it should by itself.
        config = self.folder / "config"
        config.write_text("[default]\n")
        self.aws = Program(
            [f"{at.programs['awscli']}/aws"], {**at.environment(), "AWS_CONFIG_FILE": str(config)}
        )
        self.aws("s3", "mb", self.url)

    def api(self, verb, *args, **more):
        text = self.aws.text("s3api", verb, "--bucket", self.bucket, *args, **more)
        return json.loads(text) if text.strip() else {}


@scenario("cp of a file of 64 MiB, both ways")
def copy(room):
    body, source, back = content("aws cp", 64 * MIB), room.folder / "big", room.folder / "back"
    source.write_bytes(body)
    room.aws("s3", "cp", source, f"{room.url}/big", "--no-progress")
    room.aws("s3", "cp", f"{room.url}/big", back, "--no-progress")
    same(back.read_bytes(), body, "cp")
    room.aws("s3", "cp", f"{room.url}/big", f"{room.url}/bigger", "--no-progress")
    equal(room.api("head-object", "--key", "bigger")["ContentLength"], len(body), "copy inside")
    source.unlink()
    back.unlink()


@scenario("cp from and to a pipe")
def pipes(room):
    body = content("aws pipe", 9 * MIB + 1)
    room.aws("s3", "cp", "-", f"{room.url}/piped", stdin=body)
    same(room.aws("s3", "cp", f"{room.url}/piped", "-"), body, "pipe")


@scenario("sync both ways, again, and with deletes")
def sync(room):
    here, there = room.folder / "tree", room.folder / "tree-back"
    tree = make_tree(here)
    room.aws("s3", "sync", here, f"{room.url}/tree", "--no-progress")
    equal(room.aws.text("s3", "sync", here, f"{room.url}/tree", "--no-progress"), "", "a second sync")
    room.aws("s3", "sync", f"{room.url}/tree", there, "--no-progress")
    same_trees(read_tree(there), tree, "synced")
    (here / "one").unlink()
    room.aws("s3", "sync", here, f"{room.url}/tree", "--delete", "--no-progress")
    listed = room.aws.text("s3", "ls", "--recursive", f"{room.url}/tree/")
    equal((len(listed.splitlines()), "tree/one" in listed), (len(tree) - 1, False), "after --delete")


@scenario("ls, mv, rm, rm --recursive")
def verbs(room):
    for name in ("v/a", "v/b", "v/c/d"):
        room.aws("s3", "cp", "-", f"{room.url}/{name}", stdin=name.encode())
    words = room.aws.text("s3", "ls", f"{room.url}/v/").split()
    assert "PRE" in words and "c/" in words and "a" in words, words
    room.aws("s3", "mv", f"{room.url}/v/a", f"{room.url}/v/moved")
    same(room.aws("s3", "cp", f"{room.url}/v/moved", "-"), b"v/a", "moved")
    room.aws("s3", "rm", f"{room.url}/v/b")
    room.aws("s3", "rm", "--recursive", f"{room.url}/v/")
    equal(room.aws("s3", "ls", "--recursive", f"{room.url}/v/", expect=1), b"", "nothing left")


@scenario("presign")
def presign(room):
    room.aws("s3", "cp", "-", f"{room.url}/signed", stdin=b"signed")
    url = room.aws.text("s3", "presign", f"{room.url}/signed").strip()
    with urllib.request.urlopen(url, timeout=30) as answer:
        same(answer.read(), b"signed", "presigned")


@scenario("s3api: conditions, ranges, paging, metadata, tags")
def api(room):
    path, out = room.folder / "body", room.folder / "out"
    path.write_bytes(b"0123456789")
    put = ("--key", "api/one", "--body", path, "--metadata", "a=b", "--tagging", "t=1")
    room.api("put-object", *put, "--if-none-match", "*")
    words = room.aws.fails("s3api", "put-object", "--bucket", room.bucket, *put, "--if-none-match", "*")
    assert "PreconditionFailed" in words, words
    room.api("get-object", "--key", "api/one", "--range", "bytes=2-4", out)
    same(out.read_bytes(), b"234", "range")
    equal(room.api("head-object", "--key", "api/one")["Metadata"], {"a": "b"}, "metadata")
    equal(room.api("get-object-tagging", "--key", "api/one")["TagSet"], [{"Key": "t", "Value": "1"}], "tags")
    for n in range(4):
        room.api("copy-object", "--key", f"api/copy{n}", "--copy-source", f"{room.bucket}/api/one")
    listed = room.api("list-objects-v2", "--prefix", "api/", "--page-size", "2")
    equal([row["Key"] for row in listed["Contents"]], [f"api/copy{n}" for n in range(4)] + ["api/one"], "pages")
    words = room.aws.fails("s3api", "get-object", "--bucket", room.bucket, "--key", "api/none", out)
    assert "NoSuchKey" in words, words


@scenario("rb --force")
def emptied(room):
    room.aws("s3", "rb", "--force", room.url)


if __name__ == "__main__":
    suite.main(Room(target()))
