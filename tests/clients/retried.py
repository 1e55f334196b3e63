"""Uploads through a proxy that drops, delays and repeats requests and answers: no error reaches the program, and no wrong object is left."""

import concurrent.futures
import io
import os
import shutil

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from faults import Faults
from harness import MIB, Suite, content, equal, same, target
from programs import Program

suite = Suite("retried")
scenario = suite.scenario
# Parts of the least size, and one that is shorter.
SIZE = 11 * MIB + 7


class Room:
    def __init__(self, at):
        self.at, self.bucket = at, "retried"
        self.seed = int(os.environ.get("STOKER_SEED", "1"))
        self.folder = at.scratch / "retried"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.plain = self.client(at.s3)
        self.plain.create_bucket(Bucket=self.bucket)

    def client(self, url):
        config = Config(retries={"max_attempts": 30, "mode": "standard"}, s3={"addressing_style": "path"}, max_pool_connections=32)
        return boto3.client(
            "s3", endpoint_url=url, aws_access_key_id=self.at.access_key, aws_secret_access_key=self.at.secret_key,
            region_name=self.at.region, config=config,
        )  # fmt: skip

    def faults(self):
        return Faults(self.at.s3, self.seed)

    def environment(self, proxy):
        return {**self.at.environment(), "AWS_ENDPOINT_URL": proxy.url, "AWS_MAX_ATTEMPTS": "30", "AWS_RETRY_MODE": "standard"}

    def holds(self, name, body):
        """What is there, looked at without the proxy."""
        same(self.plain.get_object(Bucket=self.bucket, Key=name)["Body"].read(), body, name)

    def ends(self, proxy, prefix, count):
        """Faults there were, all files are there, and no upload was given up."""
        assert all(proxy.counts[fault] for fault in ("request lost", "answer lost", "sent twice")), proxy.counts
        listed = self.plain.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        equal(sum(page["KeyCount"] for page in listed), count, "files")
        print(f"retried: {prefix}: {proxy.passed} requests, {dict(proxy.counts)}", flush=True)


def source(room, name, size=SIZE):
    body, path = content(name, size), room.folder / name.replace("/", "-")
    path.write_bytes(body)
    return body, path


@scenario("boto3: multipart uploads")
def boto(room):
    count = 200 if room.at.is_full else 24
    parts = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB, max_concurrency=3)
    with room.faults() as proxy:
        client = room.client(proxy.url)

        def upload(n):
            name = f"boto3/{n}"
            client.upload_fileobj(io.BytesIO(content(name, SIZE)), room.bucket, name, Config=parts)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(upload, range(count)))
        assert proxy.counts["sent late"], proxy.counts
    for n in range(count):
        room.holds(f"boto3/{n}", content(f"boto3/{n}", SIZE))
    room.ends(proxy, "boto3/", count)


@scenario("boto3: parts one by one, with and without checksums, and the same completion again")
def one_by_one(room):
    count = 2000 if room.at.is_full else 100
    with room.faults() as proxy:
        client = room.client(proxy.url)

        def upload(n):
            name, begin = f"small/{n}", {}
            if n % 3:
                begin = {"ChecksumAlgorithm": ["CRC32", "SHA256"][n % 2]}
            upload = client.create_multipart_upload(Bucket=room.bucket, Key=name, **begin)["UploadId"]
            key = {"Bucket": room.bucket, "Key": name, "UploadId": upload}
            put = client.upload_part(**key, PartNumber=1, Body=content(name, 30_000 + n))
            kept = {field: put[field] for field in put if field == "ETag" or field.startswith("Checksum") and field != "ChecksumType"}
            parts = {"Parts": [{"PartNumber": 1, **kept}]}
            done = [client.complete_multipart_upload(**key, MultipartUpload=parts)["ETag"] for _ in range(2)]
            equal(done[0], done[1], "the ETag of a second completion")

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(upload, range(count)))
    for n in range(count):
        room.holds(f"small/{n}", content(f"small/{n}", 30_000 + n))
    room.ends(proxy, "small/", count)


@scenario("aws s3 cp")
def awscli(room):
    config = room.folder / "config"
    config.write_text("[default]\ns3 =\n  multipart_threshold = 5MB\n  multipart_chunksize = 5MB\n")
    count = 20 if room.at.is_full else 4
    with room.faults() as proxy:
        aws = Program([f"{room.at.programs['awscli']}/aws"], {**room.environment(proxy), "AWS_CONFIG_FILE": str(config)})
        for n in range(count):
            name = f"awscli/{n} +"
            body, path = source(room, name)
            aws("s3", "cp", path, f"s3://{room.bucket}/{name}", "--no-progress")
            room.holds(name, body)
            path.unlink()
    room.ends(proxy, "awscli/", count)


@scenario("s5cmd cp and mv, of neighbours with a space and a plus")
def s5cmd(room):
    count = 40 if room.at.is_full else 8
    with room.faults() as proxy:
        s5cmd = Program([f"{room.at.programs['tools']}/s5cmd", "--endpoint-url", proxy.url, "-r", "20"], room.environment(proxy))
        for n in range(count):
            names = [f"s5cmd/{n} a", f"s5cmd/{n}+a"]
            bodies = []
            for name in names:
                body, path = source(room, name)
                s5cmd("cp", "--part-size", "5", path, f"s3://{room.bucket}/{name}")
                bodies.append(body)
                path.unlink()
            s5cmd("cp", f"s3://{room.bucket}/{names[0]}", f"s3://{room.bucket}/s5cmd/{n} copied")
            room.holds(f"s5cmd/{n} copied", bodies[0])
            for name, body in zip(names, bodies):
                room.holds(name, body)
    room.ends(proxy, "s5cmd/", 3 * count)


@scenario("rclone copy")
def rclone(room):
    count = 20 if room.at.is_full else 6
    tree = room.folder / "tree"
    tree.mkdir()
    for n in range(count):
        (tree / f"{n} +").write_bytes(content(f"rclone/{n}", SIZE))
    with room.faults() as proxy:
        settings = {
            "TYPE": "s3", "PROVIDER": "Other", "ACCESS_KEY_ID": room.at.access_key, "SECRET_ACCESS_KEY": room.at.secret_key,
            "REGION": room.at.region, "ENDPOINT": proxy.url,
        }  # fmt: skip
        environment = {**room.environment(proxy), **{f"RCLONE_CONFIG_ST_{name}": value for name, value in settings.items()}}
        options = ["--config", "/dev/null", "--retries", "1", "--low-level-retries", "30", "--s3-upload-cutoff", "5M", "--s3-chunk-size", "5M"]
        program = Program([f"{room.at.programs['tools']}/rclone", *options], environment)
        program("copy", tree, f"st:{room.bucket}/rclone")
        program("check", "--download", tree, f"st:{room.bucket}/rclone")
    for n in range(count):
        room.holds(f"rclone/{n} +", content(f"rclone/{n}", SIZE))
    room.ends(proxy, "rclone/", count)


if __name__ == "__main__":
    suite.main(Room(target()))
