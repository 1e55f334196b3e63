#!/usr/bin/env python3
"""A file that is larger than the ring, through every door, at the rate of the lake.

  python3 tests/large/run.py --stoker target/release/stoker                       3 GiB through 256 MiB
  python3 tests/large/run.py --stoker ... --size 24GiB --ring 2GiB                 as large as you like
  python3 tests/large/run.py --stoker ... --ways fuse,python --lake seaweedfs      some doors; a real S3 server as the lake

Each way writes the same bytes, from a pipe: by boto3 (multipart), `aws s3 cp`, a mount, and the Python package. The figure beside it is
that of the lake itself in the same run: a file that is written there and synced, or the same client on the S3 server. Then the file is read
back and compared, waited for until it has its own key in the lake, and removed. At last a write is cut in the middle by `kill -9` of the node:
nothing of it may be visible, and nothing may be left in the lake. Says the ratios; --bar 0.8 fails below it.
Exit code: 0 passed, 1 something failed, 3 what it needs could not be had.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

# The checkout stays as it is.
sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "clients"))

import tools  # noqa: E402
from lakes import SeaweedFs  # noqa: E402
from node import Node  # noqa: E402

NOT_HERE = 3
FEED = [sys.executable, str(HERE / "feed.py")]
WAYS = ("boto3", "awscli", "fuse", "python")
VOLUME = "data"
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
# What a program that hangs may take; a slow one is slow.
SECONDS_MAX = 7200


def bytes_of(text):
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    return int(text)


class Large:
    def __init__(self, args, folder, programs, server):
        self.args, self.folder, self.programs, self.server = args, folder, programs, server
        self.size = args.size
        self.lake = folder / "lake"
        self.environment = dict(os.environ, **(server.environment() if server else {}))
        self.node = None

    def __enter__(self):
        self.lake.mkdir(exist_ok=True)
        url = self.server.url() if self.server else f"file://{self.lake}"
        more = ["--lake", url, "--memory", self.args.memory, "--peers", "127.0.0.1:0"]
        self.node = Node(self.args.stoker, self.folder, size=self.args.ring, args=more, environment=self.environment)
        self.node.__enter__()
        ready = self.node.ready
        self.s3 = dict(
            os.environ, AWS_ACCESS_KEY_ID=ready["access_key"], AWS_SECRET_ACCESS_KEY=ready["secret_key"],
            AWS_REGION="us-east-1", AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=endpoint_of(ready), AWS_EC2_METADATA_DISABLED="true",
        )  # fmt: skip
        return self

    def __exit__(self, *_):
        self.node.process.kill()
        self.node.process.wait()

    def stoker(self, *args, **options):
        environment = dict(os.environ, STOKER_DIR=str(self.node.dir))
        return subprocess.run([str(self.args.stoker), *args], env=environment, check=True, timeout=SECONDS_MAX, **options)

    # What writes stdin to a name, as a command with its environment.

    def boto3(self, name, environment, bucket):
        script = (
            "import sys, boto3; from boto3.s3.transfer import TransferConfig as T;"
            "boto3.client('s3').upload_fileobj(sys.stdin.buffer, sys.argv[1], sys.argv[2], Config=T(multipart_chunksize=16 << 20))"
        )
        return [f"{self.programs['boto3']}/python", "-c", script, bucket, name], environment

    def awscli(self, name, environment, bucket):
        command = [f"{self.programs['awscli']}/aws", "s3", "cp", "--quiet", "--expected-size", str(self.size), "-"]
        return [*command, f"s3://{bucket}/{name}"], environment

    def fuse(self, name, *_):
        return ["dd", f"of={self.folder}/mnt/{name}", "bs=4M", "iflag=fullblock", "conv=fsync", "status=none"], os.environ

    def python(self, name, *_):
        script = (
            "import sys, stoker; store = stoker.connect();\n"
            "with store.open(sys.argv[1], 'wb') as file:\n"
            "    while piece := sys.stdin.buffer.read(4 << 20): file.write(piece)"
        )
        environment = dict(os.environ, STOKER_DIR=str(self.node.dir), PYTHONPATH=str(self.package()), PYTHONDONTWRITEBYTECODE="1")
        return [f"{self.programs['python-quick']}/python", "-c", script, f"{VOLUME}/{name}"], environment

    def package(self):
        place = self.folder / "package"
        if not place.is_dir():
            shutil.copytree(ROOT / "python" / "stoker", place / "stoker", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            shutil.copy(self.args.stoker.parent / "lib_stoker.so", place / "stoker" / "_stoker.abi3.so")
        return place

    def timed(self, command, environment):
        """Seconds that the command takes for all bytes."""
        started = time.monotonic()
        feed = subprocess.Popen([*FEED, "write", str(self.size)], stdout=subprocess.PIPE)
        done = subprocess.run(command, stdin=feed.stdout, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX)
        took = time.monotonic() - started
        feed.stdout.close()
        feed.wait()
        assert done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stdout.decode(errors='replace')[-2000:]}"
        return took

    def raw(self, way):
        """Seconds of the lake itself."""
        if self.server:
            kind = way if way in ("boto3", "awscli") else "boto3"
            command, environment = getattr(self, kind)("raw", self.environment, self.server.fields()["bucket"])
            took = self.timed(command, environment)
            boto3 = [f"{self.programs['boto3']}/python", "-c", "import sys, boto3; boto3.client('s3').delete_object(Bucket=sys.argv[1], Key='raw')"]
            subprocess.run([*boto3, self.server.fields()["bucket"]], env=self.environment, check=True)
            self.server.vacuum()
            return took
        place = self.folder / "raw"
        took = self.timed(["dd", f"of={place}", "bs=4M", "iflag=fullblock", "conv=fsync", "status=none"], os.environ)
        place.unlink()
        return took

    def mounted(self):
        (self.folder / "mnt").mkdir(exist_ok=True)
        environment = dict(os.environ, STOKER_DIR=str(self.node.dir))
        mount = subprocess.Popen([str(self.args.stoker), "mount", "-f", VOLUME, f"{self.folder}/mnt"], env=environment, stdout=subprocess.PIPE, text=True)
        assert mount.stdout.readline().startswith("mounted"), "it is not mounted"
        return mount

    def run(self, way):
        mount = self.mounted() if way == "fuse" else None
        try:
            raw, took = [], []
            for _ in range(self.args.rounds):
                raw.append(self.raw(way))
                took.append(self.timed(*getattr(self, way)(way, self.s3, VOLUME)))
                self.compared(way)
                self.stoker("wait", f"{VOLUME}/{way}", capture_output=True)
                self.stoker("rm", f"{VOLUME}/{way}", capture_output=True)
                self.emptied()
        finally:
            if mount:
                self.stoker("umount", f"{self.folder}/mnt", capture_output=True)
                mount.wait(timeout=60)
        rate = lambda seconds: self.size / (1 << 20) / seconds  # noqa: E731
        ratio = min(raw) / min(took)
        print(f"large: {way}: {rate(min(took)):.0f} MiB/s, the lake itself {rate(min(raw)):.0f} MiB/s, ratio {ratio:.2f}", flush=True)
        return ratio

    def compared(self, name):
        get = subprocess.Popen([str(self.args.stoker), "get", f"{VOLUME}/{name}", "-"], env=dict(os.environ, STOKER_DIR=str(self.node.dir)), stdout=subprocess.PIPE)
        checked = subprocess.run([*FEED, "check", str(self.size)], stdin=get.stdout, stderr=subprocess.PIPE, text=True, timeout=SECONDS_MAX)
        get.stdout.close()
        get.wait()
        assert checked.returncode == 0, f"{name}: {checked.stderr}"

    def emptied(self):
        """Nothing of ours is left in the lake."""
        end, left = time.monotonic() + 300, None
        while time.monotonic() < end:
            left = self.left()
            if not left:
                if self.server:
                    self.server.vacuum()
                return
            time.sleep(0.5)
        raise AssertionError(f"left in the lake: {left[:10]}")

    def left(self):
        if self.server:
            script = (
                "import sys, json, boto3; s3 = boto3.client('s3'); b = sys.argv[1];"
                "print(json.dumps([o['Key'] for o in s3.list_objects_v2(Bucket=b).get('Contents', [])] +"
                " [u['Key'] + ' (upload)' for u in s3.list_multipart_uploads(Bucket=b).get('Uploads', [])]))"
            )
            command = [f"{self.programs['boto3']}/python", "-c", script, self.server.fields()["bucket"]]
            told = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, check=True, text=True)
            return [key for key in json.loads(told.stdout) if not is_ours(key)]
        files = [path.relative_to(self.lake) for path in self.lake.rglob("*") if path.is_file()]
        return [str(path) for path in files if not is_ours(str(path))]

    def cut(self, way):
        """The node is killed in the middle of a write."""
        mount = self.mounted() if way == "fuse" else None
        command, environment = getattr(self, way)("cut", self.s3, VOLUME)
        feed = subprocess.Popen([*FEED, "write", str(self.size)], stdout=subprocess.PIPE)
        client = subprocess.Popen(command, stdin=feed.stdout, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        feed.stdout.close()
        self.until_half()
        self.node.process.kill()
        self.node.process.wait()
        os.killpg(client.pid, 9)
        if mount:
            # It waits for the node, and who writes waits for it, even when it is killed.
            mount.kill()
            mount.wait()
            subprocess.run(["umount", "-l", f"{self.folder}/mnt"], check=True)
        client.wait()
        feed.kill()
        feed.wait()
        self.__enter__()
        listed = self.stoker("ls", "--json", VOLUME, capture_output=True, text=True).stdout
        if way == "fuse":
            # What a mount published before the kill is a file that was not finished, as on a disk.
            subprocess.run([str(self.args.stoker), "rm", f"{VOLUME}/cut"], env=dict(os.environ, STOKER_DIR=str(self.node.dir)), capture_output=True)
        else:
            assert '"cut"' not in listed, f"{way}: a write that was cut is visible: {listed}"
        if way in ("boto3", "awscli"):
            self.abort_uploads()
        self.emptied()
        print(f"large: {way}: killed in the middle: nothing is visible, nothing is left in the lake", flush=True)

    def until_half(self):
        """So much went to the lake that the write is beyond the ring."""
        end, before = time.monotonic() + SECONDS_MAX, self.spilled()
        while time.monotonic() < end:
            if self.spilled() >= before + self.size // 4:
                return
            time.sleep(0.2)
        raise AssertionError("nothing went to the lake while it was written")

    def spilled(self):
        """Bytes that went to the lake before their file was published, by the node's own count."""
        ready = self.node.ready
        request = urllib.request.Request(f"{ready['admin'].rstrip('/')}/metrics", headers={"Authorization": f"Bearer {ready['token']}"})
        with urllib.request.urlopen(request, timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if "spilled_bytes_total" in line and not line.startswith("#"))

    def abort_uploads(self):
        """An S3 client that was killed leaves its upload to whoever cleans up, as everywhere."""
        script = (
            "import sys, boto3; s3 = boto3.client('s3')\n"
            "for u in s3.list_multipart_uploads(Bucket=sys.argv[1]).get('Uploads', []):\n"
            "    s3.abort_multipart_upload(Bucket=sys.argv[1], Key=u['Key'], UploadId=u['UploadId'])"
        )
        subprocess.run([f"{self.programs['boto3']}/python", "-c", script, VOLUME], env=self.s3, check=True)


