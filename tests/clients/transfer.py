"""`aws s3 cp` and `s5cmd cp` of one large file, both ways, as people would run them."""

import argparse
import json
import os
import re
import subprocess
import time

from harness import MIB, Target
from node import Node
from programs import Program

UNITS = {"": 1, "MiB": MIB, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}


def size(text):
    found = re.fullmatch(r"(\d+)\s*(MiB|GiB|MB|GB|)", text)
    if not found:
        raise argparse.ArgumentTypeError("expected a size such as 4GiB")
    return int(found[1]) * UNITS[found[2]]


def measure(stoker, folder, programs, size_bytes):
    """Prints one line of JSON; the exit code is 1 if bytes came back wrong."""
    source, back = folder / "source", folder / "back"
    with open(source, "wb") as file:
        for _ in range(size_bytes // MIB):
            file.write(os.urandom(MIB))
    rows, is_wrong = [], False
    with Node(stoker, folder, size=f"{max(2 << 30, 4 * size_bytes)}") as node:
        more = {"stoker": str(stoker), "programs": programs, "scratch": str(folder), "tier": "quick"}
        at = Target({**node.ready, **more})
        url = f"s3://{node.ready['volume']}"
        aws = Program([f"{programs['awscli']}/aws", "s3", "cp", "--no-progress"], at.environment())
        s5cmd = Program([f"{programs['tools']}/s5cmd", "--endpoint-url", at.s3, "cp"], at.environment())
        for name, program in (("aws s3 cp", aws), ("s5cmd cp", s5cmd)):
            key = f"{url}/{name.split()[0]}"
            up = timed(lambda: program(source, key))
            # The second read comes from memory as far as it fits.
            downs = [timed(lambda: (back.unlink(missing_ok=True), program(key, back))) for _ in range(2)]
            is_wrong |= subprocess.run(["cmp", str(source), str(back)]).returncode != 0
            rate = lambda seconds: round(size_bytes / 1e6 / seconds, 1)
            rows.append({
                "client": name, "up_mb_s": rate(up), "up_s": round(up, 2), "down_mb_s": rate(downs[0]),
                "down_s": round(downs[0], 2), "down_again_mb_s": rate(downs[1]),
            })  # fmt: skip
    print(json.dumps({"bench": "s3-clients", "bytes": size_bytes, "identical": not is_wrong, "clients": rows}))
    return 1 if is_wrong else 0


def timed(work):
    begun = time.monotonic()
    work()
    return time.monotonic() - begun
