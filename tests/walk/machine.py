"""A machine on which an operator works: a shell in its own network, on its own disk, and the node that was started there."""

import json
import os
import pathlib
import signal
import subprocess
import time

from harness import wait_until
from net import within

# A node that says nothing for so long is taken for dead.
READY_SECONDS_MAX = 120
READY = "ready; stop with Ctrl-C"
JOIN_LINE = "STOKER_JOIN_TOKEN="


class Machine:
    def __init__(self, net, name, disk, folder, more):
        self.net, self.name, self.disk, self.home = net, name, disk, disk.top
        self.space, self.address = net.space(name), net.address(name)
        self.bin = pathlib.Path(folder) / f"{name}.bin"
        self.bin.mkdir()
        self.log = pathlib.Path(folder) / f"{name}.log"
        self.process, self.dir, self.said = None, None, ""
        # What an operator has in the shell's profile. Lines are then pasted as they were printed.
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.home), "NO_COLOR": "1",
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"), "STOKER_UP_NAME": name, "STOKER_UP_S3": f"{self.address}:9000", **more,
        }  # fmt: skip

    def install(self, program):
        """As packages do it: a running program keeps the file that it was started from."""
        fresh = self.bin / "stoker.next"
        fresh.symlink_to(program)
        fresh.rename(self.bin / "stoker")

    @property
    def s3(self):
        return f"http://{self.address}:9000"

    # A shell

    def command(self, line):
        return within(self.space, ["bash", "-c", line])

    def sh(self, line, timeout=180, is_told=True):
        """A line in the shell of this machine; its exit code and all that it printed."""
        if is_told:
            tell(f"{self.name}$ {line}")
        done = subprocess.run(
            self.command(line), cwd=self.home, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
        )  # fmt: skip
        if is_told:
            tell(done.stdout.rstrip(), "  ")
        return done.returncode, done.stdout

    def ok(self, line, **more):
        code, said = self.sh(line, **more)
        assert code == 0, f"{self.name}: exit code {code}: {line}\n{said}"
        return said

    def ask(self, line):
        """What a command says in JSON, one value for each line; nothing if it fails."""
        code, said = self.sh(f"{line} --json --dir {self.dir} 2>/dev/null", is_told=False)
        try:
            return [json.loads(row) for row in said.splitlines()]
        except ValueError:
            return []

    # The node

    def start(self, line, dir):
        """Starts a node by a line; returns once it says that it is ready, with how long that took."""
        tell(f"{self.name}$ {line}")
        begun, before = time.monotonic(), self.log.stat().st_size if self.log.exists() else 0
        # `exec env`, so that the process is the node and not its shell.
        command = self.command(f"exec env {line}")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.home, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

        def words():
            return self.log.read_bytes()[before:].decode(errors="replace")

        try:
            wait_until(lambda: READY in words() or self.process.poll() is not None, f"{self.name} is ready", READY_SECONDS_MAX)
        finally:
            self.said = words()
        if READY not in self.said:
            raise AssertionError(f"{self.name}: {line}: exit code {self.process.returncode}\n{self.said}")
        self.dir = self.home / dir
        return time.monotonic() - begun

    def up(self):
        """The same node again, which remembers everything."""
        return self.start(f"stoker up --dir {self.dir.name}", self.dir.name)

    def refused(self, line):
        """A start that is to fail; what it said."""
        code, said = self.sh(line, timeout=READY_SECONDS_MAX)
        assert code == 1, f"{self.name}: exit code {code}: {line}\n{said}"
        return said

    @property
    def join_line(self):
        """The line for another machine, as this node has printed it."""
        lines = [line[line.index(JOIN_LINE) :] for line in self.said.splitlines() if JOIN_LINE in line]
        assert len(lines) == 1, f"{self.name} printed {len(lines)} lines to join by:\n{self.said}"
        return lines[0]

    def join(self, other):
        """Pastes the line that another machine printed; its directory is called as it says."""
        line = other.join_line
        return self.start(line, line.split("--dir ")[1].split()[0])

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def stop(self):
        """Ctrl-C of a service manager; how long it took."""
        begun = time.monotonic()
        tell(f"{self.name}$ kill -TERM {self.process.pid}")
        self.process.terminate()
        code = self.process.wait(timeout=60)
        assert code == 0, f"{self.name} stopped with exit code {code}:\n{self.last_words()}"
        return time.monotonic() - begun

    def kill(self):
        tell(f"{self.name}$ kill -KILL {self.process.pid}")
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.is_running():
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def last_words(self, lines=15):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


def tell(words, before=""):
    for line in words.splitlines():
        print(f"walk:   {before}{line}", flush=True)
