#!/usr/bin/env python3
"""The console of a real cell in a real browser: headless Chromium, real clicks, screenshots.

  python3 tests/console/run.py --stoker target/debug/stoker
  python3 tests/console/run.py --stoker ... --keep shots                 leaves the screenshots there

Needs Chromium (Debian: apt-get install chromium; CHROMIUM names another one) and Node.js with npm, which gets playwright-core
into STOKER_CACHE (~/.cache/stoker-tests). Exit code: 0 passed, 1 something failed, 3 what it needs could not be had.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "clients"), str(HERE.parent / "api")]

import tools  # noqa: E402
from filled_cell import Cell  # noqa: E402
from sick_node import SickNode  # noqa: E402

NOT_HERE = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program")
    parser.add_argument("--keep", type=pathlib.Path, help="where screenshots are left; by default console-shots in the cache")
    args = parser.parse_args()
    try:
        chromium, library = browser(), playwright()
    except tools.Missing as why:
        print(f"console: {why}", file=sys.stderr)
        return NOT_HERE
    shots = (args.keep or tools.cache() / "console-shots").resolve()
    shutil.rmtree(shots, ignore_errors=True)
    shots.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="stoker-console-") as folder:
        place = pathlib.Path(folder)
        for name in ("one", "three", "sick"):
            (place / name).mkdir()
        program = args.stoker.resolve()
        with (
            Cell(program, place / "one", nodes=1) as fresh,
            Cell(program, place / "three") as cell,
            SickNode(program, place / "sick") as sick,
        ):
            cell.fill()
            told = {"chromium": chromium, "shots": str(shots), "fresh": fresh.nodes[0], "nodes": cell.nodes, "stoker": cell.stoker, "sick": sick.told, "pids": pids(cell)}
            # Beside the library, because that is where node looks for it.
            for script in HERE.glob("*.mjs"):
                shutil.copy(script, library)
            command = ["node", str(library / "console.mjs")]
            done = subprocess.run(command, env={**os.environ, "STOKER_CONSOLE": json.dumps(told)}, timeout=900)
            if done.returncode != 0:
                print((place / "three" / "cell.log").read_text(errors="replace")[-4000:], file=sys.stderr)
                print(sick.log(), file=sys.stderr)
    print(f"console: screenshots are in {shots}")
    return 1 if done.returncode else 0


def pids(cell):
    """The processes of the nodes of a cell, in their order."""
    found = {}
    for child in pathlib.Path(f"/proc/{cell.process.pid}/task/{cell.process.pid}/children").read_text().split():
        words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace").split("\0")
        found.update({node["name"]: int(child) for node in cell.nodes if node["dir"] in words})
    return [found[node["name"]] for node in cell.nodes]


def browser():
    given = os.environ.get("CHROMIUM")
    found = given or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not found:
        raise tools.Missing("there is no Chromium (Debian: apt-get install chromium)")
    return found


def playwright():
    """The folder in which node finds playwright-core."""
    for program in ("node", "npm"):
        if not shutil.which(program):
            raise tools.Missing(f"there is no {program}")
    folder, wanted = tools.cache() / "playwright", (HERE / "package.json").read_text()
    if not (folder / "stamp").is_file() or (folder / "stamp").read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(wanted)
        tools.call(["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"], "npm install playwright-core")
        (folder / "stamp").write_text(wanted)
    return folder


if __name__ == "__main__":
    sys.exit(main())
