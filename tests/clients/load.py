"""Clients that work without a pause while nodes come and go, and remember what was acknowledged.

Every worker is alone with its keys, so it knows at each moment what it has to find there.
"""

import collections
import io
import random
import threading
import time
import traceback

import boto3
import botocore.config

from harness import MIB, content, equal, same, wait_until

KEYS = 16
# What botocore has read before it returns is repeated by it; a larger body is read with the call that can be repeated.
SMALL = 64 << 10
LARGE = 12 * MIB
# Operations of one client before the next takes its place.
STEPS = 12


def client(at, endpoint, **config):
    """As anybody would make it: no timeouts and no retries but those that it comes with."""
    return boto3.client(
        "s3", endpoint_url=endpoint, region_name=at.region, aws_access_key_id=at.access_key,
        aws_secret_access_key=at.secret_key, config=botocore.config.Config(**config),
    )  # fmt: skip


class Load:
    """Workers, and what they saw."""

    def __init__(self, workers):
        self.workers, self.stopping = workers, threading.Event()
        self.threads = [threading.Thread(target=self.work, args=[worker]) for worker in workers]
        # When an operation began and ended, which one, and how many tries more it took.
        self.done, self.trouble = [], []
        self.counted = collections.Counter()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def work(self, worker):
        while not self.stopping.is_set():
            begun = time.monotonic()
            try:
                name = worker.step()
            except BaseException as error:  # whatever reaches a worker is what a user would have seen
                place = "".join(traceback.format_exception(error)[-3:])
                self.trouble.append(f"{worker.doing} after {time.monotonic() - begun:.1f} s: {error!r:.600}\n{place}")
                return
            self.counted[name] += 1
            self.done.append((begun, time.monotonic(), name, worker.retries()))

    def after(self, count):
        """Waits until so many more operations were done; at once if something went wrong."""
        until = len(self.done) + count
        wait_until(lambda: len(self.done) >= until or self.trouble, f"{count} more operations", seconds=180)

    def is_fine(self):
        equal(self.trouble, [], f"what reached clients after {sum(self.counted.values())} operations")

    def words(self):
        tries = sum(row[3] for row in self.done)
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counted.items()))
        return f"{len(self.done)} operations ({counts}), {tries} tries that failed, {len(self.trouble)} errors"

    def window(self):
        return Window(self)


class Window:
    """What clients saw from its begin to its end."""

    def __init__(self, load):
        self.load, self.words = load, ""

    def __enter__(self):
        self.begun = time.monotonic()
        return self

    def __exit__(self, *_):
        rows = [row for row in list(self.load.done) if row[1] >= self.begun]
        ends = [self.begun, *sorted(row[1] for row in rows), time.monotonic()]
        pause = max(after - before for before, after in zip(ends, ends[1:]))
        begun, ended, name, _ = max(rows, key=lambda row: row[1] - row[0], default=(0, 0, "none", 0))
        tries = max((row[3] for row in rows), default=0)
        self.words = (f"{len(rows)} operations, longest pause of all clients {pause:.1f} s, slowest operation "
                      f"{ended - begun:.1f} s ({name}), tries that failed in one at most {tries}")

    def elapsed(self):
        return time.monotonic() - self.begun


class Boto3Worker:
    """put_object, get_object, download_fileobj, upload_file, delete_object, list_objects_v2, verified against its memory."""

    def __init__(self, at, endpoint, bucket, number, **config):
        self.client = lambda: client(at, endpoint, **config)
        self.bucket, self.prefix = bucket, f"load/{number}/"
        self.dice, self.number = random.Random(number), 0
        self.file = at.scratch / f"load-{number}"
        self.model, self.doing, self.tries = {}, "", 0
        self.begin()

    def begin(self):
        """A connection stays with its node; without new ones all would soon be with those that were never killed."""
        self.s3, self.left = self.client(), STEPS
        self.s3.meta.events.register("needs-retry.s3", self.note)

    def note(self, attempts, response, caught_exception, **_):
        """Counts tries that failed; those of threads of a transfer too."""
        if caught_exception is not None or response[0].status_code >= 500:
            self.tries += 1

    def retries(self):
        tries, self.tries = self.tries, 0
        return tries

    def step(self):
        self.left -= 1
        if self.left == 0:
            self.begin()
        verb = self.dice.choices([self.put, self.upload, self.get, self.delete, self.list], [8, 1, 8, 2, 1])[0]
        verb()
        return verb.__name__

    def key(self):
        return f"{self.prefix}{self.dice.randrange(KEYS):02}"

    def body(self, key, size):
        self.number += 1
        return content(f"{key} {self.number}", size)

    def put(self):
        key, size = self.key(), self.dice.choice([0, 1, 4096, 70_001, 500_000])
        body, self.doing = self.body(key, size), f"put {key} of {size} bytes"
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)
        self.model[key] = body

    def upload(self):
        # Few of them, or the ring is full of what is not in the lake yet.
        key = f"{self.prefix}large{self.dice.randrange(2)}"
        body, self.doing = self.body(key, LARGE), f"upload {key}"
        self.file.write_bytes(body)
        self.s3.upload_file(str(self.file), self.bucket, key)
        self.model[key] = body

    def get(self):
        if not self.model:
            return self.put()
        key = self.dice.choice(sorted(self.model))
        expected, self.doing = self.model[key], f"get {key}"
        if len(expected) <= SMALL:
            got = self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        else:
            into = io.BytesIO()
            self.s3.download_fileobj(self.bucket, key, into)
            got = into.getvalue()
        same(got, expected, key)

    def delete(self):
        key = self.key()
        self.doing = f"delete {key}"
        self.s3.delete_object(Bucket=self.bucket, Key=key)
        self.model.pop(key, None)

    def list(self):
        self.doing = f"list {self.prefix}"
        rows = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix).get("Contents", [])
        sizes = {key: len(body) for key, body in self.model.items()}
        equal({row["Key"]: row["Size"] for row in rows}, sizes, self.doing)

    def verify(self, s3):
        """Everything that was acknowledged, through this client."""
        rows = s3.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix).get("Contents", [])
        equal(sorted(row["Key"] for row in rows), sorted(self.model), f"{self.prefix} at {s3.meta.endpoint_url}")
        for key, body in self.model.items():
            got = s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            same(got, body, f"{key} at {s3.meta.endpoint_url}")
        return len(self.model)
