"""Hundreds of connections that say a long request follows, and send nothing. Others go on beside them."""

import resource
import socket
import sys

from wire import *

port, CROWD, PLACES = int(sys.argv[1]), 300, 1024
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
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

silent = sum(1 for connection in here + elsewhere if connection.fileno() >= 0)
assert silent == 2 * CROWD
for connection in here + elsewhere:
    connection.close()

# Calls that name nothing prove nothing, from however many addresses of one machine they come.
many = []
for host in range(2, 6):
    for _ in range(PLACES // 4):
        client = Client(port, source=f"127.0.0.{host}")
        client.call(NFS, 0)
        many.append(client)
work(Client(port), b"beside who asks")
work(before, b"as ever, again")

# Who names what it may use goes when it is idle for longest. Others of its machine come in, and who goes on stays.
for _ in range(CROWD):
    client = Client(port)
    assert client.mount("/data")[0] == OK
    many.append(client)
    assert before.mount("/data")[0] == OK
work(Client(port), b"beside who may")
work(before, b"to the end")
