"""Machines without hardware: network namespaces on a bridge, and a disk each, which is a file system in a file."""

import os
import pathlib
import subprocess


class Cannot(Exception):
    """What is needed cannot be had here; the text says why."""


def call(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Cannot(f"{' '.join(str(word) for word in command)}: {done.stdout.strip()}")
    return done.stdout.strip()


class Net:
    """Namespaces with one address each on a common bridge, and nothing else in sight of them."""

    def __init__(self, names):
        pid = os.getpid()
        self.tag, self.network, self.names = f"wk{pid % 100_000}", f"10.78.{pid % 250}", list(names)

    def __enter__(self):
        try:
            self.make()
        except (Cannot, OSError) as why:
            self.__exit__()
            raise Cannot(f"network namespaces cannot be made: {why}") from why
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.tag}b"], capture_output=True)

    def make(self):
        call("ip", "link", "add", f"{self.tag}b", "type", "bridge")
        call("ip", "link", "set", f"{self.tag}b", "up")
        for name in self.names:
            space, cable = self.space(name), self.cable(name)
            call("ip", "netns", "add", space)
            call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            call("ip", "link", "set", cable, "master", f"{self.tag}b", "up")
            call("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                call("ip", "-n", space, "link", "set", link, "up")

    def space(self, name):
        return f"{self.tag}{name}"

    def cable(self, name):
        return f"{self.tag}c{self.names.index(name)}"

    def address(self, name):
        return f"{self.network}.{self.names.index(name) + 1}"

    def cut(self, name):
        """Takes the link of a machine down: what is sent to it is lost, and nobody is refused."""
        call("ip", "-n", self.space(name), "link", "set", "eth0", "down")

    def heal(self, name):
        call("ip", "-n", self.space(name), "link", "set", "eth0", "up")


def within(space, command):
    """A command in the network of a machine. It sees the same mounts as everybody: `ip netns exec` would give it a copy."""
    return ["nsenter", f"--net=/run/netns/{space}", "--", *command]


class Disk:
    """A file system of its own, that others can fill."""

    def __init__(self, folder, name, mib):
        self.file, self.top = pathlib.Path(folder) / f"{name}.disk", pathlib.Path(folder) / name
        self.mib = mib

    def __enter__(self):
        self.top.mkdir()
        with open(self.file, "wb") as file:
            file.truncate(self.mib << 20)
        try:
            call("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.file)
            call("mount", "-o", "loop", self.file, self.top)
        except (Cannot, OSError) as why:
            raise Cannot(f"a file system in a file cannot be mounted: {why}") from why
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "--lazy", str(self.top)], capture_output=True)
        self.file.unlink(missing_ok=True)

    def fill(self):
        """Takes all the room there is, to the last block."""
        with open(self.top / "filler", "ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    pass

    def free(self):
        (self.top / "filler").unlink()
