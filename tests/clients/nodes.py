"""A cell under test: real nodes on addresses of the loopback network, which are stopped, killed and started one by one."""

import json
import pathlib
import random
import signal
import socket
import subprocess
import time
import urllib.request

from harness import wait_until
from node import Node

NAME = "cell.test"
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
# Below the ports that systems give to outgoing connections: one of those could hold the port of a node that is down.
PORTS = range(20_000, 32_000)


class Member(Node):
    """One node, which gets its ports again whenever it starts."""

    def __init__(self, stoker, folder, name, address, ports, more):
        place = pathlib.Path(folder) / name
        place.mkdir()
        super().__init__(stoker, place)
        s3, admin, peers = (f"{address}:{port}" for port in ports)
        self.name, self.address = name, address
        self.doors = ["--s3", s3, "--admin", admin, "--peers", peers, "--name", name]
        self.doors += ["--dir", str(self.dir), "--json", *more]
        self.command = None

    def start(self, cluster=None):
        """Starts it: as a new member of a cluster if one is given, and as what it is otherwise."""
        verb = ["join", cluster["peers"], "--token-file", self.token_file(cluster)] if cluster else ["up"]
        self.command = [self.stoker, *verb, *self.doors]
        begun = time.monotonic()
        self.__enter__()
        return time.monotonic() - begun

    def token_file(self, cluster):
        """A file with a token for one more node of that cluster."""
        create = [self.stoker, "join-token", "create", "--dir", cluster["dir"]]
        file = pathlib.Path(self.dir).with_name(f"{self.name}.join-token")
        file.write_text(subprocess.run(create, check=True, capture_output=True, text=True).stdout)
        return str(file)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def kill_at_work(self):
        """Kills it while it owes a client an answer: it is held still for a look at its S3 door, again and again."""

        def is_caught():
            self.process.send_signal(signal.SIGSTOP)
            if self.owes_answer():
                return True
            # The others may wait for it, so it cannot be held until a request comes.
            self.process.send_signal(signal.SIGCONT)
            return False

        wait_until(is_caught, f"a request waits at {self.name}")
        self.kill()

    def owes_answer(self):
        host, port = self.s3.removeprefix("http://").split(":")
        local = f"{socket.inet_aton(host)[::-1].hex()}:{int(port):04x}".upper()
        rows = [row.split() for row in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # Established, and with bytes that were not read yet.
        return any(row[1] == local and row[3] == "01" and not row[4].endswith(":00000000") for row in rows)

    @property
    def s3(self):
        """Its own door, not that of the name which leads to all."""
        return self.ready["s3"]

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.ready['admin']}/readyz", timeout=30) as answer:
                return answer.status == 200
        except OSError:
            return False

    def ask(self, *args):
        """What a command says about this node, in JSON; none if it does not answer."""
        command = [self.stoker, *args, "--json", "--dir", str(self.dir)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None

    def cannot_stop(self):
        """Why it should not stop now; nothing if it can."""
        command = [self.stoker, "node", "can-stop", "--dir", str(self.dir)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return None if done.returncode == 0 else done.stdout + done.stderr


class Cell:
    """Three nodes with one lake; the first makes the cluster and keeps its catalog."""

    def __init__(self, stoker, folder):
        folder = pathlib.Path(folder)
        lake = folder / "lake"
        lake.mkdir(parents=True)
        ports = free_ports(3)
        more = ["--lake", str(lake), "--size", "1GiB", "--memory", "512MiB", "--grace", "3s", "--cores", "1"]
        self.nodes = [
            Member(stoker, folder, f"node-{at}", address, ports, more) for at, address in enumerate(ADDRESSES, 1)
        ]
        self.s3 = f"http://{NAME}:{ports[0]}"

    def __enter__(self):
        try:
            self.nodes[0].start()
            for node in self.nodes[1:]:
                node.start(self.nodes[0].ready)
            self.until_whole()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Asks all nodes to stop; the names of those that did not do so in time and without an error."""
        running = self.running()
        if len(running) == len(self.nodes):
            # The others announce their stop in the catalog, so whoever keeps it goes last.
            holder = self.holder()
            running = [node for node in running if node is not holder] + [holder]
        return [node.name for node in running if not node.stop()]

    @property
    def ready(self):
        return {**self.nodes[0].ready, "s3": self.s3}

    def holder(self):
        """The node that keeps the catalog."""
        found = []

        def is_known():
            status = next((said for node in self.running() if (said := node.ask("catalog", "status"))), None)
            found[:] = [node for node in self.nodes if status and node.ready["id"] == status["holder"]]
            return bool(found)

        wait_until(is_known, "some node knows who keeps the catalog")
        return found[0]

    def running(self):
        return [node for node in self.nodes if node.process and node.is_running()]

    def promote(self, before, candidates=None):
        """Makes another node keep the catalog in place of this one; says which one, and how long it took."""
        begun, words = time.monotonic(), []
        others = candidates or [node for node in self.running() if node is not before]

        def is_promoted():
            for node in others:
                command = [node.stoker, "catalog", "promote", "--dir", str(node.dir)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                words.append(done.stdout + done.stderr)
                if done.returncode == 0:
                    words.append(node.name)
                    return True
            return False

        wait_until(is_promoted, f"a node is promoted instead of {before.name}")
        return words[-1], time.monotonic() - begun

    def heal(self):
        """Starts what a scenario that failed may have left behind."""
        for node in self.nodes:
            if not node.is_running():
                node.start()
        self.until_whole()

    def until_whole(self, or_else=lambda: False, seconds=90):
        """Waits until every node could stop, so that the next loss is the only one."""
        why = {}

        def is_whole():
            if or_else():
                return True
            for node in self.nodes:
                why[node.name] = node.cannot_stop()
                if why[node.name]:
                    return False
            return True

        try:
            wait_until(is_whole, "every node can stop", seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}: {why}") from None

    def until_followed(self, or_else=lambda: False):
        """Waits until every node has the catalog too: a kill gives nobody the time to let a standby go."""
        self.until_whole(or_else)

        status = {}

        def is_followed():
            status.update(self.nodes[0].ask("catalog", "status") or {})
            in_sync = [standby for standby in status.get("standbys", []) if standby["in_sync"]]
            return or_else() or len(in_sync) == len(self.nodes) - 1

        try:
            wait_until(is_followed, "every node has the catalog")
        except AssertionError as late:
            raise AssertionError(f"{late}: {status}") from None

    def last_words(self):
        return "\n".join(f"{node.name}:\n{node.last_words()}" for node in self.nodes)


def free_ports(count):
    """Ports that are free at each address, for TCP and UDP."""
    found = []
    for port in random.sample(PORTS, 200):
        if all(is_free(address, port) for address in ADDRESSES):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports on the loopback network")


def is_free(address, port):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as tried:
            try:
                tried.bind((address, port))
            except OSError:
                return False
    return True
