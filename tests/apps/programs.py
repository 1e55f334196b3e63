"""The programs that are run. Nothing is installed unless that was asked for."""

import os
import pathlib
import shutil
import subprocess
import sys

FSX_VERSION = "0.3.2"
# Databases that come as packages of Python.
MODULES = ("lmdb==3.0.0", "duckdb==2.0.0")
# What a program is in Debian.
PACKAGES = {
    "git": "git", "sqlite3": "sqlite3", "tar": "tar", "rsync": "rsync", "fio": "fio", "diff": "diffutils",
    "initdb": "postgresql", "pgbench": "postgresql", "pg_amcheck": "postgresql", "setpriv": "util-linux",
    "qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "mount.nfs": "nfs-common",
    "cpio": "cpio", "modinfo": "kmod",
}  # fmt: skip


def cache():
    chosen = os.environ.get("STOKER_CACHE")
    return pathlib.Path(chosen) if chosen else pathlib.Path.home() / ".cache" / "stoker-tests"


def find(name):
    """Where a program is; none if it is not here."""
    if name == "python-modules":
        return python()
    if name == "fsx" and fsx_path().is_file():
        return str(fsx_path())
    postgresql = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    places = [os.environ.get("PATH", ""), *map(str, reversed(postgresql)), "/usr/sbin", "/sbin"]
    return shutil.which(name, path=os.pathsep.join(places))


def install(names):
    """Gets what is missing, as far as this machine lets us; what cannot be had is missing afterwards, too."""
    wanted = {PACKAGES[name] for name in names if name in PACKAGES and not find(name)}
    if wanted and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"apps: installing {', '.join(sorted(wanted))}", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *sorted(wanted)]):
            subprocess.run(["apt-get", *command], env=environment, capture_output=True, timeout=1800)
    if "python-modules" in names and not python():
        install_modules()
    if "fsx" in names and not find("fsx") and shutil.which("cargo"):
        install_fsx()


def python():
    """A Python that has `MODULES`; none if it was not made."""
    found = cache() / "apps-python" / "bin" / "python"
    stamp = cache() / "apps-python" / "stamp"
    return str(found) if stamp.is_file() and stamp.read_text() == " ".join(MODULES) else None


def install_modules():
    place = cache() / "apps-python"
    shutil.rmtree(place, ignore_errors=True)
    print(f"apps: installing {', '.join(MODULES)}", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(place)], capture_output=True)
    pip = [str(place / "bin" / "pip"), "--disable-pip-version-check", "--quiet", "install", "--no-deps", "--only-binary", ":all:", *MODULES]
    if made.returncode == 0 and subprocess.run(pip, capture_output=True, timeout=1800).returncode == 0:
        (place / "stamp").write_text(" ".join(MODULES))


def fsx_path():
    return cache() / "fsx" / "bin" / "fsx"


def install_fsx():
    """Linked statically, so that the same program runs in a guest that has no libraries."""
    print(f"apps: compiling fsx {FSX_VERSION}", flush=True)
    target = "x86_64-unknown-linux-gnu"
    environment = {**os.environ, "RUSTFLAGS": "-C target-feature=+crt-static"}
    environment.pop("CARGO_TARGET_DIR", None)
    command = ["cargo", "install", "fsx", "--version", FSX_VERSION, "--locked", "--quiet", "--target", target]
    # Away from the checkout: its settings of cargo and its toolchain are not those of fsx.
    subprocess.run([*command, "--root", str(cache() / "fsx")], env=environment, cwd="/", timeout=3600)
