"""Clients of one node that put, read and list without a retry of their own, until their input ends. Run by run.py with boto3.

Prints a line for each second with how much was done, and at the end what failed, what was lost and the longest wait.
"""

import hashlib
import json
import sys
import threading
import time

import boto3
import botocore.config

BUCKET = "data"
CLIENTS = 8
# Longer than any failover: what takes longer than this is a failure of ours.
TIMEOUT_S = 120


class Crowd:
    def __init__(self, endpoint, key, secret):
        config = botocore.config.Config(
            retries={"total_max_attempts": 1}, read_timeout=TIMEOUT_S, connect_timeout=TIMEOUT_S,
            max_pool_connections=CLIENTS, s3={"addressing_style": "path"},
        )  # fmt: skip
        self.s3 = boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="stoker", config=config
        )
        self.lock, self.ending = threading.Lock(), threading.Event()
        self.acknowledged, self.failed, self.done, self.longest = {}, [], 0, 0.0

    def call(self, what, work):
        begun = time.monotonic()
        try:
            result = work()
        except Exception as error:  # noqa: BLE001: whatever it is, a client saw it
            with self.lock:
                self.failed.append(f"{what} after {time.monotonic() - begun:.1f} s: {error}")
            return None
        with self.lock:
            self.done += 1
            self.longest = max(self.longest, time.monotonic() - begun)
        return result

    def client(self, number):
        count = 0
        while not self.ending.is_set():
            count += 1
            key, body = f"crowd/{number}/{count:06}", f"{number} {count} ".encode() * (1 + count % 700)
            if self.call(f"put {key}", lambda: self.s3.put_object(Bucket=BUCKET, Key=key, Body=body)):
                with self.lock:
                    self.acknowledged[key] = hashlib.sha256(body).digest()
                self.call(f"head {key}", lambda: self.s3.head_object(Bucket=BUCKET, Key=key))
            if count % 10 == 0:
                self.call("list", lambda: self.s3.list_objects_v2(Bucket=BUCKET, Prefix=f"crowd/{number}/", MaxKeys=50))

    def lost(self):
        for key, digest in self.acknowledged.items():
            found = self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            if hashlib.sha256(found).digest() != digest:
                yield key


def main():
    crowd = Crowd(*sys.argv[1:4])
    clients = [threading.Thread(target=crowd.client, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    tell = threading.Thread(target=told, args=(crowd,))
    tell.start()
    sys.stdin.read()
    crowd.ending.set()
    for thread in [*clients, tell]:
        thread.join()
    lost = list(crowd.lost())
    print(json.dumps({
        "done": crowd.done, "acknowledged": len(crowd.acknowledged), "failed": crowd.failed, "lost": lost,
        "longest_s": round(crowd.longest, 1),
    }), flush=True)  # fmt: skip


def told(crowd):
    while not crowd.ending.wait(0.5):
        print(json.dumps({"done": crowd.done, "failed": len(crowd.failed)}), flush=True)


if __name__ == "__main__":
    main()
