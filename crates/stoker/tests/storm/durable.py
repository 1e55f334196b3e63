"""Writes files so that they are durable when the write returns, for a storm.

A process of its own: whoever starts nodes must have no file of a mount open. A process that is started closes the files that it was
not to inherit while it becomes another program, closing one flushes it, and that waits for the node that was to be started.

Reads lines `write FLAGS FILE PATH` (the bytes of FILE go to PATH, opened with these flags, and PATH stays open) and `close`; answers `done`,
or `failed` and why."""

import os
import sys

held = None

for line in sys.stdin:
    verb, _, rest = line.rstrip("\n").partition(" ")
    try:
        if verb == "write":
            flags, source, path = rest.split(" ", 2)
            with open(source, "rb") as file:
                data = file.read()
            held = os.open(path, os.O_WRONLY | os.O_CREAT | int(flags), 0o644)
            view = memoryview(data)
            while view:
                view = view[os.write(held, view):]
        elif held is not None:
            closing, held = held, None
            os.close(closing)
        print("done", flush=True)
    except OSError as error:
        if held is not None:
            closing, held = held, None
            try:
                os.close(closing)
            except OSError:
                pass
        print(f"failed {error}", flush=True)
