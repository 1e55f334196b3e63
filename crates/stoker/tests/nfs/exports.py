"""What an export says is kept to."""

import sys

from wire import *

port, what = int(sys.argv[1]), sys.argv[2]
if what == "other network":
    # Whoever may use nothing is not listened to.
    try:
        Client(port).mount("/data")
    except (ConnectionError, OSError):
        sys.exit(0)
    raise AssertionError("a client of another network was answered")
client = Client(port)
status, root = client.mount("/data")
if what == "other volume":
    assert status == ACCES, status
elif what == "another volume":
    assert status == NOENT, status
else:
    assert status == OK, status
    found = client.getattr(root)[1]
if what == "keep root":
    assert (found["uid"], found["gid"]) == (0, 0)
    status, handle, attr, _ = client.create(root, b"file", how=1)
    assert status == OK and attr["uid"] == 0
    assert client.setattr(handle, sattr(uid=7, gid=8, mode=0o400))[0] == OK
    assert client.write(handle, 0, b"root may", FILE_SYNC)[0] == OK
    assert Client(port, uid=7).read(handle, 0, 100)[1] == b"root may"
if what == "read only":
    status, handle, attr = client.lookup(root, b"file")
    assert status == OK and attr["uid"] == 7
    user = Client(port, uid=7)
    assert user.read(handle, 0, 100)[1] == b"root may"
    assert user.write(handle, 0, b"x")[0] == ROFS
    assert client.create(root, b"new")[0] == ROFS and client.remove(root, b"file")[0] == ROFS
    assert user.access(handle)[1] == 0x01
