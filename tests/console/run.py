#!/usr/bin/env python3
"""The console of a real cell in a real browser: headless Chromium, real clicks, screenshots.

  python3 tests/console/run.py --stoker target/debug/stoker
  python3 tests/console/run.py --stoker ... --keep shots                 leaves the screenshots there
  python3 tests/console/run.py --stoker ... --shots FOLDER               only pictures: every page at 1280 and 390 pixels, light and dark,
                                                                         with data, with a node lost, with the catalog lost, and empty

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
import threading

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "clients"), str(HERE.parent / "api")]

import tools  # noqa: E402
from filled_cell import Cell  # noqa: E402
from sick_node import SickNode  # noqa: E402

NOT_HERE = 3
# A node that is silent for so long is declared down; the default is longer than a test should take.
GRACE = ("--grace", "15s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program")
    parser.add_argument("--keep", type=pathlib.Path, help="where screenshots are left; by default console-shots in the cache")
    parser.add_argument("--shots", type=pathlib.Path, help="only take pictures of every page in every state, and leave them there")
    parser.add_argument("--states", default="data,catalog-lost,empty", help="with --shots: only these, comma-separated")
    parser.add_argument("--sources", type=pathlib.Path, help="files of the page from this folder instead of those in the program, for whoever changes them")
    args = parser.parse_args()
    try:
        chromium, library = browser(), playwright()
    except tools.Missing as why:
        print(f"console: {why}", file=sys.stderr)
        return NOT_HERE
    # Beside the library, because that is where node looks for it.
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, library)
    shots = (args.shots or args.keep or tools.cache() / "console-shots").resolve()
    if not args.shots:
        shutil.rmtree(shots, ignore_errors=True)
    shots.mkdir(parents=True, exist_ok=True)
    suite = Suite(args.stoker.resolve(), {"chromium": chromium, "shots": str(shots), "sources": args.sources and str(args.sources.resolve())}, library)
    passed = suite.pictures(args.states.split(",")) if args.shots else suite.scenarios()
    print(f"console: screenshots are in {shots}")
    return 0 if passed else 1


class Suite:
    def __init__(self, stoker, told, library):
        self.stoker, self.told, self.library = stoker, told, library

    def scenarios(self):
        """What a person does."""
        with tempfile.TemporaryDirectory(prefix="stoker-console-") as folder:
            place = pathlib.Path(folder)
            for name in ("one", "three", "sick"):
                (place / name).mkdir()
            with (
                Cell(self.stoker, place / "one", nodes=1) as fresh,
                Cell(self.stoker, place / "three", more=GRACE) as cell,
                SickNode(self.stoker, place / "sick") as sick,
            ):
                cell.fill()
                told = {"fresh": fresh.nodes[0], "nodes": cell.nodes, "sick": sick.told, "pids": pids(cell), "joiner": str(place / "joiner")}
                passed = self.run("console.mjs", told)
                if not passed:
                    print((place / "three" / "cell.log").read_text(errors="replace")[-4000:], file=sys.stderr)
                    print(sick.log(), file=sys.stderr)
        return passed

    def pictures(self, states):
        """Every page in every state. What is lost stays lost, so the states have cells of their own."""
        passed = True
        for state, nodes in (("data", 3), ("catalog-lost", 3), ("empty", 1)):
            if state not in states:
                continue
            with tempfile.TemporaryDirectory(prefix="stoker-console-") as folder:
                with Cell(self.stoker, folder, nodes=nodes, more=GRACE if nodes > 1 else ()) as cell:
                    if state == "empty":
                        # Pages of a node take the second one, and there is only one.
                        node = {**cell.nodes[0], "name": json.loads(cell.get("/api/v1/about"))["name"]}
                        told = {"state": state, "nodes": [node, node], "pids": []}
                        passed &= self.run("shots.mjs", told)
                        continue
                    cell.fill()
                    with Traffic(cell):
                        passed &= self.run("shots.mjs", {"state": state, "nodes": cell.nodes, "pids": pids(cell)})
        return passed

    def run(self, script, told):
        told = {**self.told, "stoker": str(self.stoker), **told}
        command = ["node", str(self.library / script)]
        return subprocess.run(command, env={**os.environ, "STOKER_CONSOLE": json.dumps(told)}, timeout=1800).returncode == 0


class Traffic:
    """Clients that read and write all the time, so that plots have something to show; what fails while a node is lost is tried again."""

    def __init__(self, cell):
        self.cell, self.ends, self.number = cell, threading.Event(), 0
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join(timeout=90)

    def run(self):
        while not self.ends.wait(0.3):
            self.number += 1
            key = f"data/live/{self.number % 200:03}.bin"
            try:
                self.cell.s3("PUT", key, os.urandom(1 << (16 + self.number % 5)))
                self.cell.s3("GET", key)
            except OSError:
                self.ends.wait(1)


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