def is_ours(key):
    """Names and locks of the lake itself, which stay."""
    return any(part in key for part in (".stoker-tmp/lock", ".stoker-tmp/session-", ".stoker-cluster", ".stoker-meta")) or key.endswith(".stoker")


def endpoint_of(ready):
    value = ready["s3"]
    return value[0] if isinstance(value, list) else value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program; lib_stoker.so lies beside it")
    parser.add_argument("--size", type=bytes_of, default=3 << 30, help="of the file")
    parser.add_argument("--ring", default="256MiB", help="size of the ring")
    parser.add_argument("--memory", default="512MiB", help="of the node; a sixteenth of it is for bytes on their way to the lake")
    parser.add_argument("--ways", default=",".join(WAYS), help="comma-separated")
    parser.add_argument("--lake", choices=("folder", "seaweedfs"), default="folder")
    parser.add_argument("--rounds", type=int, default=1, help="of each way; the best of each counts")
    parser.add_argument("--bar", type=float, default=0.0, help="the least ratio")
    parser.add_argument("--no-cut", action="store_true", help="without the kill")
    parser.add_argument("--dir", default=None, help="where to make the folder of the run")
    args = parser.parse_args()
    args.stoker = args.stoker.resolve()
    ways = args.ways.split(",")
    try:
        programs = tools.install(("boto3", "awscli", "tools"))
        programs.update(tools.install(("python-quick",), ROOT / "python" / "tests" / "requirements"))
    except tools.Missing as why:
        print(f"large: {why}", file=sys.stderr)
        return NOT_HERE
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-large-", dir=args.dir))
    server, ratios = None, {}
    try:
        if args.lake == "seaweedfs":
            server = SeaweedFs(f"{programs['tools']}/weed", folder / "seaweedfs").__enter__()
            command = [f"{programs['awscli']}/aws", "s3", "mb", f"s3://{server.fields()['bucket']}"]
            subprocess.run(command, env={**os.environ, **server.environment()}, capture_output=True)
        with Large(args, folder, programs, server) as large:
            for way in ways:
                ratios[way] = large.run(way)
            for way in [] if args.no_cut else ways:
                large.cut(way)
    except AssertionError as why:
        print(f"large: FAILED: {why}", flush=True)
        return 1
    finally:
        if server:
            server.__exit__()
        shutil.rmtree(folder, ignore_errors=True)
    below = [way for way, ratio in ratios.items() if ratio < args.bar]
    print(f"large: {'FAILED: below ' + str(args.bar) + ': ' + ', '.join(below) if below else 'passed'}", flush=True)
    return 1 if below else 0


if __name__ == "__main__":
    # Whoever ends this early wants its node, its server and its folder ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
