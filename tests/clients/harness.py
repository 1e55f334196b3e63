"""Scenarios and how they are told: one line each, `ok`, `FAILED` or `skipped: why`.

A file of scenarios is a program of its own. It gets the server as JSON in STOKER_TARGET and ends with 1 if one failed.
"""

import hashlib
import json
import os
import pathlib
import random
import sys
import time
import traceback
import urllib.request

MIB = 1 << 20


class Skip(Exception):
    """A scenario that cannot run here; the text says why."""


class Target:
    """The server under test and how much is to be done."""

    def __init__(self, fields):
        self.s3 = fields["s3"]
        self.access_key = fields["access_key"]
        self.secret_key = fields["secret_key"]
        self.region = fields["region"]
        self.admin = fields["admin"]
        self.token = fields["token"]
        self.dir = fields["dir"]
        self.lake = fields["lake"]
        self.stoker = fields["stoker"]
        self.programs = fields["programs"]
        self.scratch = pathlib.Path(fields["scratch"])
        self.tier = fields["tier"]

    @property
    def is_full(self):
        return self.tier != "quick"

    def status(self):
        return json.loads(self.ask("/api/v1/status"))

    def ask(self, path):
        request = urllib.request.Request(self.admin + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode()

    def environment(self):
        """What programs of Amazon's making and their kin read; nothing of the person who runs this."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "HOME": str(self.scratch),
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": self.s3,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_PAGER": "",
        }


def fields():
    """What the run was told: of a suite that starts its own nodes, all but the server."""
    return json.loads(os.environ["STOKER_TARGET"])


def target():
    return Target(fields())


def content(name, size):
    """Random bytes that the name repeats."""
    return random.Random(name).randbytes(size)


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def same(got, expected, what=""):
    """Compares bytes without printing megabytes of them."""
    if got != expected:
        at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        raise AssertionError(f"{what}: {len(got)} bytes instead of {len(expected)}, first difference at {at}")


def equal(got, expected, what=""):
    if got != expected:
        if isinstance(got, dict) and isinstance(expected, dict):
            # What differs, of two that are long.
            got, expected = ({key: one[key] for key in one if key not in other or other[key] != one[key]} for one, other in ((got, expected), (expected, got)))
        raise AssertionError(f"{what}: got {got!r:.300}, expected {expected!r:.300}")


def wait_until(holds, what, seconds=60):
    """Asks again and again; the time is a limit for a broken server, not an order of events."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


class Suite:
    """Scenarios of one client, in the order in which they are written."""

    def __init__(self, name):
        self.name = name
        self.scenarios = []

    def scenario(self, name, tier="quick"):
        def note(function):
            self.scenarios.append((name, tier, function))
            return function

        return note

    def run(self, *args):
        """Runs what the tier and STOKER_ONLY ask for; returns an exit code."""
        full, only, failed = fields()["tier"] != "quick", os.environ.get("STOKER_ONLY", ""), 0
        for name, tier, function in self.scenarios:
            if (tier == "full" and not full) or only not in f"{self.name}: {name}":
                continue
            begun = time.monotonic()
            try:
                function(*args)
                verdict = "ok"
            except Skip as skip:
                verdict = f"skipped: {skip}"
            except Exception as error:  # whatever a client throws is a failure of the scenario
                verdict, failed = f"FAILED: {type(error).__name__}: {error}", failed + 1
                place = traceback.extract_tb(error.__traceback__)
                here = [frame for frame in place if pathlib.Path(frame.filename).parent == HERE and frame.name != "run"]
                verdict += "".join(f"\n    {pathlib.Path(f.filename).name}:{f.lineno}: {f.line}" for f in here)
            print(f"{self.name}: {name}: {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
        return 1 if failed else 0

    def main(self, *args):
        sys.exit(self.run(*args))


HERE = pathlib.Path(__file__).resolve().parent
