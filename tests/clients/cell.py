"""Clients of a cell whose nodes are killed, stopped and started: boto3, awscli, `stoker put` and `stoker get`.

Remote clients know one name with the addresses of all nodes, and keep the retries that they come with.
"""

import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading

from harness import MIB, Suite, Target, content, equal, fields, same, wait_until
from load import Boto3Worker, Load, client
from nodes import Cell
from programs import Program

# What leads programs in Python to several addresses, see resolver/.
RESOLVER = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "STOKER_NAME", "STOKER_ADDRESSES")

suite = Suite("cell")
scenario = suite.scenario


class Room:
    def __init__(self, cell, more):
        self.cell, self.at = cell, Target({**cell.ready, **more})
        self.bucket = cell.ready["volume"]

    def workers(self, label, count):
        # Three tries by default; older releases came with the mode `legacy`, which has five.
        modes = [{}, {"retries": {"mode": "legacy"}}]
        return [
            Boto3Worker(self.at, self.cell.s3, self.bucket, f"{label}-{number}", **modes[number % 2])
            for number in range(count)
        ]

    def through(self, node):
        """A client of this node alone."""
        return client(self.at, node.s3)

    def verify(self, load):
        files = 0
        for node in self.cell.nodes:
            s3 = self.through(node)
            files += sum(worker.verify(s3) for worker in load.workers if isinstance(worker, Boto3Worker))
        return files

    def cli(self, node, verb, *args):
        return Program([self.at.stoker, verb], self.at.environment())(*args, "--dir", node.dir)


def say(words):
    print(f"cell:   {words}", flush=True)


# Multipart uploads


def parts_of(key):
    return [content(f"{key} {number}", 5 * MIB + number) for number in range(3)]


def send(s3, room, key, upload, number, body):
    part = s3.upload_part(Bucket=room.bucket, Key=key, UploadId=upload, PartNumber=number, Body=body)
    return {"PartNumber": number, "ETag": part["ETag"]}


def spread_upload(room, key, begins, sends, ends, between=lambda: None):
    """Begun at one node with its first part, the other parts at another, completed at a third."""
    bodies = parts_of(key)
    upload = room.through(begins).create_multipart_upload(Bucket=room.bucket, Key=key)["UploadId"]
    parts = [send(room.through(begins), room, key, upload, 1, bodies[0])]
    between()
    parts += [send(room.through(sends), room, key, upload, number, bodies[number - 1]) for number in (2, 3)]
    room.through(ends).complete_multipart_upload(
        Bucket=room.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
    )
    return b"".join(bodies)


def read(s3, room, key):
    return s3.get_object(Bucket=room.bucket, Key=key)["Body"].read()


@scenario("a multipart upload over three nodes")
def multipart(room):
    first, second, third = room.cell.nodes
    body = spread_upload(room, "parts/three", first, second, third)
    for node in room.cell.nodes:
        same(read(room.through(node), room, "parts/three"), body, f"through {node.name}")


# kill -9


# Each in turn, so that three rounds have them all: a node that does not keep the catalog; the one that does, which comes back;
# the same, but another node is promoted before that.
KINDS = ("another node", "the catalog's node", "the catalog's node, for good")


@scenario("nodes are killed while boto3 works with the retries that it comes with")
def killed(room):
    cell, dice = room.cell, random.Random("kills")
    rounds = 20 if room.at.is_full else 3
    cell.heal()
    with Load(room.workers("killed", 4)) as load:
        for round in range(rounds):
            load.after(20 + dice.randrange(20))
            cell.until_followed(lambda: load.trouble)
            if load.trouble:
                break
            kind, holder = KINDS[round % 3], cell.holder()
            others = [node for node in cell.nodes if node is not holder]
            victim = dice.choice(others) if kind == KINDS[0] else holder
            words = f"kill {round + 1}, {kind}: {victim.name}"
            victim.kill_at_work()
            with load.window() as seen:
                if kind == KINDS[2]:
                    promoted, took_s = cell.promote(victim)
                    words += f", {promoted} promoted after {took_s:.1f} s"
                if kind != KINDS[1]:
                    load.after(10)
                away_s = seen.elapsed()
                back_s = victim.start()
                load.after(10)
            say(f"{words}, started after {away_s:.1f} s, ready {back_s:.1f} s later: {seen.words}")
    load.is_fine()
    assert any(row[3] for row in load.done), f"no request was cut off: {load.words()}"
    say(f"{rounds} kills: {load.words()}; {room.verify(load)} files verified through three nodes")


