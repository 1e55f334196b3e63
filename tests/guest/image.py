"""What a guest boots from: a kernel of Debian, and a memory file system with busybox, the modules for NFS and a script."""

import lzma
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))

import programs

PACKAGE = "linux-image-cloud-amd64"
MODULES = ("virtio_pci", "virtio_net", "nfsv3")
FOLDERS = ("bin", "dev", "proc", "sys", "tmp", "mnt", "modules", "etc")
DIRECTORY, FILE, LINK = 0o040755, 0o100755, 0o120777


class Missing(Exception):
    """Something cannot be had; the text says what."""


def kernel():
    """The folder of an unpacked kernel package, from the cache or from Debian."""
    place = programs.cache() / "kernel"
    if not list(place.glob("boot/vmlinuz-*")):
        for need in ("apt-get", "apt-cache", "dpkg-deb"):
            if not shutil.which(need):
                raise Missing(f"a Debian kernel: this machine has no {need}")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        # The package that is named depends on the one that has the kernel.
        depends = subprocess.run(["apt-cache", "depends", PACKAGE], capture_output=True, text=True).stdout
        found = re.search(r"Depends: (linux-image-\S+)", depends)
        if not found:
            raise Missing(f"a Debian kernel: apt does not know {PACKAGE}")
        done = subprocess.run(["apt-get", "download", found[1]], cwd=place, capture_output=True, text=True)
        packed = list(place.glob("*.deb"))
        if done.returncode or not packed:
            raise Missing(f"a Debian kernel: {' '.join(done.stderr.split()[-20:])}")
        # As a user: what it unpacks belongs to whoever runs this.
        subprocess.run(["dpkg-deb", "-x", str(packed[0]), str(place)], check=True)
        packed[0].unlink()
    return place


def module_files(place, names):
    """The bytes of modules and of what they depend on, in the order in which they are loaded."""
    known = {}
    for path in place.glob("lib/modules/**/*.ko*"):
        known[path.name.split(".")[0].replace("-", "_")] = path
    loaded = {}

    def load(name):
        path = known.get(name)
        # What is not a file is in the kernel.
        if name in loaded or path is None:
            return
        data = path.read_bytes()
        data = lzma.decompress(data) if path.suffix == ".xz" else data
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for other in filter(None, depends[1].decode().split(",") if depends else []):
            load(other.replace("-", "_"))
        loaded[name] = data

    for name in names:
        load(name)
    return loaded


def archive(entries):
    """A cpio archive in the form that the kernel unpacks: (path, mode, bytes)."""
    out = bytearray()
    for number, (path, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")]):
        name = path.encode() + b"\0"
        fields = (number + 1, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def build(to, script, variables):
    """Writes the memory file system; returns the path of the kernel."""
    place = kernel()
    busybox = programs.find("busybox")
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    modules = module_files(place, MODULES)
    settings = "".join(f"{name}={value}\n" for name, value in variables.items())
    load = "".join(f"insmod /modules/{name}.ko\n" for name in modules)
    entries = [(name, DIRECTORY, b"") for name in FOLDERS]
    entries += [("bin/busybox", FILE, pathlib.Path(busybox).read_bytes())]
    entries += [(f"bin/{name}", LINK, b"busybox") for name in applets if name != "busybox"]
    entries += [(f"modules/{name}.ko", FILE, data) for name, data in modules.items()]
    entries += [("etc/settings", FILE, settings.encode()), ("etc/load", FILE, load.encode())]
    entries += [("init", FILE, pathlib.Path(script).read_bytes())]
    if programs.find("fsx") == str(programs.fsx_path()):
        entries += [("bin/fsx", FILE, programs.fsx_path().read_bytes())]
    pathlib.Path(to).write_bytes(archive(entries))
    return next(place.glob("boot/vmlinuz-*"))
