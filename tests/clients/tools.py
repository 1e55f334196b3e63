"""The client programs: pinned, in virtual environments of a cache folder outside the checkout.

An environment is made once and used by every later run, until its pinned versions or the interpreter change.
"""

import concurrent.futures
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENTS = ("boto3", "crt", "awscli", "tools")
GARAGE_VERSION = "2.5.0"


class Missing(Exception):
    """A program could not be had; the text says why."""


def cache():
    chosen = os.environ.get("STOKER_CACHE")
    return pathlib.Path(chosen) if chosen else pathlib.Path.home() / ".cache" / "stoker-tests"


def install(names=ENVIRONMENTS, requirements=HERE / "requirements"):
    """Makes the environments that are not there yet. Returns {name: folder of its programs}."""
    root = cache()
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "w") as lock:
        # Two runs at once would trip over each other.
        fcntl.flock(lock, fcntl.LOCK_EX)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return dict(zip(names, pool.map(lambda name: environment(root, requirements, name), names)))


def environment(root, requirements, name):
    wanted = requirements / f"{name}.txt"
    mark = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()
    folder, stamp = root / name, root / name / "stamp"
    if stamp.is_file() and stamp.read_text() == mark:
        return folder / "bin"
    shutil.rmtree(folder, ignore_errors=True)
    call([sys.executable, "-m", "venv", str(folder)], "python3 -m venv (Debian: apt-get install python3-venv)")
    pip = [str(folder / "bin" / "pip"), "--disable-pip-version-check", "--quiet"]
    call([*pip, "install", "--no-deps", "--only-binary", ":all:", "--requirement", str(wanted)], f"pip install {name}")
    stamp.write_text(mark)
    return folder / "bin"


def garage(is_made_here):
    """The program `garage`: as given, as cached, or compiled now, which takes 10 to 30 minutes."""
    given = os.environ.get("STOKER_GARAGE")
    if given:
        return given
    program = cache() / "garage" / "bin" / "garage"
    if not program.is_file():
        if not is_made_here:
            raise Missing("garage is not in the cache (`run.py --long` compiles it)")
        call(
            ["cargo", "install", "garage", "--version", GARAGE_VERSION, "--locked", "--no-default-features"]
            + ["--features", "lmdb,bundled-libs", "--root", str(cache() / "garage")],
            "cargo install garage",
        )
    return str(program)


def call(command, what):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{what}: {error}") from error
    if done.returncode != 0:
        raise Missing(f"{what}: {' '.join(done.stdout.split()[-40:])}")