@scenario("the catalog is handed over and back while boto3 works")
def handed_over(room):
    cell = room.cell
    cell.heal()
    with Load(room.workers("handed", 2)) as load:
        before, after = cell.holder(), None
        for _ in range(2):
            load.after(8)
            cell.until_followed(lambda: load.trouble)
            if load.trouble:
                break
            with load.window() as seen:
                holder = cell.holder()
                # There and back again: who kept it before and follows now can have it once more.
                candidates = [before] if after else [node for node in cell.nodes if node is not holder]
                after, took_s = cell.promote(holder, candidates)
                load.after(20)
            say(f"from {holder.name} to {after} in {took_s:.1f} s: {seen.words}")
        cell.until_followed(lambda: load.trouble)
    load.is_fine()
    equal(cell.holder().name, before.name, "who keeps the catalog")
    say(f"{load.words()}; {room.verify(load)} files verified through three nodes")


# Nodes that are asked to stop


@scenario("a multipart upload whose first node stops before its second part")
def multipart_stopped(room):
    holder = room.cell.holder()
    first, second = [node for node in room.cell.nodes if node is not holder]
    room.cell.until_whole()
    stop = lambda: equal(first.stop(), True, f"{first.name} stops as asked")
    body = spread_upload(room, "parts/stopped", first, second, holder, between=stop)
    same(read(room.through(second), room, "parts/stopped"), body, "while its first node is away")
    first.start()
    for node in room.cell.nodes:
        same(read(room.through(node), room, "parts/stopped"), body, f"through {node.name}")
    room.cell.until_whole()


@scenario("a multipart upload whose first node kept the catalog and is lost", tier="full")
def multipart_lost(room):
    room.cell.until_whole()
    first = room.cell.holder()
    second, third = [node for node in room.cell.nodes if node is not first]

    def lose():
        first.kill()
        room.cell.promote(first)

    body = spread_upload(room, "parts/lost", first, second, third, between=lose)
    first.start()
    for node in room.cell.nodes:
        same(read(room.through(node), room, "parts/lost"), body, f"through {node.name}")
    room.cell.until_whole()


class Commands:
    """A loop of commands at nodes that are not about to stop, as people on their machines would run them."""

    def __init__(self, room):
        self.room, self.lock, self.dice = room, threading.Lock(), random.Random("commands")
        self.leaving, self.busy, self.doing, self.number = None, None, "", 0
        self.source, self.back = room.at.scratch / "cli-source", room.at.scratch / "cli-back"

    def retries(self):
        return 0

    def avoid(self, node):
        """From now on nothing is begun at this node; waits for what is under way there."""
        with self.lock:
            self.leaving = node
        wait_until(lambda: self.busy is not node or node is None, "commands end")

    def step(self):
        with self.lock:
            node = self.dice.choice([node for node in self.room.cell.nodes if node is not self.leaving])
            self.busy = node
        try:
            self.number += 1
            key = f"{self.room.bucket}/cli/{self.number % 8}"
            body, self.doing = content(f"{key} {self.number}", self.dice.choice([0, 70_001, 5 * MIB])), f"cli {key}"
            self.source.write_bytes(body)
            self.back.unlink(missing_ok=True)
            self.room.cli(node, "put", self.source, key)
            self.room.cli(node, "get", key, self.back)
            same(self.back.read_bytes(), body, f"{key} through {node.name}")
        finally:
            self.busy = None
        return "stoker put and get"


