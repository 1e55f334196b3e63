"""The second half: the node was killed and is back. Handles are what they were."""

import json
import sys

from wire import *

port, kept = int(sys.argv[1]), json.load(open(sys.argv[2]))
client, user = Client(port), Client(port, uid=1000, gid=1000)
handles = {name: bytes.fromhex(handle) for name, handle in kept["handles"].items()}

# The deepest first: nothing is known of the way to it.
assert client.read_all(handles["long"]) == b"long"
assert user.read_all(handles["mine"]) == b"secret"
assert client.getattr(handles["deeper"])[0] == OK
assert client.lookup(handles["deeper"], b"..")[1] == handles["deep"]
assert client.lookup(handles["root"], b"renamed")[1] == handles["deep"], "it was renamed, and is the same"
assert client.readlink(handles["link"]) == (OK, b"deep/er/replaced")
assert client.getattr(handles["implied"])[0] == OK
assert client.read_all(handles["by new name"]) == b"moves"
assert client.getattr(handles["moved"])[0] in (OK, STALE), "renamed: known by its old handle only while it is remembered"
assert client.getattr(handles["removed"])[0] == STALE

# A listing goes on where it was.
names, cookie, verifier = kept["place"]
status, rest, _, is_end = client.readdir(handles["deep"], cookie, verifier, 1 << 16)
assert status == OK and is_end
everything = [entry["name"] for entry in client.list_all(handles["deep"])]
assert [bytes.fromhex(name) for name in names] + [entry["name"] for entry in rest] == everything

# What was not committed may be gone; the verifier says so, and it is sent again.
status, _, _, verifier = client.write(handles["lost"], 0, b"sent again")
assert status == OK and verifier != kept["verifier"]
assert client.commit(handles["lost"])[2] == verifier
assert client.read_all(handles["lost"]) == b"sent again"
