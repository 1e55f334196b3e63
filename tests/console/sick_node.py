"""A node by a configuration, with drives that can be taken away and a desk that takes work orders, or does not."""

import http.server
import json
import os
import pathlib
import subprocess
import threading

DRIVES = ("nvme0", "nvme1", "nvme2")


class Desk(http.server.BaseHTTPRequestHandler):
    """Refuses everything for good as long as there is a file."""

    refuses = None

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(400 if self.refuses.exists() else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class SickNode:
    def __init__(self, stoker, folder):
        self.stoker, self.folder = str(stoker), pathlib.Path(folder)
        self.refuses = self.folder / "desk-refuses"
        self.process, self.desk, self.told = None, None, {}

    def __enter__(self):
        for name in DRIVES:
            (self.folder / name).mkdir()
        self.refuses.touch()
        desk = type("ThisDesk", (Desk,), {"refuses": self.refuses})
        self.desk = http.server.ThreadingHTTPServer(("127.0.0.1", 0), desk)
        threading.Thread(target=self.desk.serve_forever, daemon=True).start()
        config = self.folder / "stoker.toml"
        config.write_text(self.config())
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
        command = [self.stoker, "serve", "--json", "--config", str(config)]
        with open(self.folder / "node.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
        # One that says nothing is ended, which ends the wait for its line.
        watch = threading.Timer(300, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        try:
            ready = json.loads(line)
        except ValueError:
            self.stop()
            raise RuntimeError(f"`stoker serve` is not ready; it said:\n{self.log()}") from None
        tokens = {name: (self.folder / "node" / file).read_text().strip() for name, file in (("token", "token"), ("view_token", "view-token"))}
        self.told = {**tokens, "admin": ready["admin"], "dir": str(self.folder / "node"), "name": "sick-1", "refuses": str(self.refuses)}
        self.told["drives"] = [str(self.folder / name) for name in DRIVES]
        return self

    def config(self):
        drives = "".join(f'[[drive]]\npath = "{self.folder / name}"\nsize = "256MiB"\n' for name in DRIVES)
        local = "127.0.0.1:0"
        return f"""
[node]
dir = "{self.folder / "node"}"
cores = 1
memory = "512MiB"
{drives}
[s3]
listen = ["{local}"]
[admin]
listen = "{local}"
[peers]
name = "sick-1"
[slo]
period_s = 1
settle_s = 2
[[slo.target]]
name = "spare parts"
format = "webhook"
url = "http://127.0.0.1:{self.desk.server_port}/orders"
"""

    def log(self):
        return (self.folder / "node.log").read_text(errors="replace")[-4000:]

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.desk.shutdown()
        self.desk.server_close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=90)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
