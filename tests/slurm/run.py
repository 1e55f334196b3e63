#!/usr/bin/env python3
"""Jobs under a real Slurm: a controller and two nodes, with the hooks of deploy/slurm, in front of a real cell.

  python3 tests/slurm/run.py --stoker target/release/stoker
  python3 tests/slurm/run.py --stoker ... --size 8GiB

queue        a job whose input is in the lake alone waits behind another one, and is staged meanwhile
start        when it starts no byte is read from the lake; mounts, scratch of a hard size and an output directory are there
beside it    the same input without staging: how long until the first batch is read, and until all is
end          its output is in the lake when Slurm says that it is over, and nothing stays mounted, pinned or reserved
refused      a spec with an unknown field is refused by sbatch, with line and column
no source    a job whose source is not there is held, and says why
cancelled    scancel of a job that waits lets go of what was staged for it

Needs root, /dev/fuse and Debian's slurmctld, slurmd, slurm-client, munge and lua-posix; installs nothing.
Exit code: 0 passed, 1 something failed, 3 what it needs could not be had.
"""

import argparse
import hashlib
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NOT_HERE = 3
MIB = 1 << 20
FILES = 8
SCRATCH = 16 * MIB
UNITS = {"MiB": MIB, "GiB": 1 << 30}
USER = "nobody"

CONF = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.sock
CredType=cred/munge
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
ReturnToService=2
BurstBufferType=burst_buffer/lua
Prolog={run}/prolog.sh
Epilog={run}/epilog.sh
PrologFlags=Alloc
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=1 RealMemory=500 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=1 RealMemory=500 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=60 State=UP
"""

READER = """
import hashlib, os, pathlib, sys, time
begun = time.monotonic()
first = None
sums = {}
for path in sorted(pathlib.Path(os.environ["STOKER_ROOT"] + "/data/input").iterdir()):
    sums[path.name] = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            sums[path.name].update(block)
            first = first or time.monotonic() - begun
import json
print(json.dumps({"first_s": first, "all_s": time.monotonic() - begun,
                  "sums": {name: sum.hexdigest() for name, sum in sums.items()}}))
