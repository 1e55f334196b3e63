"""A client that goes from node to node of a cell, as an address does that moves. Handles mean the same everywhere."""

import sys

from wire import *

first, second = (Client(int(port)) for port in sys.argv[1:3])
status, root = first.mount("/data")
assert status == OK, status
assert second.mount("/data") == (OK, root), "one key for all nodes"


def expect(found, wanted=OK):
    assert found[0] == wanted, f"{found} and not {wanted}"
    return found


def settle(node, handle, offset, data):
    """What a client does: it sends bytes again until a commit tells the verifier that their write told."""
    while True:
        _, _, _, told = expect(node.write(handle, offset, data))
        if expect(node.commit(handle))[2] == told:
            return


def gone(found):
    # OK if the node was so slow that it published what waited before the file was gone.
    assert found[0] in (OK, STALE), found


def both(handle):
    for node in (first, second):
        expect(node.getattr(handle))
        yield node.read_all(handle)


# Written here, not committed; sent again there, committed, and overwritten durably. A node publishes by itself what waits for
# 5 s: on a machine that is slower than this script expects, that may come first, and then nothing is dropped.
dropped = 0
for at in range(10):
    _, file, *_ = expect(first.create(root, b"file %d" % at, how=1))
    _, _, _, told = expect(first.write(file, 0, b"old bytes"))
    settle(second, file, 0, b"old bytes")
    expect(second.write(file, 0, b"NEW", FILE_SYNC))
    # Whoever comes back is told that what waited is gone, and is shown what is there.
    if at % 2:
        assert expect(first.getattr(file))[1]["size"] == 9
    dropped += expect(first.commit(file))[2] != told
    assert list(both(file)) == [b"NEW bytes"] * 2, at
assert dropped, "nobody was told that bytes were dropped"

# What waits does not come along with a write that is durable, nor with a length, nor stands in their way.
_, file, *_ = expect(first.create(root, b"mixed", how=1))
expect(first.write(file, 0, b"0123456789", FILE_SYNC))
expect(first.write(file, 0, b"waits"))
expect(second.write(file, 5, b"SECOND", FILE_SYNC))
expect(first.write(file, 8, b"first", FILE_SYNC))
assert [found[5:] for found in both(file)] == [b"SECfirst"] * 2
expect(first.write(file, 0, b"waits"))
expect(second.write(file, 0, b"second", FILE_SYNC))
expect(first.setattr(file, sattr(size=7)))
assert list(both(file)) == [b"secondE"] * 2

# A file that is removed or replaced elsewhere takes what waits with it.
_, file, *_ = expect(first.create(root, b"gone", how=1))
expect(first.write(file, 0, b"waits"))
expect(second.remove(root, b"gone"))
gone(first.commit(file))
expect(first.lookup(root, b"gone"), NOENT)
expect(second.lookup(root, b"gone"), NOENT)
_, file, *_ = expect(first.create(root, b"replaced", how=1))
_, newer, *_ = expect(second.create(root, b"newer", how=1))
expect(second.write(newer, 0, b"newer", FILE_SYNC))
expect(first.write(file, 0, b"waits"))
expect(second.rename(root, b"newer", root, b"replaced"))
gone(first.commit(file))
_, now, _ = expect(first.lookup(root, b"replaced"))
assert list(both(now)) == [b"newer"] * 2

# Requests that are sent again to the other node: what was made is there once.
_, made, *_ = expect(first.create(root, b"once", how=2, verifier=0x1234567890))
assert expect(second.create(root, b"once", how=2, verifier=0x1234567890))[1] == made
expect(second.create(root, b"once", how=2, verifier=0x999), EXIST)
for node in (first, second):
    expect(node.setattr(made, sattr(mode=0o600, size=3)))
assert list(both(made)) == [b"\0\0\0"] * 2
expect(first.remove(root, b"once"))
expect(second.remove(root, b"once"), NOENT)
