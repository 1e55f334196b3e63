"""A node with an NFS door, and its volume mounted: what an application is run on."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import threading

VOLUME = "files"
# A node or a mount that says nothing for so long is taken for dead.
READY_SECONDS_MAX = 120


class Rig:
    def __init__(self, stoker, folder, size, is_mounted=True):
        self.stoker, self.folder = str(stoker), pathlib.Path(folder)
        self.dir, self.mnt = self.folder / "node", self.folder / "mnt"
        # Beside the mount, on the file system of the machine.
        self.aside = self.folder / "aside"
        self.size, self.nfs_port, self.is_mounted = size, free_port(), is_mounted
        self.node = self.mounted = None

    def __enter__(self):
        self.mnt.mkdir()
        self.aside.mkdir()
        # Databases run as another user, who has to get here.
        for path in (self.folder, self.mnt, self.aside):
            path.chmod(0o755)
        self.up()
        self.call("volume", "create", VOLUME)
        if self.is_mounted:
            self.mount()
        return self

    def __exit__(self, *_):
        subprocess.run([self.stoker, "umount", "--lazy", str(self.mnt)], capture_output=True)
        for process in (self.mounted, self.node):
            if process:
                process.kill()
                process.wait()

    def up(self):
        nfs = f"127.0.0.1:{self.nfs_port}"
        command = [self.stoker, "up", "--json", "--dir", str(self.dir), "--size", self.size, "--memory", "512MiB"]
        command += ["--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--peers", "127.0.0.1:0"]
        command += ["--nfs", nfs, "--nfs-export", f"{VOLUME}:keep-root"]
        self.node = self.started(command, "node.log")
        json.loads(self.node.line)

    def mount(self, *args):
        command = [self.stoker, "mount", "-f", VOLUME, str(self.mnt), *args]
        self.mounted = self.started(command, "mount.log")
        assert self.mounted.line.startswith("mounted"), f"it is not mounted: {self.mounted.line!r}"

    def started(self, command, log):
        environment = {**os.environ, "STOKER_DIR": str(self.dir), "STOKER_LOG": "info"}
        with open(self.folder / log, "ab") as words:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, env=environment, text=True)
        watch = threading.Timer(READY_SECONDS_MAX, process.kill)
        watch.start()
        process.line = process.stdout.readline()
        watch.cancel()
        assert process.line, f"{command[1]} is not ready; it said:\n{self.last_words(log)}"
        return process

    def last_words(self, log, lines=20):
        return "\n".join((self.folder / log).read_text(errors="replace").splitlines()[-lines:])

    def call(self, *args):
        environment = {**os.environ, "STOKER_DIR": str(self.dir)}
        subprocess.run([self.stoker, *args], env=environment, check=True, capture_output=True, timeout=120)

    def kill_node(self):
        """SIGKILL, and it comes back at the same address."""
        self.node.kill()
        self.node.wait()
        self.up()

    def kill_mount(self):
        """SIGKILL of the mount process, and the volume is mounted again."""
        self.mounted.kill()
        self.mounted.wait()
        self.mount()

    def remount(self, *args):
        """Nothing is left in the memory of the kernel and of the process."""
        self.call("umount", str(self.mnt))
        assert self.mounted.wait(timeout=120) == 0, "the mount did not end well"
        self.mount(*args)

    def problem(self):
        """What a process that should run died of; none if all is well."""
        for name, process in (("node", self.node), ("mount", self.mounted)):
            if process.poll() is not None:
                return f"the {name} ended with {process.returncode}:\n{self.last_words(f'{name}.log')}"
        return None

    def sh(self, script, at=None, user=None, timeout=3600, **environment):
        """A shell script on the mount; its output. Whatever it started is ended with it."""
        command = ["bash", "-euo", "pipefail", "-c", script]
        if user:
            command = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]
        process = subprocess.Popen(
            command, cwd=at or self.mnt, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip
        try:
            words, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            words, _ = process.communicate()
            raise AssertionError(f"not done after {timeout} s: {script}\n{words[-4000:]}") from None
        assert process.returncode == 0, f"exit code {process.returncode}: {script}\n{words[-4000:]}"
        return words


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
