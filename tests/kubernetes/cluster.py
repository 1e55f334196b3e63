"""A Kubernetes of one machine: etcd, an API server, containerd and a kubelet, all below one folder.

No scheduler and no controllers: pods name their node, claims are bound by whoever makes them.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import tarfile
import time
import urllib.error
import urllib.request

NODE = "machine-1"
TOKEN = "kubernetes-test"
IMAGE = "docker.io/library/busybox:test"
SECONDS_MAX = 240
POLL_S = 0.2
# What a kubelet sets for the machine; it is put back.
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
GROUPS = pathlib.Path("/sys/fs/cgroup")


class Failed(Exception):
    """What went wrong."""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def within(what, is_so, seconds=SECONDS_MAX):
    """Waits for what has to come; gives what it is."""
    deadline = time.monotonic() + seconds
    while True:
        found = is_so()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failed(f"never: {what}")
        time.sleep(POLL_S)


class Cluster:
    def __init__(self, folder, programs):
        self.folder, self.programs = folder, programs
        self.processes = {}
        self.kubelet_root = folder / "kubelet"
        self.port, self.etcd_port, self.kubelet_port = free_port(), free_port(), free_port()
        self.sysctls = {name: pathlib.Path("/proc/sys", name).read_text() for name in SYSCTLS}
        self.tls = ssl.create_default_context()
        # Its certificate is one of a moment ago, on this machine.
        self.tls.check_hostname, self.tls.verify_mode = False, ssl.CERT_NONE

    def start(self, name, *command, env=None):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=self.folder,
            )  # fmt: skip

    def kill(self, name, how=signal.SIGKILL):
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(SECONDS_MAX)

    def end(self):
        for name in ("kubelet", "apiserver", "etcd", "containerd"):
            if name in self.processes:
                self.kill(name)
        for name, value in self.sysctls.items():
            pathlib.Path("/proc/sys", name).write_text(value)

    def up(self):
        self.start_etcd()
        self.start_apiserver()
        self.start_containerd()
        self.start_kubelet()
        within("a node that is ready", self.is_ready)

    def start_etcd(self):
        at, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{free_port()}"
        self.start(
            "etcd", self.programs["etcd"], "--data-dir", self.folder / "etcd", "--listen-client-urls", at, "--advertise-client-urls", at,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        within("etcd", lambda: self.answers(f"{at}/health"))

    def answers(self, url):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
        return False

    def start_apiserver(self):
        key, tokens = self.folder / "service.key", self.folder / "tokens.csv"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens.write_text(f"{TOKEN},admin,1,system:masters\n")
        self.start(
            "apiserver", self.programs["kube-apiserver"], f"--etcd-servers=http://127.0.0.1:{self.etcd_port}", f"--secure-port={self.port}",
            "--bind-address=127.0.0.1", f"--cert-dir={self.folder / 'certificates'}", f"--token-auth-file={tokens}",
            "--authorization-mode=AlwaysAllow", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/24",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}", "--service-account-issuer=https://test",
            "--disable-admission-plugins=ServiceAccount", "--allow-privileged=true",
        )  # fmt: skip
        within("the API server", lambda: self.ask("GET", "/readyz", is_json=False) == "ok")
        within("the namespace default", lambda: self.ask("GET", "/api/v1/namespaces/default"))

    def start_containerd(self):
        home = self.folder / "containerd"
        (home / "cni").mkdir(parents=True)
        # Pods use the machine's network; without a file here the node would not become ready.
        (home / "cni/10-none.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}))
        (home / "config.toml").write_text(f"""version = 2
root = "{home}/root"
state = "{home}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "{home}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{home}/cni"
    conf_dir = "{home}/cni"
""")
        self.start("containerd", self.programs["containerd"], "--config", home / "config.toml")
        self.ctr = [self.programs["ctr"], "--address", str(home / "containerd.sock"), "--namespace", "k8s.io"]
        within("containerd", lambda: subprocess.run([*self.ctr, "version"], capture_output=True, check=False).returncode == 0)
        done = subprocess.run([*self.ctr, "images", "import", self.image()], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"the image cannot be imported: {done.stderr}")

    def image(self):
        """An image of busybox alone; without a command it sleeps, as the container that holds a pod together does."""
        root, layer = self.folder / "image", self.folder / "layer.tar"
        (root / "bin").mkdir(parents=True)
        (root / "tmp").mkdir()
        busybox = root / "bin/busybox"
        busybox.write_bytes(pathlib.Path(self.programs["busybox"]).read_bytes())
        busybox.chmod(0o755)
        for name in ("sh", "dd", "sleep", "cat", "mkdir", "ls"):
            (root / "bin" / name).symlink_to("busybox")
        with tarfile.open(layer, "w") as out:
            out.add(root, arcname=".")
        config = {
            "architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.read_bytes()).hexdigest()}"]},
        }  # fmt: skip
        (self.folder / "config.json").write_text(json.dumps(config))
        (self.folder / "manifest.json").write_text(json.dumps([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]))
        with tarfile.open(self.folder / "image.tar", "w") as out:
            for name in ("manifest.json", "config.json", "layer.tar"):
                out.add(self.folder / name, arcname=name)
        return self.folder / "image.tar"

    def start_kubelet(self):
        root = self.kubelet_root
        if not root.exists():
            root.mkdir()
            # What the driver mounts has to be seen in containers.
            for command in (["mount", "--bind", root, root], ["mount", "--make-rshared", root]):
                subprocess.run(command, check=True)
        access = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }  # fmt: skip
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
            "address": "127.0.0.1", "port": self.kubelet_port, "healthzPort": 0, "cgroupDriver": "cgroupfs", "failSwapOn": False,
            "oomScoreAdj": 0, "makeIPTablesUtilChains": False, "featureGates": {"LocalStorageCapacityIsolation": False},
            "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
            "volumeStatsAggPeriod": "2s", "syncFrequency": "5s", "fileCheckFrequency": "5s", "cgroupRoot": "/stoker-test",
        }  # fmt: skip
        (self.folder / "kubeconfig").write_text(json.dumps(access))
        (self.folder / "kubelet.json").write_text(json.dumps(config))
        self.start(
            "kubelet", self.programs["kubelet"], f"--kubeconfig={self.folder / 'kubeconfig'}", f"--config={self.folder / 'kubelet.json'}",
            f"--root-dir={root}", f"--hostname-override={NODE}", "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.folder / 'containerd/containerd.sock'}", f"--cert-dir={self.folder / 'kubelet-pki'}",
            "--v=2",
        )  # fmt: skip

    def is_ready(self):
        node = self.ask("GET", f"/api/v1/nodes/{NODE}")
        return node and any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", []))

    def ask(self, verb, path, body=None, is_json=True, at=None):
        """One call of the API; nothing if what it asks for is not there."""
        request = urllib.request.Request(f"https://127.0.0.1:{at or self.port}{path}", method=verb)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/merge-patch+json" if verb == "PATCH" else "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.tls) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if verb == "GET":
                # It starts, most likely: whoever asks asks again.
                return None
            raise Failed(f"{verb} {path}: {error.code} {error.read().decode()[:500]}") from None
        except OSError:
            if verb == "GET":
                return None
            raise
        return json.loads(text) if is_json else text


def clear_groups():
    """Control groups of a kubelet that is gone."""
    for top in GROUPS.glob("*/stoker-test"):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def make_groups():
    for controller in GROUPS.iterdir():
        if (controller / "tasks").exists():
            (controller / "stoker-test").mkdir(exist_ok=True)
            if controller.name.startswith("cpuset"):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (controller / "stoker-test" / name).write_text((controller / name).read_text())
