"""What crowds without credentials do to one who behaves: the latency of its requests beside them, against without them.

Arguments: the program, the node's directory, ports of NFS and of peers, the S3 endpoint, access key, secret key. Prints one line for
each crowd: medians and 99th percentiles of both sides, and the ratio of the latter. The crowd comes again as often as it is sent off."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import s3
from wire import *

program, node, nfs, peers, endpoint, access, secret = sys.argv[1:]
nfs, peers = int(nfs), int(peers)
web = urllib.parse.urlparse(endpoint)
FORM = (
    f"POST /data HTTP/1.1\r\nhost: {web.netloc}\r\ncontent-type: multipart/form-data; boundary=XyZ\r\n"
    'content-length: 100000\r\n\r\n--XyZ\r\nContent-Disposition: form-data; name="key"\r\n\r\nuser/'
).encode()


class Crowd:
    """So many connections that say the first words of something. Whoever is sent off comes again."""

    def __init__(self, count, port, words, source, drip=b""):
        self.count, self.to, self.words, self.source, self.drip = count, ("127.0.0.1", port), words, source, drip
        self.connections, self.is_over = [], threading.Event()
        for _ in range(count):
            self.come()
        self.thread = threading.Thread(target=self.stay, daemon=True)
        self.thread.start()

    def come(self):
        try:
            connection = socket.create_connection(self.to, timeout=5, source_address=(self.source, 0))
            connection.sendall(self.words)
            connection.setblocking(False)
            self.connections.append(connection)
        except OSError:
            pass

    def stay(self):
        while not self.is_over.wait(0.5):
            kept = []
            for connection in self.connections:
                try:
                    if self.drip:
                        connection.send(self.drip)
                    if connection.recv(1 << 12) != b"":
                        kept.append(connection)
                        continue
                except BlockingIOError:
                    kept.append(connection)
                    continue
                except OSError:
                    pass
                connection.close()
            self.connections = kept
            # As fast as somebody comes who wants to be in the way, not as fast as this machine can connect.
            for _ in range(min(self.count - len(self.connections), self.count // 10)):
                self.come()

    def leave(self):
        self.is_over.set()
        self.thread.join()
        for connection in self.connections:
            connection.close()


def times(work, count):
    found = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return found


def at(found, share):
    found = sorted(found)
    return found[min(len(found) - 1, int(len(found) * share))]


def measure(name, work, crowd, count, rounds=3):
    alone, beside = [], []
    times(work, max(count // 10, 1))
    for _ in range(rounds):
        alone += times(work, count)
        there = crowd()
        beside += times(work, count)
        there.leave()
    ratio = at(beside, 0.99) / at(alone, 0.99)
    numbers = [f"{at(side, share):.2f}" for side in (alone, beside) for share in (0.5, 0.99)]
    print(f"{name}: alone P50 {numbers[0]} P99 {numbers[1]} ms, beside P50 {numbers[2]} P99 {numbers[3]} ms, {ratio:.2f} x", flush=True)


def nfs_call():
    client = Client(nfs)
    assert client.mount("/data")[0] == OK
    client.socket.close()


def get():
    assert len(s3.request("GET", endpoint, "data/small", access, secret)) == 4096


LARGE = os.urandom(16 << 20)


def put():
    s3.request("PUT", endpoint, "data/large", access, secret, LARGE)


def join():
    """A node that is new, from its start until it is ready."""
    made = subprocess.run([program, "join-token", "create", "--dir", node], capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as home:
        words = [program, "join", f"127.0.0.1:{peers}", "--json", "--size", "128MiB", "--memory", "512MiB", "--dir", home]
        words += [f"--{door}=127.0.0.1:0" for door in ("s3", "admin", "peers")]
        token = {**os.environ, "STOKER_JOIN_TOKEN": made.stdout.decode().strip()}
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=token)
        line = child.stdout.readline()
        child.terminate()
        _, said = child.communicate()
        assert line, said.decode()


s3.request("PUT", endpoint, "data/small", access, secret, bytes(4096))
slow = f"PUT /data/slow HTTP/1.1\r\nhost: {web.netloc}\r\ncontent-length: 16777216\r\n\r\n".encode()
measure("260 NFS connections of 4 bytes", nfs_call, lambda: Crowd(260, nfs, u32(1 << 31 | 1 << 20), "127.0.0.9"), 300)
measure("4,096 slow forms", get, lambda: Crowd(4096, web.port, FORM, "127.0.0.9", b"x"), 300)
measure("1,000 slow writers", put, lambda: Crowd(1000, web.port, slow, "127.0.0.9", b"x" * 100), 30)
measure("300 silent peers", join, lambda: Crowd(300, peers, b"", "127.0.0.9"), 3)