"""


class Missing(Exception):
    """What it needs is not here."""


class Failed(Exception):
    """Something is not as it should be."""


def say(text):
    print(f"slurm: {text}", flush=True)


def size_of(text):
    for unit, scale in UNITS.items():
        if text.endswith(unit):
            return int(text[: -len(unit)]) * scale
    raise argparse.ArgumentTypeError("write 256MiB or 8GiB")


def check(holds, text):
    if not holds:
        raise Failed(text)


def within(seconds, what, look):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    raise Failed(f"not within {seconds} s: {what}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Run:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.run, self.lake, self.jobs = folder / "slurm", folder / "lake", folder / "jobs"
        self.processes, self.nodes = [], []
        self.environment = {**os.environ, "SLURM_CONF": str(self.run / "slurm.conf")}

    # The cell.

    def start_cell(self):
        size = self.args.size // FILES
        self.sums = {}
        for kind in ("staged", "beside"):
            place = self.lake / "data" / kind
            place.mkdir(parents=True)
            sums = {}
            for number in range(FILES):
                sum, left = hashlib.sha256(), size
                with open(place / f"part-{number}", "wb") as file:
                    while left:
                        block = os.urandom(min(left, 4 * MIB))
                        sum.update(block)
                        file.write(block)
                        left -= len(block)
                sums[f"part-{number}"] = sum.hexdigest()
            self.sums[kind] = sums
        ring = max(1 << 30, 6 * self.args.size)
        command = [self.args.stoker, "up", "--nodes", "2", "--dir", self.folder / "cell", "--lake", self.lake]
        command += ["--size", str(ring // MIB) + "MiB", "--json"]
        log = open(self.folder / "cell.log", "ab")
        cell = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes.append(cell)
        line = cell.stdout.readline()
        check(line, f"the cell does not start: {(self.folder / 'cell.log').read_text()[-2000:]}")
        self.nodes = json.loads(line)
        self.stoker("volume", "create", "results", "--drain", "always")

    def stoker(self, *words, node=0, refused=False):
        command = [str(self.args.stoker), *words, "--dir", self.nodes[node]["dir"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        check(refused or done.returncode == 0, f"{' '.join(command)}: {done.stderr}")
        return done.stderr if refused else done.stdout

    def job(self, number):
        return json.loads(self.stoker("job", "show", f"slurm-{number}", "--json"))

    def stands(self, number):
        """The state of a job; none as long as Slurm did not hand it over."""
        command = [str(self.args.stoker), "job", "show", f"slurm-{number}", "--json", "--dir", self.nodes[0]["dir"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout)["state"] if done.returncode == 0 else None

    def metric(self, name):
        total = 0.0
        for node in self.nodes:
            head = {"Authorization": f"Bearer {node['view_token']}"}
            asked = urllib.request.Request(node["admin"] + "/metrics", headers=head)
            for line in urllib.request.urlopen(asked, timeout=20).read().decode().splitlines():
                if line.split("{")[0].split(" ")[0] == name:
                    total += float(line.rsplit(" ", 1)[1])
        return total

    def lake_bytes(self):
        return int(self.metric("stoker_lake_read_bytes_total"))

    # Slurm.

    def start_slurm(self):
        run = self.run
        for folder in (run, run / "state", run / "spool", self.jobs):
            folder.mkdir(parents=True, exist_ok=True)
        # As deploy/slurm has them; only where they find their settings is another place.
        settings = (ROOT / "deploy/slurm/stoker.env").read_text().splitlines()
        own = {
            "STOKER_BIN": self.args.stoker,
            "STOKER_ARGS": f"--dir {self.nodes[0]['dir']}",
            "STOKER_OWNERS": run / "owners",
            "JOBS_DIR": self.jobs,
            "SCRATCH_DIR": self.folder / "scratch",
        }
        lines = [f"{line.split('=')[0]}={own.get(line.split('=')[0], line.split('=', 1)[1])}" for line in settings if line[:1] not in ("", "#")]
        (run / "slurm.env").write_text("\n".join(lines) + "\n")
        for name in ("burst_buffer.lua", "burst_buffer.conf", "prolog.sh", "epilog.sh"):
            text = (ROOT / "deploy/slurm" / name).read_text()
            (run / name).write_text(text.replace("/etc/stoker/slurm.env", str(run / "slurm.env")))
            (run / name).chmod(0o755)
        (run / "munge.key").write_bytes(os.urandom(1024))
        (run / "munge.key").chmod(0o400)
        names = {"host": socket.gethostname().split(".")[0], "port": free_port(), "run": run}
        names |= {"port1": free_port(), "port2": free_port()}
        (run / "slurm.conf").write_text(CONF.format(**names))
        munge = ["munged", "--force", "--foreground", f"--key-file={run}/munge.key", f"--socket={run}/munge.sock"]
        munge += [f"--pid-file={run}/munged.pid", f"--log-file={run}/munged.log", f"--seed-file={run}/munge.seed"]
        self.spawn(munge, "munged")
        within(30, "munged is there", lambda: (run / "munge.sock").exists())
        self.spawn(["slurmctld", "-D", "-f", run / "slurm.conf"], "slurmctld")
        for node in ("n1", "n2"):
            self.spawn(["slurmd", "-D", "-N", node, "-f", run / "slurm.conf"], f"slurmd-{node}")
        idle = lambda: self.slurm("sinfo", "-h", "-o", "%T", refused=True).split() == ["idle"]  # noqa: E731
        within(60, "both nodes of Slurm are idle", idle)

    def spawn(self, command, name):
        log = open(self.run / f"{name}.out", "ab")
        done = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, env=self.environment)
        self.processes.append(done)

    def slurm(self, *command, refused=False, user=False):
        prefix = []
        if user:
            who = pwd.getpwnam(USER)
            prefix = ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups"]
        done = subprocess.run(
            [*prefix, *command], capture_output=True, text=True, timeout=120, env=self.environment, cwd=self.folder / "user"
        )
        check(refused or done.returncode == 0, f"{' '.join(command)}: {done.stderr}")
        return done.stdout + (done.stderr if refused else "")

    def submit(self, name, spec, body, nodes=2):
        script = self.folder / "user" / f"{name}.sh"
        lines = ["#!/bin/bash", f"#SBATCH -J {name} -N {nodes} --exclusive -t 10 -o {self.folder}/user/{name}.out"]
        lines += [f"#STOKER {line}" for line in spec.strip("\n").splitlines()]
        script.write_text("\n".join(lines) + "\n" + body + "\n")
        script.chmod(0o755)
        return script

    def sbatch(self, script):
        said = self.slurm("sbatch", "--parsable", str(script), user=True)
        return int(said.split(";")[0].strip().splitlines()[-1])

    def state(self, number):
        said = self.slurm("scontrol", "show", "job", str(number), "-o", refused=True)
        found = dict(part.split("=", 1) for part in said.split() if "=" in part)
        return found.get("JobState", "GONE"), found.get("Reason", "")

    def over(self, number, seconds):
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        return within(seconds, f"job {number} is over: {self.state(number)}", lambda: self.state(number)[0] in ends and self.state(number)[0])

    def block(self, name):
        go = self.folder / "user" / f"{name}.go"
        script = self.submit(name, "", f"while [ ! -e {go} ]; do sleep 0.1; done")
        number = self.sbatch(script)
        within(60, "the job in front runs", lambda: self.state(number)[0] == "RUNNING")
        return number, go

    def mounted(self):
        return [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if str(self.jobs) in line]

    # What is shown.

    def spec(self, source, tier):
        return f"""
