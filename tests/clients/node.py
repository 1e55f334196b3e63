"""A node under test: `stoker up` in a folder of its own, stopped with the run."""

import json
import pathlib
import subprocess
import threading


class Node:
    def __init__(self, stoker, folder, size="2GiB", args=(), environment=None):
        self.stoker, self.dir = str(stoker), pathlib.Path(folder) / "node"
        self.log = pathlib.Path(folder) / "node.log"
        self.command = [self.stoker, "up", "--json", "--dir", str(self.dir), "--size", size]
        self.command += ["--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0", *args]
        self.environment = environment
        self.process, self.ready = None, None

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, env=self.environment, text=True
            )
        # A node that says nothing is killed, which ends the wait for its line.
        watch = threading.Timer(120, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        try:
            self.ready = json.loads(line)
        except ValueError:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"`stoker up` is not ready; it said:\n{self.last_words()}") from None
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Asks it to stop; true if it did so in time and without an error."""
        if self.process.poll() is not None:
            return False
        self.process.terminate()
        try:
            return self.process.wait(timeout=60) == 0
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False

    def is_running(self):
        return self.process.poll() is None

    def last_words(self, lines=20):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
