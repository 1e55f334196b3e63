"""The image: the same layers twice, and a container of it without rights that serves S3."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

from steps import Failed, Missing, hold, need, run, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS_MAX = 120
# Without CAP_SYS_RESOURCE the usual limits are refused, and crun wants one kind of control groups.
CONFIGURATION = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def check(program, folder, dist):
    del dist
    if os.geteuid() != 0:
        raise Missing("only root can build it like this")
    need("buildah", "podman", "runc")
    (folder / "containers.conf").write_text(CONFIGURATION)
    storage = folder / "storage"
    (folder / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{storage}"\nrunroot = "{folder / "run"}"\n')
    environment = dict(
        os.environ, CONTAINERS_CONF=str(folder / "containers.conf"), CONTAINERS_STORAGE_CONF=str(folder / "storage.conf"),
        SOURCE_DATE_EPOCH="1700000000",
    )  # fmt: skip
    try:
        layers = []
        for tag in ("stoker:one", "stoker:two"):
            run([ROOT / "deploy/image/build", "--binary", program, "--tag", tag], env=environment)
            layers.append(json.loads(run(["buildah", "inspect", "--format", "{{.OCIv1.RootFS.DiffIDs}}", tag], env=environment).replace("[", '["').replace("]", '"]').replace(" ", '", "')))
            # The store would otherwise take the second for the first.
        hold(layers[0] == layers[1], f"two builds differ: {layers}")
        size = int(run(["podman", "image", "inspect", "--format", "{{.Size}}", "stoker:one"], env=environment).split()[-1])
        say(f"image: {size >> 20} MiB, {len(layers[0])} layers")
        serves(folder, environment)
    finally:
        subprocess.run(["podman", "rm", "--all", "--force", "--time", "5"], env=environment, capture_output=True, check=False)
        shutil.rmtree(storage, ignore_errors=True)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def serves(folder, environment):
    data = folder / "data"
    data.mkdir()
    os.chown(data, 65532, 65532)
    port = free_port()

    def podman(*command, **options):
        return run(["podman", *command], env=environment, **options)

    podman(
        "run", "--detach", "--name", "node", "--network", "host", "--read-only", "--cap-drop", "all", "--volume", f"{data}:/data",
        "stoker:one", "up", "--dir", "/data", "--s3", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--size", "1GiB", "--memory", "256MiB",
    )  # fmt: skip
    deadline = time.monotonic() + SECONDS_MAX
    while subprocess.run(["podman", "healthcheck", "run", "node"], env=environment, capture_output=True, check=False).returncode != 0:
        state = podman("inspect", "--format", "{{.State.Status}}", "node").strip()
        if state == "exited" or time.monotonic() > deadline:
            raise Failed(f"the container is {state}:\n{podman('logs', 'node')}")
        time.sleep(0.5)
    said = podman("logs", "node")
    user = pathlib.Path(f"/proc/{podman('inspect', '--format', '{{.State.Pid}}', 'node').strip()}/status").read_text()
    hold("Uid:\t65532\t65532" in user and "CapEff:\t0000000000000000" in user, f"the container has rights:\n{user}")
    # In and out by another S3 client than our own.
    script = """
import configparser, os, sys
import boto3
keys = configparser.ConfigParser()
keys.read(sys.argv[2])
keys = keys[keys.sections()[0]]
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id=keys["aws_access_key_id"],
                  aws_secret_access_key=keys["aws_secret_access_key"])
body = os.urandom(9 << 20)
s3.create_bucket(Bucket="fromoutside")
s3.put_object(Bucket="fromoutside", Key="f", Body=body)
assert s3.get_object(Bucket="fromoutside", Key="f")["Body"].read() == body
"""
    sys.path.insert(0, str(ROOT / "tests/clients"))
    import tools

    try:
        python = tools.install(("boto3",))["boto3"] / "python"
    except tools.Missing as why:
        raise Missing(why) from None
    run([python, "-c", script, f"http://127.0.0.1:{port}", data / "credentials"])
    podman("stop", "--time", "60", "node")
    hold(podman("inspect", "--format", "{{.State.ExitCode}}", "node").strip() == "0", f"the container did not stop well:\n{said}")
