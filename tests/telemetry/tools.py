"""Programs, processes and small servers that the parts share."""

import http.server
import json
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Program, Debian package.
NEEDS = {"promtool": "prometheus", "prometheus": "prometheus", "prometheus-alertmanager": "prometheus-alertmanager"}
# Long enough for a busy machine; nobody waits for it when things work.
PATIENCE_S = 180


def missing():
    return [program for program in NEEDS if not shutil.which(program)]


def install():
    """Gets what is missing, where that is possible."""
    lacking = sorted({NEEDS[program] for program in missing()})
    if not lacking or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *lacking]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def get(url, token=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return answer.read().decode()


def metrics(node):
    """The numbers of a node, as somebody gets them who may look and nothing else."""
    token = (pathlib.Path(node["dir"]) / "view-token").read_text().strip()
    return get(f"{node['admin']}/metrics", token)


def until(look, what, patience_s=PATIENCE_S):
    """Looks until there is something to see."""
    end = time.monotonic() + patience_s
    while True:
        try:
            found = look()
        except OSError:
            found = None
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {patience_s} s")
        time.sleep(0.2)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Program:
    """A process with its log, ended with the block that it belongs to."""

    def __init__(self, command, log, is_ready=None):
        self.command, self.log, self.is_ready = [str(word) for word in command], log, is_ready
        self.process = None

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        if self.is_ready:
            until(self.is_ready, f"{self.command[0]} is ready")
        return self

    def __exit__(self, *_):
        self.stop()

    def line(self):
        """The next line that it prints; a process that says nothing for long is killed, which ends the wait."""
        watch = threading.Timer(PATIENCE_S, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line:
            raise AssertionError(f"{self.command[0]} ended; its log: {self.log}")
        return line

    def stop(self):
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Cluster(Program):
    """Three nodes; `nodes` is what each of them said when it was ready."""

    def __init__(self, stoker, folder, grace_s=5):
        command = [stoker, "up", "--nodes", "3", "--json", "--dir", folder / "cluster", "--size", "2GiB", "--memory", "1GiB"]
        super().__init__([*command, "--grace", f"{grace_s}s"], folder / "cluster.log")
        self.nodes = None

    def __enter__(self):
        super().__enter__()
        self.nodes = json.loads(self.line())
        return self


class Hook:
    """A receiver of webhooks; `got` has a pair of headers and body for each. `statuses` are the first answers; then all are taken."""

    def __init__(self, port=0, statuses=()):
        self.got = queue.Queue()
        got, statuses = self.got, list(statuses)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = statuses.pop(0) if statuses else 200
                if status == 200:
                    got.put((dict(self.headers.items()), body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def next(self, what):
        try:
            return self.got.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"{what}: nothing came within {PATIENCE_S} s") from None


class Page:
    """A page of an exporter."""

    def __init__(self, text):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = text.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def checked(command, **more):
    """Runs a command that must succeed without a complaint; what it printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(str(word) for word in command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
