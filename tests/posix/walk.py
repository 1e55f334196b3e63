"""Runs groups of probes below a directory, each in one of its own, and prints what they found as JSON.

  python3 tests/posix/walk.py FOLDER [GROUP,GROUP]
"""

import json
import os
import shutil
import sys
import traceback

sys.dont_write_bytecode = True

import data  # noqa: F401
import names  # noqa: F401
import rights  # noqa: F401
import world  # noqa: F401
from probe import GROUPS, Book


def main():
    place, chosen = sys.argv[1], [name for name in (sys.argv[2:] or [""])[0].split(",") if name]
    found = {}
    os.umask(0o022)
    os.chmod(place, 0o755)
    for name, function in GROUPS.items():
        if chosen and name not in chosen:
            continue
        book, at = Book(), os.path.join(place, name)
        os.mkdir(at)
        os.chdir(at)
        try:
            function(book)
        except Exception:
            # The rest of the group is missing, which is a difference.
            book.note("ended early", traceback.format_exc(limit=-3))
        os.umask(0o022)
        os.chdir(place)
        shutil.rmtree(at, ignore_errors=True)
        book.note("what is left", os.path.exists(at))
        found[name] = book.lines
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
