#!/usr/bin/env python3
"""A catalog in PostgreSQL under Patroni, whose primary is killed under load: no call fails, nothing acknowledged is lost.

  python3 tests/patroni/run.py --stoker target/release/stoker
  python3 tests/patroni/run.py --stoker ... --kills 3          back and forth

Three etcd and two PostgreSQL under Patroni (synchronous mode, ttl 20 s) on this machine, one node with both hosts in the address of
its catalog, and S3 clients that try nothing twice. The primary is killed with its Patroni (`kill -9`), the standby is promoted some
20 s later, and the old primary is started again and follows. Debian: apt-get install etcd-server patroni python3-etcd postgresql.
Exit code: 0 passed, 1 something failed, 3 what it needs could not be had.
"""

import argparse
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# The checkout stays as it is.
sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))

import tools  # noqa: E402

NOT_HERE = 3
# What anything may take that has to come; a slow machine is slow.
SECONDS_MAX = 180
PASSWORD = "patroni-test"
NAMES = ("a", "b")


class Missing(Exception):
    """What cannot be had here."""


class Failed(Exception):
    """What went wrong."""


def main():
    args = parse()
    started = time.monotonic()
    try:
        programs = found()
        python = tools.install(("boto3",))["boto3"] / "python"
    except (Missing, tools.Missing) as why:
        print(f"patroni: cannot run: {why}", flush=True)
        return NOT_HERE
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-patroni-", dir=args.dir))
    run = Run(args, folder, programs, python)
    try:
        run.all()
        print(f"patroni: passed, {time.monotonic() - started:.0f} s", flush=True)
        return 0
    except Failed as why:
        print(f"patroni: FAILED: {why}", flush=True)
        return 1
    finally:
        run.end()
        if args.keep:
            print(f"patroni: kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def found():
    """The programs; PostgreSQL's newest."""
    versions = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    programs = {name: shutil.which(name) for name in ("etcd", "patroni")}
    missing = [name for name, path in programs.items() if not path] + ([] if versions else ["postgresql"])
    if missing:
        raise Missing(f"{', '.join(missing)} (Debian: apt-get install etcd-server patroni python3-etcd postgresql)")
    return {**programs, "postgres": str(versions[-1].parent)}


class Run:
    def __init__(self, args, folder, programs, python):
        self.args, self.folder, self.programs, self.python = args, folder, programs, python
        self.processes, self.patronis, self.crowd = [], {}, None
        self.user = []
        if os.geteuid() == 0:
            # PostgreSQL does not run as root.
            owner = next((name for name in ("postgres", "nobody") if known(name)), None)
            self.user = ["setpriv", "--reuid", owner, "--regid", str(pwd.getpwnam(owner).pw_gid), "--clear-groups", "--"]
            folder.chmod(0o755)
            shutil.chown(folder, owner)
        self.etcds = [(free_port(), free_port()) for _ in range(3)]
        self.rest = {name: free_port() for name in NAMES}
        self.port = {name: free_port() for name in NAMES}

    def all(self):
        self.start_etcds()
        for name in NAMES:
            self.start_patroni(name)
            within("a leader", lambda: self.answers("a", "leader"))
        within("a synchronous standby", lambda: self.answers("b", "sync"))
        leader, standby = NAMES
        with Stoker(self.args.stoker, self.folder, self.url()) as node:
            node.call("volume", "create", "data")
            self.crowd = Clients(self.python, node)
            for kill in range(1, self.args.kills + 1):
                self.crowd.reaches(300)
                begun = time.monotonic()
                self.kill(leader)
                done = self.crowd.done
                within("the standby is promoted", lambda: self.answers(standby, "leader"))
                promoted = time.monotonic() - begun
                self.crowd.reaches(300, after=done)
                print(f"patroni: kill {kill}: {standby} took over after {promoted:.0f} s", flush=True)
                self.start_patroni(leader)
                old = leader
                within("the old primary follows", lambda: self.answers(old, "sync"))
                leader, standby = standby, leader
            self.judge(self.crowd.end())

    def judge(self, result):
        failed, lost = result.pop("failed"), result.pop("lost")
        print(f"patroni: {json.dumps(result)}, {len(failed)} failed, {len(lost)} lost", flush=True)
        if failed or lost:
            raise Failed("; ".join([*failed[:5], *(f"{key} is not as it was acknowledged" for key in lost[:5])]))

    def url(self):
        hosts = ",".join(f"127.0.0.1:{self.port[name]}" for name in NAMES)
        return f"postgresql://postgres:{PASSWORD}@{hosts}/postgres"

    def start_etcds(self):
        cluster = ",".join(f"e{at}=http://127.0.0.1:{peer}" for at, (_, peer) in enumerate(self.etcds))
        for at, (client, peer) in enumerate(self.etcds):
            self.start(
                f"etcd-{at}",
                [
                    self.programs["etcd"], "--name", f"e{at}", "--data-dir", str(self.folder / f"etcd-{at}"),
                    "--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}",
                    "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                    "--initial-cluster", cluster, "--heartbeat-interval", "250", "--election-timeout", "2500",
                ],
            )  # fmt: skip
        for client, _ in self.etcds:
            within("etcd is healthy", lambda port=client: status(f"http://127.0.0.1:{port}/health") == 200)

    def start_patroni(self, name):
        login = {"username": "postgres", "password": PASSWORD}
        config = {
            "scope": "names", "name": name,
            "restapi": {"listen": f"127.0.0.1:{self.rest[name]}", "connect_address": f"127.0.0.1:{self.rest[name]}"},
            "etcd3": {"hosts": [f"127.0.0.1:{client}" for client, _ in self.etcds]},
            "bootstrap": {
                "dcs": {
                    "ttl": 20, "loop_wait": 5, "retry_timeout": 6, "maximum_lag_on_failover": 0, "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": [{"encoding": "UTF8"}, "data-checksums"],
                "pg_hba": ["host all all 127.0.0.1/32 md5", "host replication all 127.0.0.1/32 md5"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port[name]}", "connect_address": f"127.0.0.1:{self.port[name]}",
                "data_dir": str(self.folder / f"data-{name}"), "bin_dir": self.programs["postgres"],
                "pgpass": str(self.folder / f"pgpass-{name}"), "parameters": {"unix_socket_directories": str(self.folder)},
                "authentication": {
                    "superuser": login, "rewind": login, "replication": {"username": "replicator", "password": PASSWORD},
                },
            },
        }  # fmt: skip
        path = self.folder / f"patroni-{name}.yml"
        path.write_text(json.dumps(config))
        path.chmod(0o644)
        self.patronis[name] = self.start(f"patroni-{name}", [self.programs["patroni"], str(path)])

    def kill(self, name):
        """Patroni and every process of its server at once, as if their machine was gone."""
        postmaster = int((self.folder / f"data-{name}" / "postmaster.pid").read_text().split()[0])
        self.patronis[name].kill()
        os.kill(postmaster, signal.SIGSTOP)
        for pid in [*children(postmaster), postmaster]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.patronis[name].wait()

    def answers(self, name, question):
        return status(f"http://127.0.0.1:{self.rest[name]}/{question}") == 200

    def start(self, name, command):
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [*self.user, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder
            )
        self.processes.append(process)
        return process

    def end(self):
        if self.crowd:
            self.crowd.process.kill()
        for name in NAMES:
            # One that was killed left none, and one whose Patroni was killed has nobody else.
            path = self.folder / f"data-{name}" / "postmaster.pid"
            if name in self.patronis and self.patronis[name].poll() is None and path.exists():
                self.kill(name)
        for process in self.processes:
            process.kill()
            process.wait()


class Stoker:
    """A node by `stoker serve`."""

    def __init__(self, program, folder, url):
        self.program, self.dir, self.log = str(program), folder / "node", folder / "node.log"
        drive = folder / "drive"
        # Written by whoever runs this.
        drive.mkdir()
        self.config = folder / "stoker.toml"
        self.config.write_text(
            f'[node]\ndir = "{self.dir}"\n[catalog]\nkind = "postgres"\nurl = "{url}"\n[s3]\nlisten = ["127.0.0.1:0"]\n'
            f'[admin]\nlisten = "127.0.0.1:0"\n[[drive]]\npath = "{drive}"\nsize = "512MiB"\n'
        )

    def __enter__(self):
        command = [self.program, "serve", "--json", "--config", str(self.config)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            self.ready = json.loads(self.process.stdout.readline())
        except ValueError:
            self.process.kill()
            raise Failed("`stoker serve` is not ready: " + self.log.read_text(errors="replace")[-2000:]) from None
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def call(self, *args):
        done = subprocess.run([self.program, *args, "--dir", str(self.dir)], capture_output=True, text=True, timeout=SECONDS_MAX)
        if done.returncode != 0:
            raise Failed(f"stoker {' '.join(args)}: {done.stderr}")


class Clients:
    def __init__(self, python, node):
        lines = (line.split("=", 1) for line in (node.dir / "credentials").read_text().splitlines() if "=" in line)
        keys = {name.strip(): value.strip() for name, value in lines}
        endpoint = node.ready["s3"][0] if isinstance(node.ready["s3"], list) else node.ready["s3"]
        endpoint = endpoint if endpoint.startswith("http") else f"http://{endpoint}"
        command = [str(python), str(HERE / "crowd.py"), endpoint, keys["aws_access_key_id"], keys["aws_secret_access_key"]]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.done = 0

    def reaches(self, more, after=None):
        """Until so many calls more were answered."""
        goal = (self.done if after is None else after) + more
        end = time.monotonic() + SECONDS_MAX
        while self.done < goal:
            if time.monotonic() > end:
                raise Failed(f"clients do not get on: {self.done} calls")
            self.done = self.line()["done"]

    def end(self):
        self.process.stdin.close()
        while "longest_s" not in (found := self.line()):
            pass
        self.process.wait()
        return found

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failed("the clients ended")
        return json.loads(line)


def children(parent):
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent:
            yield int(path.parent.name)


def within(what, is_so):
    end = time.monotonic() + SECONDS_MAX
    while not is_so():
        if time.monotonic() > end:
            raise Failed(f"never: {what}")
        time.sleep(0.2)


def status(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def known(name):
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program under test")
    parser.add_argument("--kills", type=int, default=1, help="how often the primary is killed")
    parser.add_argument("--dir", default=None, help="where to make the folder of the run")
    parser.add_argument("--keep", action="store_true", help="leave that folder")
    args = parser.parse_args()
    args.stoker = args.stoker.resolve()
    if not args.stoker.is_file():
        parser.error(f"{args.stoker} is not there; `cargo build -p stoker` makes target/debug/stoker")
    return args


if __name__ == "__main__":
    # Whoever ends this early wants its processes ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
