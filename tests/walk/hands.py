"""Programs on a mount, in a process of their own: whatever else is started while a file is open would have to close it first, and
wait for a mount that waits. One JSON object for each line: what to do on stdin, what came of it on stdout.
"""

import json
import os
import pathlib
import sys

from harness import content, same


def write(path, source):
    with open(path, "wb") as file:
        file.write(content(*source))
        file.flush()
        os.fsync(file.fileno())


def read(path, source):
    same(pathlib.Path(path).read_bytes(), content(*source), path)


def remove(path):
    os.unlink(path)


def list_sizes(path):
    return {entry.name: entry.stat().st_size for entry in os.scandir(path)}


def make(path):
    os.makedirs(path, exist_ok=True)


VERBS = {"write": write, "read": read, "remove": remove, "list": list_sizes, "make": make}

for line in sys.stdin:
    asked = json.loads(line)
    try:
        told = {"done": VERBS[asked.pop("verb")](**asked)}
    except Exception as error:  # what a program would have seen
        told = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(told), flush=True)
