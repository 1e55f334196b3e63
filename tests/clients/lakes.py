"""Lakes to drain to: a folder, SeaweedFS, Garage. All can be read without Stoker, which is the point of them."""

import json
import os
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

BUCKET = "lake"
# In the form that Garage demands.
ACCESS_KEY, SECRET_KEY = "GK" + "5709" * 6, "5709be9c" * 8


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


class Server:
    """An S3 server that is started for a lake. A child says how, in `start`."""

    name, region = "", "us-east-1"

    def __init__(self, program, folder):
        self.program, self.folder = str(program), pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.process = None

    def __enter__(self):
        command, environment = self.start()
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
            )
        end = time.monotonic() + 60
        while not self.answers():
            if time.monotonic() > end or self.process.poll() is not None:
                self.__exit__()
                raise RuntimeError(f"{self.name} is not ready: {(self.folder / 'log').read_text()[-800:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def answers(self):
        try:
            urllib.request.urlopen(self.endpoint, timeout=5)
            return True
        except urllib.error.HTTPError:
            return True  # it refuses us, so it is there
        except OSError:
            return False

    def environment(self):
        """What tells Stoker how to reach it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def fields(self):
        return {
            "kind": "s3", "endpoint": self.endpoint, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY,
            "region": self.region, "bucket": BUCKET, "prefix": "tier0/",
        }  # fmt: skip

    def url(self):
        return f"s3://{BUCKET}/tier0"


class SeaweedFs(Server):
    name = "seaweedfs"

    def start(self):
        identity = {
            "name": "lake",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (self.folder / "data").mkdir()
        command = [self.program, "server", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += ["-s3", f"-s3.port={self.port}", f"-s3.config={self.folder / 's3.json'}", "-s3.iam=false"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.port.grpc={free_port()}"]
        command += ["-master.volumeSizeLimitMB=1024", "-volume.max=0"]
        ports = {part: free_port() for part in ("master", "volume", "filer")}
        for part, port in ports.items():
            command += [f"-{part}.port={port}", f"-{part}.port.grpc={free_port()}"]
        self.master = f"http://127.0.0.1:{ports['master']}"
        return command, {}

    def vacuum(self):
        """Gives the room of deleted objects back; by itself the server does so every quarter of an hour."""
        with urllib.request.urlopen(f"{self.master}/vol/vacuum?garbageThreshold=0.01", timeout=600) as answer:
            answer.read()


class Garage(Server):
    name, region = "garage", "garage"

    def start(self):
        rpc, admin = free_port(), free_port()
        config = self.folder / "garage.toml"
        config.write_text(
            f'metadata_dir = "{self.folder}/meta"\ndata_dir = "{self.folder}/data"\ndb_engine = "lmdb"\n'
            f'replication_factor = 1\nrpc_bind_addr = "127.0.0.1:{rpc}"\nrpc_public_addr = "127.0.0.1:{rpc}"\n'
            f'rpc_secret = "{"0e" * 32}"\n[s3_api]\ns3_region = "{self.region}"\n'
            f'api_bind_addr = "127.0.0.1:{self.port}"\n[admin]\napi_bind_addr = "127.0.0.1:{admin}"\n'
        )
        environment = {
            "GARAGE_DEFAULT_ACCESS_KEY": ACCESS_KEY,
            "GARAGE_DEFAULT_SECRET_KEY": SECRET_KEY,
            "GARAGE_DEFAULT_BUCKET": BUCKET,
        }
        return [self.program, "-c", str(config), "server", "--single-node", "--default-bucket"], environment
