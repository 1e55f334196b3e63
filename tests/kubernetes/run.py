#!/usr/bin/env python3
"""The CSI driver below a real API server and a real kubelet: registered, staged, published, killed, unpublished.

  python3 tests/kubernetes/run.py --stoker target/release/stoker
  python3 tests/kubernetes/run.py --stoker ... --kills 20

register     the kubelet finds the driver by its socket, and the node gets its labels
pods         two pods of one claim: one writes with fsync, the other one reads
kills        the driver is killed and started while the pod writes: no error, no line lost, no container restarted
kubelet      the kubelet is killed and started; the pod goes on
mount dies   the process of the mount is killed: a pod with mount propagation sees its files again
inline       a volume of a pod: a hard size, gone with it
refused      a claim of another cluster's volume: the event says why
end          pods are deleted: nothing stays mounted, and the volume holds every line

Kubernetes 1.20 is built once from Debian's source (ten minutes of a core) and kept in the cache. Needs root, Debian and /dev/fuse.
Exit code: 0 passed, 1 something failed, 3 what it needs could not be had.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

# The checkout stays as it is.
sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import binaries  # noqa: E402
from cluster import IMAGE, NODE, Cluster, Failed, clear_groups, make_groups, within  # noqa: E402

NOT_HERE = 3
INSIDE = "STOKER_KUBERNETES_INSIDE"
DRIVER = "csi.stoker.dev"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
# Each line is durable before the next one; a failure ends the pod.
WRITER = (
    'i=0; while [ ! -e /data/stop ]; do echo $i | dd of=/data/log oflag=append conv=notrunc,fsync 2>/tmp/said || '
    '{ cat /tmp/said >/dev/termination-log; exit 1; }; i=$((i+1)); done; echo $i > /data/count'
)
# Ends well if the second file is refused for want of space.
FILLER = "dd if=/dev/zero of=/data/small bs=64k count=32 conv=fsync || exit 1; dd if=/dev/zero of=/data/large bs=64k count=1024 conv=fsync && exit 2; exit 0"


def say(text):
    print(f"kubernetes: {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=20, help="how often the driver is killed")
    parser.add_argument("--dir", help="where the folder of the run is made")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    args = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise binaries.Missing("only root can run a kubelet")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise binaries.Missing("/dev/fuse cannot be used")
        if not (pathlib.Path("/sys/fs/cgroup/memory") / "tasks").exists():
            raise binaries.Missing("Kubernetes 1.20 wants control groups of version 1")
        programs = binaries.find(say)
    except binaries.Missing as why:
        say(f"cannot run: {why}")
        return NOT_HERE
    if INSIDE not in os.environ:
        return apart()
    started = time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-kubernetes-", dir=args.dir))
    run = Run(args, folder, programs)
    try:
        run.all()
        say(f"passed, {time.monotonic() - started:.0f} s")
        return 0
    except Failed as why:
        say(f"FAILED: {why}")
        return 1
    finally:
        run.end()
        if args.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def apart():
    """All of it in mounts and processes of its own: what is left when it ends goes with them."""
    command = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    make_groups()
    try:
        return subprocess.run([*command, sys.executable, "-B", *sys.argv], env={**os.environ, INSIDE: "1"}, check=False).returncode
    finally:
        clear_groups()


class Run:
    def __init__(self, args, folder, programs):
        self.args, self.folder = args, folder
        self.stoker = str(args.stoker.resolve())
        self.cluster = Cluster(folder, programs)
        self.api = self.cluster.ask

    def all(self):
        self.start_node()
        self.cluster.up()
        for step in (self.register, self.pods, self.kills, self.kubelet, self.mount_dies, self.inline, self.refused, self.finish):
            begun = time.monotonic()
            more = step() or ""
            say(f"{step.__name__.replace('_', ' ')}: ok, {time.monotonic() - begun:.1f} s{more}")

    def start_node(self):
        self.cluster.start("stoker", self.stoker, "up", "--dir", self.folder / "node", "--size", "1GiB", "--memory", "256MiB",
                           "--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0")  # fmt: skip
        within("the node", lambda: self.call("status", check=False).returncode == 0)
        self.call("volume", "create", "shared")

    def call(self, *args, check=True):
        done = subprocess.run([self.stoker, *args, "--dir", str(self.folder / "node")], capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise Failed(f"stoker {' '.join(args)}: {done.stderr}")
        return done

    def start_driver(self):
        root = self.cluster.kubelet_root
        self.cluster.start(
            "driver", self.stoker, "csi", "node", "--endpoint", f"unix://{root}/plugins/{DRIVER}/csi.sock", "--node-dir", self.folder / "node",
            "--state", self.folder / "state", "--node-id", NODE, "--register", root / "plugins_registry",
        )  # fmt: skip

    def is_registered(self):
        found = self.api("GET", f"/apis/storage.k8s.io/v1/csinodes/{NODE}")
        return [one for one in (found or {}).get("spec", {}).get("drivers") or [] if one["name"] == DRIVER]

    def register(self):
        # The object as the chart has it.
        plain = (ROOT / "deploy/kubernetes/stoker.yaml").read_text().split("\n---\n")
        (wanted,) = [part for part in plain if "\nkind: CSIDriver\n" in part]
        applied = subprocess.run(
            [self.cluster.programs["kubectl"], "--kubeconfig", self.folder / "kubeconfig", "apply", "--validate=false", "--filename=-"],
            input=wanted, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if applied.returncode != 0:
            raise Failed(f"the CSIDriver of the chart is refused: {applied.stderr}")
        self.start_driver()
        (driver,) = within("the driver is registered", self.is_registered)
        if driver["nodeID"] != NODE or f"{DRIVER}/cluster" not in driver["topologyKeys"] or driver["allocatable"]["count"] != 128:
            raise Failed(f"the kubelet knows another driver: {driver}")
        node = self.api("GET", f"/api/v1/nodes/{NODE}")
        if node["metadata"]["labels"].get(f"{DRIVER}/nvme-scratch") != "true":
            raise Failed(f"the node has no labels of the driver: {node['metadata']['labels']}")

    def claim(self, name, handle, **more):
        """A claim and its volume, bound as a controller would."""
        modes = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        size = {"storage": "1Gi"}
        claim = self.api("POST", CLAIMS, {
            "metadata": {"name": name}, "spec": {**modes, "volumeName": name, "resources": {"requests": size}},
        })  # fmt: skip
        reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name, "uid": claim["metadata"]["uid"]}
        self.api("POST", "/api/v1/persistentvolumes", {
            "metadata": {"name": name},
            "spec": {**modes, "capacity": size, "claimRef": reference, "persistentVolumeReclaimPolicy": "Retain",
                     "csi": {"driver": DRIVER, "volumeHandle": handle}, **more},
        })  # fmt: skip
        self.api("PATCH", f"{CLAIMS}/{name}/status", {"status": {"phase": "Bound", **modes, "capacity": size}})

    def pod(self, name, command, volume, read_only=False, propagation=None):
        mount = {"name": "data", "mountPath": "/data", "readOnly": read_only}
        if propagation:
            mount["mountPropagation"] = propagation
        self.api("POST", PODS, {
            "metadata": {"name": name},
            "spec": {
                "nodeName": NODE, "hostNetwork": True, "restartPolicy": "Never", "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", command],
                                "volumeMounts": [mount]}],
                "volumes": [{"name": "data", **volume}],
            },
        })  # fmt: skip

    def phase(self, name):
        pod = self.api("GET", f"{PODS}/{name}")
        return pod["status"]["phase"] if pod else None

    def runs(self, name):
        """The container of a pod, which must not have been started anew."""
        pod = self.api("GET", f"{PODS}/{name}")
        state = (pod["status"].get("containerStatuses") or [{}])[0]
        if pod["status"]["phase"] != "Running" or state["restartCount"] != 0:
            raise Failed(f"{name} does not run any more: {json.dumps(state)}")
        return state["containerID"]

    def lines(self):
        return self.call("get", "shared/log", "-", check=False).stdout.splitlines()

    def grows(self, more=10):
        """Until the writer has written that much more."""
        goal = len(self.lines()) + more
        within("the writer goes on", lambda: self.runs("writer") and len(self.lines()) >= goal)

    def pods(self):
        self.claim("shared", "shared")
        claim = {"persistentVolumeClaim": {"claimName": "shared"}}
        self.pod("writer", WRITER, claim)
        within("the writer runs", lambda: self.phase("writer") == "Running")
        self.grows()
        reader = "while [ ! -s /data/log ]; do sleep 1; done; echo x > /data/forbidden && exit 1; read first < /data/log; [ $first = 0 ]"
        self.pod("reader", reader, claim, read_only=True)
        within("the reader is done", lambda: self.phase("reader") in ("Succeeded", "Failed"))
        if self.phase("reader") != "Succeeded":
            raise Failed("the reader saw something else, or could write")

    def kills(self):
        container, before = self.runs("writer"), len(self.lines())
        for _ in range(self.args.kills):
            self.cluster.kill("driver")
            self.start_driver()
            self.grows(5)
        within("the driver is registered again", self.is_registered)
        if self.runs("writer") != container:
            raise Failed("the container of the writer is another one")
        return f"; {self.args.kills} kills, {len(self.lines()) - before} lines meanwhile"

    def kubelet(self):
        container = self.runs("writer")
        self.cluster.kill("kubelet")
        self.grows()
        self.cluster.start_kubelet()
        within("a node that is ready", self.cluster.is_ready)
        self.grows()
        if self.runs("writer") != container:
            raise Failed("the container of the writer is another one")

    def mount_dies(self):
        self.call("volume", "create", "second")
        self.claim("second", "second")
        # What is on the machine's disk below a mount that is gone must never be written to.
        look = 'echo before > /data/file; while [ ! -e /data/end ]; do echo x > "/data/$(cat /data/file)" 2>/dev/null; sleep 1; done; cat /data/file | { read f; [ $f = before ]; }'
        self.pod("looker", look, {"persistentVolumeClaim": {"claimName": "second"}}, propagation="HostToContainer")
        within("the pod has written", lambda: "before" in self.call("get", "second/file", "-", check=False).stdout)
        (pid,) = [pid for pid, words in processes() if words[1:2] == ["mount"] and "second" in words]
        os.kill(pid, 9)
        within("the volume is mounted again", lambda: [pid for pid, words in processes() if words[1:2] == ["mount"] and "second" in words])
        ended = self.folder / "end"
        ended.write_text("")
        self.call("put", str(ended), "second/end")
        within("the pod has seen its files", lambda: self.phase("looker") in ("Succeeded", "Failed"))
        if self.phase("looker") != "Succeeded":
            raise Failed("the pod does not see its files again")

    def inline(self):
        self.pod("inline", FILLER, {"csi": {"driver": DRIVER, "volumeAttributes": {"size": "8Mi"}}})
        within("the pod has filled its volume", lambda: self.phase("inline") in ("Succeeded", "Failed"))
        if self.phase("inline") != "Succeeded":
            raise Failed(f"the inline volume: {self.api('GET', f'{PODS}/inline')['status']}")
        self.delete("inline")
        within("the inline volume is gone", lambda: "eph-" not in self.call("volume", "ls").stdout)

    def refused(self):
        self.claim("foreign", "0badc1u5/shared")
        self.pod("foreign", "true", {"persistentVolumeClaim": {"claimName": "foreign"}})
        within("an event that says why", lambda: any("there is no volume" in one for one in self.events("foreign")))
        self.delete("foreign")

    def events(self, pod):
        found = self.api("GET", f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={pod}") or {"items": []}
        return [one["message"] for one in found["items"]]

    def delete(self, pod):
        self.api("DELETE", f"{PODS}/{pod}")
        within(f"{pod} is gone", lambda: self.api("GET", f"{PODS}/{pod}") is None)

    def finish(self):
        stop = self.folder / "stop"
        stop.write_text("")
        self.call("put", str(stop), "shared/stop")
        within("the writer ends", lambda: self.phase("writer") in ("Succeeded", "Failed"))
        if self.phase("writer") != "Succeeded":
            raise Failed(f"the writer: {self.api('GET', f'{PODS}/writer')['status']}")
        for pod in ("writer", "reader", "looker"):
            self.delete(pod)
        root = str(self.cluster.kubelet_root)
        within("nothing is mounted any more", lambda: not [line for line in mounts() if line.startswith(f"{root}/")])
        if list((self.folder / "state/mounts").iterdir()):
            raise Failed("the driver thinks that something is mounted")
        count = int(self.call("get", "shared/count", "-").stdout)
        if self.lines() != [str(number) for number in range(count)]:
            raise Failed(f"the volume holds {len(self.lines())} lines, and {count} were written")
        return f"; {count} lines with fsync, all there"

    def end(self):
        if self.args.keep:
            events = self.api("GET", "/api/v1/events") or {"items": []}
            (self.folder / "events.log").write_text("\n".join(f"{one['involvedObject'].get('name')}: {one['message']}" for one in events["items"]))
        for name in ("driver", "kubelet", "containerd", "stoker"):
            if name in self.cluster.processes:
                self.cluster.kill(name)
        self.cluster.end()
        for path in sorted(mounts(), reverse=True):
            if path.startswith(str(self.folder)):
                subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)


def mounts():
    return [line.split(" ")[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]


def processes():
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue


if __name__ == "__main__":
    sys.exit(main())