data:
  mounts:
    - source: s3://data/{source}
      target: /data/input
      tier_hint: {tier}
  output: s3://results/{source}/{{allocation_id}}/
  scratch_per_node: {SCRATCH}
"""

    def queue_and_start(self):
        _, go = self.block("front")
        before = self.lake_bytes()
        reader = self.folder / "user" / "reader.py"
        reader.write_text(READER)
        body = f"""
set -e
python3 {reader} > $STOKER_ROOT/output/read.json
touch $STOKER_ROOT/scratch/mine
dd if=/dev/zero of=$STOKER_ROOT/scratch/large bs=1M count={2 * SCRATCH // MIB} 2>/dev/null && exit 9
touch $STOKER_ROOT/data/input/mine 2>/dev/null && exit 8
echo "$STOKER_JOB $STOKER_OUTPUT" > $STOKER_ROOT/output/names
"""
        begun = time.monotonic()
        number = self.sbatch(self.submit("train", self.spec("staged", "hot"), body))
        ready = lambda: self.job(number)["state"] == "ready"  # noqa: E731
        within(300, "the data is there", lambda: self.stoker("job", "ls", "--json") and ready())
        staged_s = time.monotonic() - begun
        state, reason = self.state(number)
        check(state == "PENDING", f"it is staged while it waits, and not {state} ({reason})")
        staged = self.lake_bytes()
        check(staged - before == self.args.size, f"each byte comes from the lake once: {staged - before} of {self.args.size}")
        say(f"queue: {self.args.size // MIB} MiB staged in {staged_s:.1f} s, while Slurm says PENDING ({reason})")
        go.touch()
        ended = self.over(number, 300)
        check(ended == "COMPLETED", f"the job is {ended}: {self.words(number, 'train')}")
        came, hedges = self.lake_bytes() - staged, int(self.metric("stoker_read_hedges_total"))
        # A drive that is late on a busy machine is given company by the lake, one chunk each time, and the metric says so.
        check(came <= hedges * 4 * MIB, f"{came} bytes came from the lake while it ran, and {hedges} reads were hedged")
        output = self.lake / "results" / "staged" / f"slurm-{number}"
        check((output / "read.json").exists(), f"its output is in the lake when it is over: {sorted(output.rglob('*'))}")
        read = json.loads((output / "read.json").read_text())
        check(read["sums"] == self.sums["staged"], "the job read what is in the lake")
        check((output / "names").read_text().startswith("slurm-"), (output / "names").read_text())
        say(f"start: {came} bytes from the lake ({hedges} hedged reads); first batch after {read['first_s'] * 1000:.0f} ms, all after {read['all_s']:.2f} s")
        self.nothing_is_left(number)
        return read

    def beside(self, staged):
        reader = self.folder / "user" / "reader.py"
        body = f"set -e\npython3 {reader} > $STOKER_ROOT/output/read.json"
        before = self.lake_bytes()
        number = self.sbatch(self.submit("beside", self.spec("beside", "warm"), body))
        check(self.over(number, 600) == "COMPLETED", self.words(number, "beside"))
        came = self.lake_bytes() - before
        check(came >= self.args.size, f"without staging it comes from the lake: {came} bytes")
        output = self.lake / "results" / "beside" / f"slurm-{number}"
        read = json.loads((output / "read.json").read_text())
        check(read["sums"] == self.sums["beside"], "the job read what is in the lake")
        say(f"beside it: without staging the first batch after {read['first_s'] * 1000:.0f} ms, all after {read['all_s']:.2f} s; "
            f"staged: {staged['first_s'] * 1000:.0f} ms and {staged['all_s']:.2f} s")

    def words(self, number, name):
        out = self.folder / "user" / f"{name}.out"
        return f"{self.state(number)} {out.read_text() if out.exists() else ''} {self.stoker('job', 'show', f'slurm-{number}')}"

    def nothing_is_left(self, number):
        within(60, f"nothing stays mounted: {self.mounted()}", lambda: not self.mounted())
        within(60, "nothing stays pinned", lambda: self.metric("stoker_jobs_held_bytes") == 0)
        within(60, "the job is over", lambda: self.job(number)["state"] in ("done", "cancelled", "failed"))
        check(not list((self.folder / "scratch").glob("*")), "no scratch stays")

    def refused(self):
        spec = "data:\n  mounts:\n    - source: s3://data/staged\n      taget: /in"
        said = self.slurm("sbatch", str(self.submit("wrong", spec, "true")), user=True, refused=True)
        check("line 6, column 15" in said and "no field `taget`" in said, f"sbatch says: {said}")
        say("refused: " + next(line for line in said.splitlines() if "taget" in line).strip())
        missing = "data:\n  mounts:\n    - source: s3://data/nothing\n      target: /in"
        number = self.sbatch(self.submit("missing", missing, "true"))
        text = lambda: self.slurm("scontrol", "show", "job", str(number), refused=True)  # noqa: E731
        within(60, f"it is held: {text()}", lambda: "is not there" in text())
        self.slurm("scancel", str(number), user=True)
        say("no source: held, and it says why")

    def cancelled(self):
        _, go = self.block("again")
        number = self.sbatch(self.submit("gone", self.spec("staged", "hot"), "true"))
        within(120, "the data is there", lambda: self.stands(number) == "ready")
        check(self.metric("stoker_jobs_held_bytes") > 0, "it is held")
        self.slurm("scancel", str(number), user=True)
        within(60, "it is cancelled", lambda: self.job(number)["state"] == "cancelled")
        self.nothing_is_left(number)
        go.touch()
        say("cancelled: what was staged is let go")

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
        for line in self.mounted():
            subprocess.run(["umount", "-l", line.split()[4]], check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", type=lambda text: pathlib.Path(text).resolve(), required=True)
    parser.add_argument("--size", type=size_of, default=256 * MIB, help="input of the job, such as 8GiB")
    parser.add_argument("--dir", help="where the folder of the run is made")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    args = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise Missing("only root can run a controller and nodes of Slurm here")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise Missing("/dev/fuse cannot be used")
        for program in ("slurmctld", "slurmd", "sbatch", "munged", "setpriv"):
            if not shutil.which(program):
                raise Missing(f"{program} is not installed")
    except Missing as why:
        say(f"cannot run: {why}")
        return NOT_HERE
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-slurm-", dir=args.dir))
    folder.chmod(0o755)
    (folder / "user").mkdir()
    os.chown(folder / "user", pwd.getpwnam(USER).pw_uid, pwd.getpwnam(USER).pw_gid)
    run, passed = Run(args, folder), False
    begun = time.monotonic()
    try:
        run.start_cell()
        run.start_slurm()
        staged = run.queue_and_start()
        run.beside(staged)
        run.refused()
        run.cancelled()
        passed = True
        say(f"passed in {time.monotonic() - begun:.0f} s")
    except (Failed, subprocess.TimeoutExpired) as why:
        say(f"failed: {why}")
        for log in (run.run / "slurmctld.log", run.folder / "cell.log"):
            if log.exists():
                print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:]))
    finally:
        run.stop()
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
