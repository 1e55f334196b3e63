"""The life of the Debian package in a clean root."""

import os
import pathlib
import shutil
import subprocess
import time

from steps import Failed, Missing, hold, need, run, say

MINUTE = 60


def check(program, folder, dist):
    if os.geteuid() != 0:
        raise Missing("only root can make a root")
    need("debootstrap", "dpkg-deb", "chroot")
    first = dist(program, folder / "first", 1, "deb")
    second = dist(program, folder / "second", 2, "deb")
    root = folder / "root"
    say("deb: making a clean root")
    # As little as there is, and what the package depends on.
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite(), str(root), *mirror()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        raise Missing(f"debootstrap: {made.stdout[-300:]}{made.stderr[-300:]}")
    for name in ("proc", "sys", "dev"):
        run(["mount", "--rbind", f"/{name}", root / name])
        run(["mount", "--make-rslave", root / name])
    try:
        live(root, only(first), only(second))
    finally:
        for name in ("proc", "sys", "dev"):
            run(["umount", "--recursive", "--lazy", root / name])


def suite():
    for line in pathlib.Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.split("=", 1)[1].strip('"')
    raise Missing("this is no Debian")


def mirror():
    """Where this machine gets its packages from, if its lists say so."""
    said = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE)"], capture_output=True, text=True, check=False)
    sites = [line for line in said.stdout.splitlines() if line and "security" not in line]
    return sites[:1]


def only(folder):
    (package,) = folder.glob("*.deb")
    return package


def live(root, first, second):
    def inside(*command, **options):
        return run(["chroot", root, *command], env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"), **options)

    for package in (first, second):
        shutil.copy(package, root / package.name)
    inside("dpkg", "--install", f"/{first.name}")
    hold("stoker" in inside("getent", "passwd", "stoker"), "the package makes no user")
    hold("755" in inside("stat", "-c", "%a", "/usr/bin/stoker"), "the program may not be started by everybody")
    for path, expect in (
        ("/var/lib/stoker", "700 stoker stoker"), ("/etc/stoker", "750 root stoker"),
        ("/etc/stoker/stoker.toml", "640 root stoker"), ("/etc/stoker/environment", "600 root root"),
    ):  # fmt: skip
        found = inside("stat", "-c", "%a %U %G", path).strip()
        hold(found == expect, f"{path} is {found}, not {expect}")
    unit = (root / "usr/lib/systemd/system/stoker.service").read_text()
    hold("ExecStart=/usr/bin/stoker serve" in unit and "/usr/local" not in unit, "the unit starts another program")
    for page in ("usr/share/man/man1/stoker.1.gz", "usr/share/man/man1/stoker-mount.1.gz", "usr/share/bash-completion/completions/stoker"):
        hold((root / page).exists(), f"{page} is missing")
    inside("runuser", "-u", "stoker", "--", "stoker", "serve", "--check", "--config", "/etc/stoker/stoker.toml")

    (root / "in").write_bytes(os.urandom(1 << 20))
    with node(root, inside):
        inside("stoker", "volume", "create", "data")
        inside("stoker", "put", "/in", "data/f")
    toml = root / "etc/stoker/stoker.toml"
    toml.write_text(toml.read_text() + "# of the operator\n")

    inside("dpkg", "--install", f"/{second.name}")
    hold("-2" in inside("dpkg-query", "-W", "-f", "${Version}", "stoker"), "the package was not upgraded")
    hold("# of the operator" in toml.read_text(), "the upgrade lost what the operator wrote")
    hold(inside("stat", "-c", "%a %U %G", "/etc/stoker/stoker.toml").strip() == "640 root stoker", "the upgrade opened the configuration")
    same(root, inside)

    inside("dpkg", "--remove", "stoker")
    hold(not (root / "usr/bin/stoker").exists(), "the removal left the program")
    hold((root / "var/lib/stoker/node.json").exists() and toml.exists(), "the removal took data away")
    inside("dpkg", "--install", f"/{second.name}")
    same(root, inside)

    inside("dpkg", "--purge", "stoker")
    left = [path for path in ("var/lib/stoker", "etc/stoker") if (root / path).exists()]
    hold(not left, f"the purge left {left}")
    inside("getent", "passwd", "stoker", fails=True)


def same(root, inside):
    """What was written is still there, byte for byte."""
    with node(root, inside):
        inside("stoker", "get", "--force", "data/f", "/out") if "--force" in inside("stoker", "get", "--help") else inside("stoker", "get", "data/f", "/out")
        hold((root / "in").read_bytes() == (root / "out").read_bytes(), "the file is another one")
    (root / "out").unlink()


class node:
    """The node as its unit starts it, by hand: a chroot has no systemd."""

    def __init__(self, root, inside):
        self.root, self.inside = root, inside

    def __enter__(self):
        command = ["chroot", str(self.root), "runuser", "-u", "stoker", "--", "/usr/bin/stoker", "serve", "--json",
                   "--config", "/etc/stoker/stoker.toml"]  # fmt: skip
        self.log = open(self.root / "node.log", "w")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("{"):
            raise Failed(f"the packaged node does not start: {line}{(self.root / 'node.log').read_text()[-2000:]}")

    def __exit__(self, *_):
        # runuser hands the signal on.
        self.process.terminate()
        try:
            self.process.wait(MINUTE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed("the packaged node does not stop") from None
        deadline = time.monotonic() + MINUTE
        socket = self.root / "var/lib/stoker/stoker.sock"
        while socket.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.log.close()
