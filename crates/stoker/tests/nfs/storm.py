"""A client that goes on with another node whenever one does not answer, and often before that, and never gives up.

Reads lines `NAME FILE FILE`: the bytes of the first file are sent unstable to one node, sent again to another and committed there,
then those of the second one are written durably. Answers `done` when that is acknowledged, as often as nodes die meanwhile.
Arguments: the folder that files lie in, then addresses of nodes, HOST:PORT."""

import random
import struct
import sys
import time

from wire import *

folder, addresses = sys.argv[1].encode(), sys.argv[2:]
clients = {}
root = None


class Again(Exception):
    """Not now, or not by this node."""


def client(at):
    if at not in clients:
        host, port = addresses[at].rsplit(":", 1)
        clients[at] = Client(int(port), host=host, timeout=20)
    return clients[at]


def expect(found):
    if found[0] != OK:
        raise Again(found[0])
    return found


def file_of(node, name):
    """Handles mean the same at every node, but a handle may be of a file that is not there any more."""
    global root
    if root is None:
        root = expect(node.mount("/data"))[1]
    at = expect(node.lookup(root, folder))[1]
    return expect(node.create(at, name, how=0))[1]


def write(name, old, new):
    first, second = (client(at) for at in random.sample(range(len(addresses)), 2))
    file = file_of(first, name)
    expect(first.write(file, 0, old))
    told = expect(second.write(file, 0, old))[3]
    if expect(second.commit(file))[2] != told:
        raise Again("the verifier is another")
    expect(second.write(file, 0, new, FILE_SYNC))


for line in sys.stdin:
    name, old, new = line.split()
    old, new = (open(path, "rb").read() for path in (old, new))
    for _ in range(3_000):
        try:
            write(name.encode(), old, new)
            break
        except (Again, OSError, Refused, AssertionError, struct.error, IndexError) as fault:
            # A connection that broke off in the middle of an answer is of no use. It is reset: what was never answered must not
            # reach a node that was cut off minutes later, as it would if the kernel went on to send it after the close.
            for one in clients.values():
                one.reset()
            clients.clear()
            last = fault
            time.sleep(0.1)
    else:
        sys.exit(f"{name} cannot be written through any node: {last}")
    print("done", flush=True)
