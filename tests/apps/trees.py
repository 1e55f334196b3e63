"""Applications that make, copy and compare many files: git, tar, rsync, cargo, cp."""

import os
import pathlib
import shutil
import subprocess
import threading

GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def sample(folder, count):
    """Small files of many lengths in folders of 100, with links and modes."""
    folder.mkdir()
    for at in range(count):
        below = folder / f"d{at // 100}"
        if at % 100 == 0:
            below.mkdir()
            (below / "link").symlink_to("f1")
        path = below / f"f{at % 100}"
        path.write_bytes((b"%d " % at) * (at * 7 % 1500))
        path.chmod(0o600 + at % 64)
    return folder


def listed(rig, at):
    """Names, modes, lengths, times and link targets."""
    return rig.sh("find . -type f -printf '%P %m %s %T@\n' -o -type l -printf '%P -> %l\n' | sort", at=at)


def git(rig, run):
    """A clone of this repository with its history, packed again and checked."""
    source = rig.aside / "source.git"
    rig.sh(f"git clone -q --bare --no-local {CHECKOUT} {source}", at=rig.aside, **GIT)
    script = f"""
        git clone -q {source} clone; cd clone; git config user.email a@b; git config user.name n
        git fsck --strict --no-progress; git gc -q --prune=now; git fsck --strict --no-progress
        for at in $(seq {run.number(5, 50, 200)}); do echo $at >> new; git add new; git commit -qm "change $at"; done
        git repack -q -a -d; git fsck --strict --no-progress; test -z "$(git status --porcelain)"
        cd ..; git clone -q --no-local clone second; cd second; git fsck --strict --no-progress
        test "$(git rev-parse HEAD)" = "$(git -C ../clone rev-parse HEAD)"
        git -C ../clone count-objects -v | grep in-pack"""
    words = rig.sh(script, **GIT).split("\n")[-2]
    rig.remount()
    rig.sh("cd second; git fsck --strict --no-progress; test -z \"$(git status --porcelain)\"", **GIT)
    return f"{words.split()[-1]} objects"


def tar(rig, run):
    count = run.number(1_000, 50_000, 50_000)
    source = sample(rig.aside / "sample", count)
    # Other formats of tar have whole seconds.
    rig.sh(f"tar cf packed.tar --format=posix -C {rig.aside} sample; tar xpf packed.tar; diff -r --no-dereference {source} sample")
    rig.remount()
    rig.sh(f"diff -r --no-dereference {source} sample; tar df packed.tar")
    assert listed(rig, source) == listed(rig, rig.mnt / "sample"), "modes or times differ"
    return f"{count:,} files"


def rsync(rig, run):
    count = run.number(300, 50_000, 50_000)
    source = sample(rig.aside / "sample", count)
    same = f"test -z \"$(rsync -aHi --checksum --delete --dry-run {source}/ copy/)\""
    rig.sh(f"rsync -aH {source}/ copy/; {same}")
    # Some change, some go, some come, and there are hard links now.
    for at in range(0, count, 10):
        path = source / f"d{at // 100}" / f"f{at % 100}"
        if at % 30 == 0:
            path.unlink()
        elif at % 30 == 10:
            path.write_text(f"changed {at}")
        else:
            os.link(path, path.with_name(f"second name of {at}"))
    rig.sh(f"rsync -aH --delete {source}/ copy/; {same}; rsync -aH --delete --inplace --no-whole-file {source}/ copy/")
    rig.remount()
    rig.sh(f"{same}; diff -r --no-dereference {source} copy")
    return f"{count:,} files"


def cargo(rig, run):
    """A workspace without dependencies, its target folder on the mount as well."""
    crates = run.number(2, 8, 20)
    for at in range(crates):
        below = rig.mnt / "work" / f"part{at}" / "src"
        below.mkdir(parents=True)
        uses = f'part{at - 1} = {{ path = "../part{at - 1}" }}' if at else ""
        (below.parent / "Cargo.toml").write_text(
            f'[package]\nname = "part{at}"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{uses}\n'
        )
        body = f"part{at - 1}::value() + 1" if at else "1"
        (below / "lib.rs").write_text(
            f"pub fn value() -> u32 {{ {body} }}\n#[test]\nfn it_counts() {{ assert_eq!(value(), {at + 1}); }}\n"
        )
    (rig.mnt / "work" / "Cargo.toml").write_text('[workspace]\nmembers = ["part*"]\nresolver = "2"\n')
    environment = {"CARGO_TARGET_DIR": str(rig.mnt / "work" / "target"), "CARGO_INCREMENTAL": "1", "RUSTFLAGS": ""}
    rig.sh("cd work; cargo build --offline --quiet; cargo test --offline --quiet", **environment)
    # What has not changed is not built again: times and names are what cargo believes in.
    words = rig.sh("cd work; cargo build --offline -v 2>&1", **environment)
    assert "Compiling" not in words and "Dirty" not in words, words
    rig.sh("cd work; echo '// more' >> part0/src/lib.rs; cargo build --offline --quiet; cargo clean", **environment)
    return f"{crates} crates"


def node_killed(rig, run):
    """The node is killed again and again under `cp -r`. It waits and goes on, and nothing is missing."""
    source = sample(rig.aside / "sample", run.number(300, 2_000, 20_000))
    kills = run.number(1, 3, 8)
    killed = 0
    for round in range(kills):
        copy = rig.mnt / f"copy{round}"
        copying = subprocess.Popen(["cp", "-r", str(source), str(copy)])
        try:
            begun = threading.Event()
            # Something is on its way when it dies: a share of the folders is there.
            share = len(list(source.iterdir())) * (round + 1) // (kills + 1)
            while copying.poll() is None and (not copy.is_dir() or len(os.listdir(copy)) < share):
                begun.wait(0.01)
            killed += copying.poll() is None
            rig.kill_node()
            assert copying.wait(timeout=1800) == 0, "cp failed"
        finally:
            copying.kill()
            copying.wait()
        rig.sh(f"diff -r --no-dereference {source} {copy}")
    rig.remount()
    for round in range(kills):
        rig.sh(f"diff -r --no-dereference {source} copy{round}")
    assert killed, "every copy was done before the node died"
    return f"{killed} kills under cp"


def cleared(rig):
    """Everything is removed, as people do it; the next application begins with nothing."""
    rig.sh("find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +; test -z \"$(ls -A)\"")
    shutil.rmtree(rig.aside)
    rig.aside.mkdir()
    rig.aside.chmod(0o755)
