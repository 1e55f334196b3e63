"""Probes of POSIX and of Linux: each call is made on the mount and on a file system of this machine, and the answers are compared.

  python3 tests/apps/run.py --stoker ... --only posix
  STOKER_PROBES=renaming,times python3 tests/apps/run.py --stoker ... --only posix

A difference is a defect, or it is in `KNOWN` with the reason, which docs/semantics.md has too.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

PROBES = pathlib.Path(__file__).resolve().parents[1] / "posix"
sys.path.insert(0, str(PROBES))

# Groups that every check runs; the others take longer.
QUICK = ("nowhere", "acls", "holes", "maps", "programs", "special")
# Where answers differ: group, label, and the answer here. All three are patterns of the whole text.
KNOWN = [
    # No files without a name from the start.
    ("tmpfile", "O_TMPFILE", "EOPNOTSUPP"),
    ("tmpfile", "unseen|named|tree|bytes|one that stays unnamed", "-"),
    # Ranges are not cut out of a file or put into it.
    ("holes", "may lack (8|32)", "EOPNOTSUPP"),
    # Each file system has a largest offset of its own.
    ("offsets", "lseek 0 4611686018427387904", "4611686018427387904"),
    # The kernel ends the set-group bit of such a file only for local file systems: without the group's right to run it, it stands for locks.
    ("setid", ".* (2767|6666) 1002", ".* 0o2(767|666)"),
    # Nothing is changed, so nothing is told to a file system of FUSE.
    ("times", "chown none", ".* f:- twin:- .*"),
    # Space is not set aside, so nothing changes.
    ("times", "fallocate kept", "ok f:- twin:- .*"),
    # The kernel leaves an open that cuts to the file system, which takes no bits away, and sends it before it looks whether the file may be cut.
    ("setid", "open trunc .*", ".*"),
    ("programs", "it runs on", "-7"),
    # It does not run any more by then.
    ("programs", "while it runs: truncate", "ok"),
    # A list that is not there cannot be removed.
    ("acls", ". removed again", "ENODATA"),
    ("acls", "bad: empty", r"\('ENODATA', 'ENODATA', .*"),
    # A directory has two links, whatever is in it.
    ("directories", "links( after .*)?", r"2|\(2, 2\)"),
]


def posix(rig, run):
    """Answers of the mount against those of the file system beside it."""
    if os.geteuid() != 0:
        return "skipped: it takes root to be several users"
    chosen = os.environ.get("STOKER_PROBES", "")
    groups = chosen.split(",") if chosen else run.number(QUICK, None, None)
    expected, found = answers(rig, groups, rig.aside), answers(rig, groups, rig.mnt)
    odd, known, count = [], 0, 0
    for group, lines in expected.items():
        for label in lines | found[group]:
            here, there = found[group].get(label, "-"), lines.get(label, "-")
            count += 1
            if here == there:
                continue
            if any(re.fullmatch(a, group) and re.fullmatch(b, label, re.S) and re.fullmatch(c, here, re.S) for a, b, c in KNOWN):
                known += 1
            else:
                odd.append(f"{group}: {label}\n    here      {here}\n    elsewhere {there}")
    if os.environ.get("STOKER_PROBES_TO"):
        pathlib.Path(os.environ["STOKER_PROBES_TO"]).write_text("\n".join(odd))
    assert not odd, f"{len(odd)} of {count} answers differ:\n" + "\n".join(odd)[:20_000]
    return f"{len(expected)} groups, {count:,} answers, {known} differ as docs/semantics.md says"


def answers(rig, groups, folder):
    """What the probes say of a directory: {group: {label: answer}}."""
    place = pathlib.Path(folder) / "probes"
    place.mkdir()
    script = f"import sys; sys.path.insert(0, {str(PROBES)!r}); sys.dont_write_bytecode = True; import walk; walk.main()"
    done = subprocess.run(
        [sys.executable, "-c", script, str(place), ",".join(groups or [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=3600
    )
    assert done.returncode == 0, f"the probes of {folder} ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return json.loads(done.stdout)
