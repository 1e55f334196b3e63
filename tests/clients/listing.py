"""Listings of one large bucket by boto3, timed page by page: a page costs the same wherever it is.

Most of a call is boto3 reading XML and dates. So the wait for the answer is timed apart from the call.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time

from harness import Target
from node import Node
from programs import Program

DIRECTORY_FILES = 10
PAGE_KEYS = 1_000
PARTS = 10


def names(count):
    """Keys in order: directories of ten files."""
    return [f"tree/{n // DIRECTORY_FILES:06}/{n % DIRECTORY_FILES}" for n in range(count)]


def measure(stoker, folder, programs, count):
    """Fills a bucket with s5cmd, lists it with boto3 and prints one line of JSON; the exit code is 1 if a listing is wrong."""
    for name in names(count):
        path = folder / name
        if name.endswith("/0"):
            path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    with Node(stoker, folder, size="4GiB") as node:
        more = {"stoker": str(stoker), "programs": programs, "scratch": str(folder), "tier": "quick"}
        at, bucket = Target({**node.ready, **more}), node.ready["volume"]
        s5cmd = Program([f"{programs['tools']}/s5cmd", "--endpoint-url", at.s3, "--log", "error"], at.environment())
        begun = time.monotonic()
        s5cmd("cp", f"{folder}/tree/", f"s3://{bucket}/tree/")
        put_s = round(time.monotonic() - begun, 1)
        python = [f"{programs['boto3']}/python", "-B", str(pathlib.Path(__file__).resolve())]
        return subprocess.run([*python, json.dumps([bucket, count, put_s])], env=at.environment()).returncode


def list_all(bucket, count, put_s):
    import boto3

    s3, keys = boto3.client("s3"), names(count)
    waits = watch(s3)
    directories = [key[:-1] for key in keys[::DIRECTORY_FILES]]
    ways = [
        ("all", {}, keys),
        ("prefix tree/007", {"Prefix": "tree/007"}, [key for key in keys if key.startswith("tree/007")]),
        ("delimiter /", {"Prefix": "tree/", "Delimiter": "/"}, directories),
        # Groups of one key each, which look like it.
        ("delimiter /5", {"Prefix": "tree/", "Delimiter": "/5"}, keys),
        ("start after the middle", {"StartAfter": keys[count // 2]}, keys[count // 2 + 1 :]),
    ]
    rows = [walk(s3, waits, bucket, name, arguments, expected) for name, arguments, expected in ways]
    print(json.dumps({"bench": "s3-listing", "count": count, "put_s": put_s, "listings": rows}))
    return 0 if all(row["complete"] for row in rows) else 1


def watch(s3):
    """A list that grows by the milliseconds of each exchange with the server."""
    from botocore.httpsession import URLLib3Session

    http, waits = URLLib3Session(), []

    def send(request, **_):
        begun = time.perf_counter()
        answer = http.send(request)
        waits.append((time.perf_counter() - begun) * 1e3)
        return answer

    s3.meta.events.register("before-send.s3.ListObjectsV2", send)
    return waits


def walk(s3, waits, bucket, name, arguments, expected):
    """Every page of one listing, and how long each took."""
    calls, got, token = [], [], {}
    waits.clear()
    while True:
        begun = time.perf_counter()
        answer = s3.list_objects_v2(Bucket=bucket, MaxKeys=PAGE_KEYS, **arguments, **token)
        calls.append((time.perf_counter() - begun) * 1e3)
        got += sorted(
            [row["Key"] for row in answer.get("Contents", [])] + [row["Prefix"] for row in answer.get("CommonPrefixes", [])]
        )
        if not answer["IsTruncated"]:
            break
        token = {"ContinuationToken": answer["NextContinuationToken"]}
    step = -(-len(waits) // PARTS)
    parts = [waits[at : at + step] for at in range(0, len(waits), step)]
    return {
        "name": name, "pages": len(calls), "complete": got == expected, "call_p50_ms": middle(calls),
        "p50_ms": middle(waits), "parts_p50_ms": [middle(part) for part in parts],
        "parts_max_ms": [round(max(part), 2) for part in parts],
    }  # fmt: skip


def middle(values):
    return round(statistics.median(values), 2)


if __name__ == "__main__":
    sys.exit(list_all(*json.loads(sys.argv[1])))
