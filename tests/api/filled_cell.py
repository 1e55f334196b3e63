"""A cell for the API and the console: `stoker up --nodes N` in a folder of its own, with files and a checkpoint set in it."""

import datetime
import hashlib
import hmac
import json
import os
import pathlib
import subprocess
import threading
import urllib.parse
import urllib.request


class Cell:
    def __init__(self, stoker, folder, nodes=3, more=()):
        self.stoker, self.folder = str(stoker), pathlib.Path(folder)
        self.command = [self.stoker, "up", "--json", "--nodes", str(nodes), "--dir", str(self.folder / "cell")]
        self.command += ["--size", "1GiB", "--memory", f"{nodes * 512}MiB", "--cores", "1", *more]
        self.process, self.nodes = None, []

    def __enter__(self):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
        with open(self.folder / "cell.log", "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
        # A cell that says nothing is ended, which ends the wait for its line.
        watch = threading.Timer(300, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        try:
            said = json.loads(line)
        except ValueError:
            self.stop()
            log = (self.folder / "cell.log").read_text(errors="replace")
            raise RuntimeError(f"`stoker up` is not ready; it said:\n{log[-4000:]}") from None
        self.nodes = said if isinstance(said, list) else [said]
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=90)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def run(self, *args):
        """A command of the program about the first node; what it printed."""
        command = [self.stoker, *args, "--dir", self.nodes[0]["dir"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def fill(self):
        """Some files, another volume, a published set and one that is open."""
        local = self.folder / "local"
        shards = local / "step-1000"
        shards.mkdir(parents=True)
        for rank in range(4):
            (shards / f"rank-{rank}.pt").write_bytes(os.urandom(3 << 20))
        for number in range(12):
            (local / f"shard-{number:03}.tar").write_bytes(os.urandom((number % 4 + 1) << 19))
        (local / "read me.txt").write_text("hello\n")
        for name in sorted(local.iterdir()):
            if name.is_file():
                self.run("put", str(name), f"data/train/{name.name}")
        for number in range(30):
            body = os.urandom(1 << 18)
            self.s3("PUT", f"data/by-s3/{number:03}.bin", body)
            if self.s3("GET", f"data/by-s3/{number:03}.bin") != body:
                raise RuntimeError("S3 gives other bytes than it got")
        self.run("volume", "create", "ckpt", "--quota", "10GiB")
        self.run("volume", "create", "scratch", "--drain", "never", "--class", "one")
        self.run("set", "put", "ckpt/step-1000/", str(shards))
        self.run("set", "begin", "ckpt/step-2000/", "--shards", "8", "--owner", "job-17")
        self.run("set", "add", "ckpt/step-2000/", str(shards / "rank-0.pt"), "--shard", "0")

    def s3(self, method, key, body=b""):
        """A signed request to the S3 door of the first node, for the plots: no client has to be installed for it."""
        ready = self.nodes[0]
        host = ready["s3"].removeprefix("http://")
        now = datetime.datetime.now(datetime.timezone.utc)
        day, stamp = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
        path, digest = "/" + urllib.parse.quote(key), hashlib.sha256(body).hexdigest()
        signed = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
        heads = "".join(f"{name}:{value}\n" for name, value in signed.items())
        request = "\n".join([method, path, "", heads, ";".join(signed), digest])
        scope = f"{day}/{ready['region']}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
        secret = ("AWS4" + ready["secret_key"]).encode()
        for part in (day, ready["region"], "s3", "aws4_request"):
            secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
        words = f"AWS4-HMAC-SHA256 Credential={ready['access_key']}/{scope}, SignedHeaders={';'.join(signed)}, Signature={signature}"
        headers = {**signed, "Authorization": words}
        asked = urllib.request.Request(f"{ready['s3']}{path}", data=body or None, method=method, headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.read()

    def get(self, path, node=0):
        """A page of the admin door, as whoever looks."""
        ready = self.nodes[node]
        request = urllib.request.Request(ready["admin"] + path, headers={"Authorization": f"Bearer {ready['view_token']}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()
