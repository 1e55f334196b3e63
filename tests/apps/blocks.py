"""Reads and writes inside files: fio, fsx, 64 processes at once, and a mount process that is killed under load."""

import hashlib
import os
import pathlib
import subprocess
import sys
import threading

import programs

FIO = "fio --group_reporting --minimal --verify=crc32c --verify_fatal=1 --do_verify=1 --fallocate=none --directory=."
# Of the mount, unless it is told otherwise.
THREADS = 32
# fsx in full: every operation that it has and Linux offers.
FSX = """flen = 1000000
[opsize]
max = 131072
[weights]
close_open = 2.0
invalidate = 1.0
mapread = 5.0
mapwrite = 5.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 1.0
fdatasync = 1.0
posix_fallocate = 1.0
punch_hole = 2.0
sendfile = 2.0
posix_fadvise = 1.0
copy_file_range = 2.0
"""


def fio(rig, run):
    """What fio wrote it reads back with its checksum, in every order and through every way into the kernel."""
    size, jobs = f"{run.number(4, 64, 256)}m", run.number(2, 4, 4)
    kinds = {
        "sequential": f"--rw=write --bs=128k --ioengine=psync --numjobs={jobs}",
        "random": f"--rw=randwrite --bs=4k --ioengine=libaio --iodepth=16 --numjobs={jobs} --fsync=64",
        "direct": f"--rw=randwrite --bs=16k --ioengine=libaio --iodepth=8 --direct=1 --numjobs={jobs}",
        "mapped": f"--rw=randwrite --bs=4k --ioengine=mmap --numjobs={jobs}",
        "mixed": f"--rw=randrw --bsrange=512-64k --bs_unaligned --ioengine=psync --numjobs={jobs} --end_fsync=1",
        "one file of all": f"--rw=randwrite --bs=4k --ioengine=psync --numjobs={jobs} --filename=shared"
        f" --offset_increment={size}",
    }
    for name, how in kinds.items():
        rig.sh(f"{FIO} --name={name.replace(' ', '-')} --size={size} {how}")
    rig.remount()
    # And what is there after that is still what was written.
    for name, how in list(kinds.items())[:2]:
        rig.sh(f"{FIO} --name={name} --size={size} --verify_only {how}")
    return f"{len(kinds)} ways, {jobs} jobs of {size}"


def fsx(rig, run):
    seeds, steps = run.number(1, 3, 10), run.number(2_000, 100_000, 100_000)
    (rig.aside / "fsx.toml").write_text(FSX)
    for seed in range(run.seed, run.seed + seeds):
        rig.sh(f"{programs.find('fsx')} -q -f {rig.aside}/fsx.toml -P {rig.aside} -N {steps} -S {seed} exercised")
    rig.remount()
    return f"{seeds} seeds of {steps:,} operations"


# Appends records and syncs them; what was acknowledged is noted outside of the mount.
WRITER = """
import hashlib, os, sys
path, notes, record = sys.argv[1], sys.argv[2], int(sys.argv[3])
notes = open(notes, 'w')
file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
at = 0
try:
    while True:
        # Every third one overwrites an older record, with other bytes.
        place = at // 2 if at % 3 == 2 else at
        data = hashlib.sha256(b'%s %d' % (path.encode(), at)).digest() * (record // 32)
        notes.write(f'begin {place} {at}\\n'); notes.flush()
        os.pwrite(file, data, place * record)
        (os.fsync if at % 2 else os.fdatasync)(file)
        notes.write(f'synced {place} {at}\\n'); notes.flush()
        at += 1
except OSError:
    pass
"""


def mount_killed(rig, run):
    """The mount process is killed under fio and under writers that sync: after a new mount every synced byte is there."""
    rounds, writers, record = run.number(1, 4, 10), 3, 16 * 1024
    (rig.aside / "writer.py").write_text(WRITER)
    total = 0
    for round in range(rounds):
        load = subprocess.Popen(
            ["bash", "-c", f"exec {FIO} --name=load{round} --rw=randrw --bs=8k --size=16m --numjobs=3 --time_based --runtime=600"],
            cwd=rig.mnt, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        ) if programs.find("fio") else None  # fmt: skip
        paths = [rig.mnt / f"log{round}.{at}" for at in range(writers)]
        notes = [rig.aside / f"notes{round}.{at}" for at in range(writers)]
        working = [
            subprocess.Popen([sys.executable, str(rig.aside / "writer.py"), str(path), str(note), str(record)])
            for path, note in zip(paths, notes)
        ]
        enough, pause = run.number(20, 60, 100), threading.Event()
        while any(not note.exists() or note.read_text().count("synced") < enough for note in notes):
            assert all(one.poll() is None for one in working), "a writer ended although the mount lived"
            pause.wait(0.05)
        rig.mounted.kill()
        rig.mounted.wait()
        for one in [*working, *([load] if load else [])]:
            one.wait(timeout=120)
        rig.mount()
        total += sum(synced(path, note, record) for path, note in zip(paths, notes))
    return f"{rounds} kills, {total:,} synced records"


def synced(path, note, record):
    """How many records were acknowledged; each is there, or a later one that was begun in its place."""
    durable, begun = {}, {}
    for line in note.read_text().splitlines():
        what, place, at = line.split()
        if what == "synced":
            durable[int(place)] = int(at)
            begun[int(place)] = set()
        else:
            begun.setdefault(int(place), set()).add(int(at))
    data = pathlib.Path(path).read_bytes()
    for place, at in durable.items():
        found = data[place * record : (place + 1) * record]
        allowed = [hashlib.sha256(b"%s %d" % (str(path).encode(), one)).digest() * (record // 32) for one in {at} | begun[place]]
        # A record that was under way over this one may be there in part.
        pieces = {found[start : start + 4096] for start in range(0, record, 4096)}
        known = {one[start : start + 4096] for one in allowed for start in range(0, record, 4096)}
        assert len(found) == record and pieces <= known, f"{path}: record {place} is not what was synced as {at}"
    return len(durable)


def crowd(rig, run):
    """64 processes read and write at once; the mount process stays within what it says that it needs."""
    size, rounds = run.number(1, 16, 32), run.number(1, 3, 6)
    buffer_bytes = 64 << 20
    rig.remount("--buffer", "64MiB")
    rig.sh(f"head -c {size * 4}M /dev/urandom > source")
    script = f"""
        work() {{
            for at in $(seq {rounds}); do
                dd if=source of=copy$1 bs=64k count={size * 16} status=none
                cmp -n {size << 20} source copy$1
                dd if=copy$1 of=/dev/null bs=4k status=none
                mv copy$1 old$1
            done
        }}
        for one in $(seq 64); do work $one & all="${{all:-}} $!"; done
        for one in $all; do wait $one; done"""
    rig.sh(script)
    status = pathlib.Path(f"/proc/{rig.mounted.pid}/status").read_text()
    peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
    limit = memory_max(buffer_bytes)
    assert peak <= limit, f"the mount process had {peak >> 20} MiB, and says that it needs {limit >> 20} MiB at most"
    rig.remount()
    rig.sh(f"for one in $(seq 64); do cmp -n {size << 20} source old$one; done")
    return f"64 processes, {peak >> 20} MiB of {limit >> 20}"


def memory_max(buffer_bytes):
    """As `stoker mount --help` has it."""
    return buffer_bytes + (256 << 20) + THREADS * (8 << 20)