class Copies:
    """A loop of `aws s3 cp`, up and down, at the name of all nodes."""

    def __init__(self, room):
        environment = {**room.at.environment(), **{name: os.environ[name] for name in RESOLVER}}
        self.aws = Program([f"{room.at.programs['awscli']}/aws", "s3", "cp", "--no-progress"], environment)
        self.room, self.number, self.doing = room, 0, ""
        self.source, self.back = room.at.scratch / "aws-source", room.at.scratch / "aws-back"

    def retries(self):
        return 0

    def step(self):
        self.number += 1
        url = f"s3://{self.room.bucket}/aws/{self.number % 4}"
        body, self.doing = content(f"{url} {self.number}", 12 * MIB if self.number % 2 else 4097), f"aws s3 cp {url}"
        self.source.write_bytes(body)
        self.aws(self.source, url)
        self.aws(url, self.back)
        same(self.back.read_bytes(), body, url)
        return "aws s3 cp up and down"


class UnderWay:
    """Requests at a node that began before it is asked to stop, and end after that."""

    SIZE = 24 * MIB
    FIRST = MIB

    def __init__(self, room, node):
        self.room, self.node, self.key = room, node, f"underway/{node.name}"
        self.body = content(self.key, self.SIZE)
        there, address = ["--dir", str(node.dir)], f"{room.bucket}/{self.key}"
        s3 = room.through(node)
        s3.put_object(Bucket=room.bucket, Key=self.key, Body=self.body)
        self.stream = s3.get_object(Bucket=room.bucket, Key=self.key)["Body"]
        self.streamed = self.stream.read(self.FIRST)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.put = subprocess.Popen([room.at.stoker, "put", "-", f"{address}-put", *there], **pipes)
        # More than a pipe holds: it has been taken, so the command is at work.
        self.put.stdin.write(self.body[: self.FIRST])
        self.put.stdin.flush()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.get = subprocess.Popen([room.at.stoker, "get", address, "-", *there], **pipes)
        self.got = self.get.stdout.read(self.FIRST)

    def finish(self):
        """What the node still has to answer before it stops."""
        same(self.streamed + self.stream.read(), self.body, "an answer under way")
        words, _ = self.put.communicate(self.body[self.FIRST :], timeout=60)
        equal(self.put.returncode, 0, f"`stoker put` under way: {words.decode(errors='replace')}")

    def finish_open(self):
        """A file that is open and not being read keeps no node from stopping; its reader goes on when the node is back."""
        more, words = self.get.communicate(timeout=60)
        equal(self.get.returncode, 0, f"`stoker get` over a restart: {words.decode(errors='replace')}")
        same(self.got + more, self.body, "`stoker get` over a restart")

    def verify(self):
        for node in self.room.cell.nodes:
            same(read(self.room.through(node), self.room, f"{self.key}-put"), self.body, f"{self.key}-put")


@scenario("every node is stopped and started again while clients work")
def rolling(room):
    room.cell.heal()
    commands, requests = Commands(room), []
    with Load([*room.workers("rolling", 2), Copies(room), commands]) as load:
        for node in room.cell.nodes:
            load.after(8)
            wait_until(lambda: node.cannot_stop() is None or load.trouble, f"{node.name} can stop", 120)
            if load.trouble:
                break
            commands.avoid(node)
            requests.append(UnderWay(room, node))
            with load.window() as seen:
                node.process.terminate()
                wait_until(lambda: not node.is_ready(), f"{node.name} says that it stops")
                requests[-1].finish()
                equal(node.process.wait(timeout=60), 0, f"exit code of {node.name}")
                stopped_s = seen.elapsed()
                back_s = node.start()
                wait_until(node.is_ready, f"{node.name} is ready")
                requests[-1].finish_open()
                commands.avoid(None)
                wait_until(lambda: node.cannot_stop() is None, f"{node.name} can stop again", 120)
            say(f"{node.name} stopped in {stopped_s:.1f} s, ready {back_s:.1f} s later: {seen.words}")
        load.after(8)
    load.is_fine()
    for request in requests:
        request.verify()
    say(f"{load.words()}; {room.verify(load)} files verified through three nodes")


@scenario("all nodes stop when asked")
def stopped(room):
    room.cell.heal()
    equal(room.cell.stop(), [], "nodes that did not stop")


def main():
    more = fields()
    folder = pathlib.Path(more["scratch"]) / "cell"
    shutil.rmtree(folder, ignore_errors=True)
    with Cell(more["stoker"], folder) as cell:
        code = suite.run(Room(cell, more))
        if code:
            print(cell.last_words())
    sys.exit(code)


if __name__ == "__main__":
    main()
