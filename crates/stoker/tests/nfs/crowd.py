"""Hundreds of connections that say a long request follows, and send nothing. Others go on beside them."""

import socket
import sys

from wire import *

port, CROWD = int(sys.argv[1]), 300
MARK = u32(1 << 31 | 1 << 20)


def crowd(source):
    connections = []
    for _ in range(CROWD):
        connection = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))
        try:
            connection.sendall(MARK)
        except OSError:
            pass  # Its place was given away already.
        connections.append(connection)
    return connections


def work(client, name):
    status, root = client.mount("/data")
    assert status == OK, status
    status, handle, _, _ = client.create(root, name, how=1)
    assert status == OK, status
    data = name * 100_000
    for offset in range(0, len(data), 1 << 19):
        assert client.write(handle, offset, data[offset : offset + (1 << 19)])[0] == OK
    assert client.commit(handle)[0] == OK
    assert client.read_all(handle) == data


before = Client(port)
work(before, b"before")
elsewhere = crowd("127.0.0.2")
work(Client(port), b"beside others")
here = crowd("127.0.0.1")
work(Client(port), b"beside its own")
work(before, b"as ever")

# Who sent whole requests keeps its place, and one address has not all of them.
silent = sum(1 for connection in here + elsewhere if connection.fileno() >= 0)
assert silent == 2 * CROWD
many = []
for _ in range(CROWD):
    try:
        client = Client(port, source="127.0.0.3")
        client.call(NFS, 0)
        many.append(client)
    except (ConnectionError, OSError):
        break
assert 100 <= len(many) < CROWD, f"one address has {len(many)} connections"
work(Client(port), b"beside who asks")
