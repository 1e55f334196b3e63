"""The walk: what an operator does with three machines, one step after the other, while clients work."""

import concurrent.futures
import contextlib
import pathlib
import re
import shutil
import signal
import sys
import time
import types

import sitecustomize
from crowd import CliWorker, Crowd, MountWorker, S3Worker, client
from harness import fields, wait_until
from lake import Lake
from machine import Machine, tell
from net import Cannot, Disk, Net

NAME = "cell.test"
PAUSE_S_MAX = 5.0
DISK_MIB = 1600
# Of all nodes: small rings, and a short patience, so that a walk takes minutes. Nothing else is special.
SETTINGS = {"STOKER_UP_SIZE": "512MiB", "STOKER_UP_MEMORY": "512MiB", "STOKER_UP_GRACE": "5s", "STOKER_UP_CORES": "1"}

STEPS = []


def step(name, pause_s_max=PAUSE_S_MAX, why="", clients="work", refusal=None):
    """A step of the walk. Where its bar is another one than usual, `why` says so, and is printed; an error with the words of
    `refusal` is then what clients are to be told."""

    def note(function):
        one = types.SimpleNamespace(name=name, pause_s_max=pause_s_max, why=why, clients=clients, refusal=refusal, run=function)
        STEPS.append(one)
        return function

    return note


class Walk:
    def __init__(self, net, lake, machines, scratch, next_program):
        self.net, self.lake, self.machines, self.scratch = net, lake, machines, scratch
        self.m1, self.m2, self.m3 = machines
        self.next_program = next_program
        self.crowd, self.rows, self.backup = Crowd(), [], scratch / "catalog.backup"
        self.volume = "data"

    # What the cluster says

    def running(self):
        return [machine for machine in self.machines if machine.is_running()]

    def any(self):
        return self.running()[0]

    def nodes(self):
        return {row["name"]: row for row in self.any().ask("stoker node ls")}

    def holder(self):
        """The machine whose node keeps the catalog."""
        found = []

        def is_known():
            said = [said for machine in self.running() for said in machine.ask("stoker catalog status")]
            ids = {row["node"]: name for name, row in self.nodes().items()}
            found[:] = [one for one in self.machines if said and ids.get(said[0]["holder"]) == one.name]
            return bool(found)

        wait_until(is_known, "some node knows who keeps the catalog")
        return found[0]

    def others(self, machine):
        return [one for one in self.running() if one is not machine]

    def until_can_stop(self, machine):
        """The loop that the documents have before a stop."""
        tell(f"{machine.name}$ until stoker node can-stop; do sleep 1; done")
        why = []

        def can_stop():
            code, said = machine.sh(f"stoker node can-stop --dir {machine.dir}", is_told=False)
            why[:] = [said]
            return code == 0

        try:
            wait_until(can_stop, f"{machine.name} can stop", 120)
        except AssertionError as late:
            raise AssertionError(f"{late}: {why[0]}") from None

    def until_whole(self):
        """So that the next loss is the only one: every node could stop, and all others have the catalog."""
        for machine in self.running():
            self.until_can_stop(machine)

        def is_followed():
            status = self.any().ask("stoker catalog status")
            in_sync = [one for one in status[0]["standbys"] if one["in_sync"]] if status else []
            return len(in_sync) == len(self.running()) - 1

        wait_until(is_followed, "every node has the catalog", 120)

    def until_told(self, machine, pattern, seconds=60):
        """Asks a node for its status until that says something, which is printed; what a person takes out of it. Each answer has to
        come soon, whatever is lost."""
        found, said = [], []

        def is_told():
            begun = time.monotonic()
            said[:] = [machine.sh(f"stoker status --dir {machine.dir}", is_told=False)[1]]
            assert time.monotonic() - begun < PAUSE_S_MAX, f"the status of {machine.name} took too long"
            found[:] = re.findall(pattern, said[0])
            return bool(found)

        try:
            wait_until(is_told, f"{machine.name} says what is wrong", seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}: {pattern}\n{said[0] if said else ''}") from None
        tell(f"{machine.name}$ stoker status")
        tell("\n".join(line for line in said[0].splitlines() if line.startswith(("lost", "cure", "as of"))), "  ")
        return found[0]

    # Clients

    def at(self):
        """Access keys, as the first node has written them for its operator."""
        text = (self.m1.dir / "credentials").read_text()
        found = dict(re.findall(r"^(aws_\w+)\s*=\s*(\S+)", text, re.M))
        return types.SimpleNamespace(
            region="stoker", access_key=found["aws_access_key_id"], secret_key=found["aws_secret_access_key"]
        )

    def send_clients(self):
        """Clients of all kinds. Those of S3 know one name with the addresses of all machines."""
        self.keys = self.at()
        endpoint = f"http://{NAME}:9000"
        # Three tries by default; older releases came with the mode `legacy`, which has five.
        for label, config in (("boto3-a", {}), ("boto3-b", {"retries": {"mode": "legacy"}})):
            self.crowd.add(S3Worker(self.crowd, label, self.keys, endpoint, self.volume, self.scratch, **config))
        self.crowd.add(CliWorker(self.crowd, "cli", self.volume, self.machines, self.scratch))
        self.mount = MountWorker(self.crowd, "mount", self.volume, self.scratch)
        self.mount.mount(self.m1)
        self.crowd.add(self.mount)

    def away_from(self, machine):
        """Commands and programs on the machine of a node share its fate: they are sent elsewhere before it is taken away."""
        return self.crowd.of("stoker")[0].away_from(machine)

    @contextlib.contextmanager
    def unnamed(self, machine):
        """Its address is taken out of the name that clients know, as the documents want it before a machine is emptied."""
        tell(f"dns: {NAME} does not lead to {machine.name}")
        sitecustomize._addresses.remove(machine.address)
        self.renew()
        with self.away_from(machine):
            yield
        sitecustomize._addresses.append(machine.address)
        self.renew()

    def renew(self):
        """Clients ask for the name again."""
        for worker in self.crowd.of("s3"):
            with worker.lock:
                worker.left = 0

    # Steps

    def take(self, one):
        print(f"walk: {one.name}", flush=True)
        begun = time.monotonic()
        try:
            one.run(self)
            if self.crowd.workers:
                self.crowd.more()
            trouble = None
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        count, errors, pause, what, tries = self.crowd.seen(begun)
        refused = [error for error in errors if one.refusal and one.refusal in error]
        errors = [error for error in errors if error not in refused]
        took, objects = time.monotonic() - begun, 0
        if self.crowd.workers and not trouble:
            try:
                objects = self.crowd.verify(self.running(), self.keys, self.volume)
            except Exception as error:
                trouble = f"what was acknowledged is not there: {type(error).__name__}: {error}"
        is_late = one.pause_s_max is not None and pause > one.pause_s_max
        row = types.SimpleNamespace(
            step=one, count=count, errors=errors, pause=pause, what=what, tries=tries, took=took, objects=objects,
            trouble=trouble, is_late=is_late, refused=len(refused),
        )  # fmt: skip
        self.rows.append(row)
        print(f"walk: {one.name}: {took:.0f} s, {count} operations, {len(errors)} errors, longest pause {pause:.1f} s ({what}), "
              f"{tries} tries that failed, {f'{len(refused)} refused with the reason, ' if refused else ''}{objects} objects compared{', TOO LONG' if is_late else ''}"
              f"{', FAILED: ' + trouble if trouble else ''}", flush=True)  # fmt: skip
        for error in [*errors[:5], *refused[:1]]:
            print(f"walk:   seen by a client: {error}", flush=True)
        return trouble is None

    def restart(self, machine):
        """One node of a rolling restart, as the documents have it."""
        self.until_can_stop(machine)
        with self.away_from(machine):
            stopped = machine.stop()
            started = machine.up()
        tell(f"{machine.name}: stopped in {stopped:.1f} s, ready {started:.1f} s later")

    def let_in(self, machine):
        """A new node on a machine that had one, by a token that is made for it."""
        other, token = self.others(machine)[0], self.scratch / "token"
        other.ok(f"stoker join-token create --dir {other.dir} > {token}")
        machine.start(f"stoker join {other.address}:9002 --token-file {token} --dir NEW_DIR", "NEW_DIR")
        self.until_whole()


@step("stoker up", clients="none yet")
def first(walk):
    m1 = walk.m1
    line = f"stoker up --lake {walk.lake.url()}"
    m1.start(line, "stoker-data")
    # It tells how other machines get to it.
    again = re.search(r"for them start this node with `([^`]+)`", m1.said)
    assert again, f"it does not say how other machines reach it:\n{m1.said}"
    m1.stop()
    m1.start(again.group(1), "stoker-data")
    walk.send_clients()


@step("the printed line on a second machine")
def second(walk):
    walk.m2.join(walk.m1)
    wait_until(lambda: len(walk.nodes()) == 2, "two nodes")
    walk.until_whole()


@step("the printed line on a third machine")
def third(walk):
    walk.m3.join(walk.m2)
    wait_until(lambda: [row["state"] for row in walk.nodes().values()] == ["up"] * 3, "three nodes that are up")
    walk.until_whole()


@step("stoker drive add")
def drive_add(walk):
    walk.m2.ok("mkdir -p nvme1")
    walk.m2.ok(f"stoker drive add m2 nvme1 --size 256MiB --dir {walk.m2.dir}")


@step("stoker drive remove")
def drive_remove(walk):
    walk.m2.ok(f"stoker drive remove m2 {walk.m2.dir}/ring --dir {walk.m2.dir}", timeout=170)


@step("stoker drive replace")
def drive_replace(walk):
    walk.m3.ok("mkdir -p nvme1")
    walk.m3.ok(f"stoker drive replace m3 {walk.m3.dir}/ring nvme1 --size 256MiB --dir {walk.m3.dir}", timeout=170)


@step("stoker node evacuate, rejoin")
def evacuate(walk):
    with walk.unnamed(walk.m2):
        walk.m1.ok(f"stoker node evacuate m2 --timeout 150s --dir {walk.m1.dir}")
    walk.m1.ok(f"stoker node rejoin m2 --dir {walk.m1.dir}")


@step("rolling restart of all nodes")
def rolling(walk):
    for machine in walk.machines:
        walk.restart(machine)
    walk.until_whole()


@step("stoker catalog backup")
def backup(walk):
    holder = walk.holder()
    holder.ok(f"stoker catalog backup {walk.backup} --dir {holder.dir}")


@step("upgrade, node by node")
def upgrade(walk):
    for machine in walk.machines:
        machine.install(walk.next_program)
        walk.restart(machine)
        exe = pathlib.Path(f"/proc/{machine.process.pid}/exe").resolve()
        assert exe == walk.next_program, f"{machine.name} runs {exe}"
    walk.until_whole()


@step("the node with the catalog is lost")
def lost_catalog(walk):
    walk.until_whole()
    lost = walk.holder()
    heir = walk.others(lost)[0]
    walk.mount.move(heir)
    with walk.away_from(lost):
        lost.kill()
        wait_until(lambda: walk.holder() is not lost, "another node keeps the catalog")
        walk.crowd.more()
        lost.up()
    walk.until_whole()


@step("stoker node remove of a live node")
def remove_live(walk):
    gone = walk.others(walk.holder())[-1]
    other = walk.others(gone)[0]
    walk.mount.move(other)
    with walk.unnamed(gone):
        other.ok(f"stoker node remove {gone.name} --dir {other.dir}", timeout=170)
        code = gone.process.wait(timeout=60)
        assert code == 0, f"{gone.name} ended with {code}:\n{gone.last_words()}"
        walk.crowd.more()
        said = gone.refused(f"stoker up --dir {gone.dir.name}")
        assert "removed from its cluster for good" in said and "stoker join HOST:PORT --dir NEW_DIR" in said, said
        gone.ok(f"rm -rf {gone.dir.name} nvme1 NEW_DIR")
        walk.let_in(gone)


@step("stoker node remove of a lost node, which comes back")
def remove_lost(walk):
    lost = walk.others(walk.holder())[-1]
    other = walk.others(lost)[0]
    walk.mount.move(other)
    with walk.away_from(lost):
        lost.kill()
        other.ok(f"stoker node remove {lost.name} --dir {other.dir}", timeout=170)
        walk.crowd.more()
        said = lost.refused(f"stoker up --dir {lost.dir.name}")
        assert "removed from its cluster for good" in said and "stoker join HOST:PORT --dir NEW_DIR" in said, said
        lost.ok(f"rm -rf {lost.dir.name} nvme1")
        walk.let_in(lost)


@step(
    "one of two nodes is lost", pause_s_max=None, refusal="only 1 can take this now",
    why="two nodes decide together: writes wait, or are refused with the reason, until a person says that it does not come back",
)
def one_of_two(walk):
    walk.until_whole()
    holder = walk.holder()
    lost, gone = walk.others(holder)
    walk.mount.move(holder)
    with walk.unnamed(gone):
        holder.ok(f"stoker node remove {gone.name} --timeout 150s --dir {holder.dir}")
        gone.process.wait(timeout=60)
        walk.until_whole()
        with walk.away_from(lost):
            lost.kill()
            cure = walk.until_told(holder, rf"catalog: it acknowledges nothing.*\ncure .*`(stoker node remove {lost.name})`")
            holder.ok(f"{cure} --timeout 150s --dir {holder.dir}")
            walk.crowd.more()
            for machine in (lost, gone):
                machine.ok(f"rm -rf {machine.dir.name} nvme1")
                walk.let_in(machine)


@step("a full disk")
def full_disk(walk):
    machine = walk.others(walk.holder())[0]
    tell(f"{machine.name}: its disk is full")
    machine.disk.fill()
    walk.crowd.more(20)
    machine.sh("df -h . | tail -1")
    machine.disk.free()
    tell(f"{machine.name}: its disk has room again")
    walk.until_whole()


@step("a full disk under the catalog")
def full_catalog(walk):
    walk.until_whole()
    holder = walk.holder()
    tell(f"{holder.name}: its disk is full")
    holder.disk.fill()
    walk.crowd.more(20)
    holder.sh(f"stoker status --dir {holder.dir} | grep -E '^(node|lost|cure|catalog)'")
    holder.disk.free()
    tell(f"{holder.name}: its disk has room again")
    walk.until_whole()


@step("a lost lake")
def lost_lake(walk):
    machine = walk.any()
    tell("the link of the lake is down")
    walk.net.cut("lake")
    walk.until_told(machine, r"\nlost +lake: .*")
    s3 = client(walk.keys, machine.s3)
    s3.put_object(Bucket=walk.volume, Key="lake/away", Body=b"written while the lake was away")
    walk.crowd.more(20)
    walk.net.heal("lake")
    tell("the link is up again")
    machine.ok(f"stoker wait {walk.volume}/lake/away --timeout 120s --dir {machine.dir}")


@step(
    "restore of a backup, and salvage of what came since", pause_s_max=None, clients="wait",
    why="all nodes are stopped for it: clients are told to wait",
)
def restore(walk):
    holder = walk.holder()
    others = walk.others(holder)
    with walk.crowd.held():
        walk.mount.umount()
        for machine in [*others, holder]:
            machine.stop()
        holder.ok(f"stoker catalog restore {walk.backup} --force --dir {holder.dir}")
        withs = " ".join(f"--with {machine.dir}" for machine in others)
        holder.ok(f"stoker catalog salvage --dir {holder.dir} {withs}")
        with concurrent.futures.ThreadPoolExecutor(len(walk.machines)) as pool:
            list(pool.map(Machine.up, [holder, *others]))
        # Nodes that kept the catalog of before hear of the restored one, let go of theirs, and start once more.
        walk.until_whole()
        walk.mount.mount(holder)


@step("all nodes stop", pause_s_max=None, clients="gone", why="the end")
def end(walk):
    objects = walk.crowd.verify(walk.running(), walk.keys, walk.volume)
    walk.crowd.stop()
    walk.mount.umount()
    holder = walk.holder()
    for machine in [*walk.others(holder), holder]:
        machine.stop()
    walk.crowd.workers.clear()
    tell(f"at the end {objects} objects were compared")


def table(rows):
    lines = ["", f"{'step':52} {'took':>6} {'operations':>10} {'errors':>6} {'longest pause':>14}  bar"]
    for row in rows:
        bar = f"{row.step.pause_s_max:.0f} s" if row.step.pause_s_max is not None else row.step.why
        pause = f"{row.pause:.1f} s" if row.step.clients in ("work", "wait") else "-"
        verdict = "  FAILED" if row.trouble else "  TOO LONG" if row.is_late else ""
        lines.append(f"{row.step.name:52} {row.took:>4.0f} s {row.count:>10} {len(row.errors):>6} {pause:>14}  {bar}{verdict}")
    operations, errors = sum(row.count for row in rows), sum(len(row.errors) for row in rows)
    return [*lines, f"{'all':52} {sum(row.took for row in rows):>4.0f} s {operations:>10} {errors:>6}"]


def main():
    told = fields()
    folder = pathlib.Path(told["scratch"])
    store = folder / "store"
    store.mkdir()
    # The upgrade is to another file, as a new release is; it may be another build.
    program, next_program = pathlib.Path(told["stoker"]), store / "stoker-next"
    shutil.copy(told.get("next") or program, next_program)
    net = types.SimpleNamespace(**told["net"])
    network = Net(net.names)
    network.tag, network.network = net.tag, net.network
    with contextlib.ExitStack() as stack:
        lake = stack.enter_context(Lake(f"{told['programs']['tools']}/weed", folder / "lake", network, "lake"))
        lake.make_bucket()
        machines = []
        for name in net.names[:3]:
            disk = stack.enter_context(Disk(folder, name, DISK_MIB))
            machine = Machine(network, name, disk, folder, {**SETTINGS, **lake.environment()})
            machine.install(program)
            stack.callback(machine.end)
            machines.append(machine)
        walk = Walk(network, lake, machines, folder, next_program)
        stack.callback(lambda: walk.mount.end() if hasattr(walk, "mount") else None)
        stack.callback(walk.crowd.stopping.set)
        only = told["only"]
        for one in STEPS:
            is_asked = not only or any(part in one.name for part in [*only, "printed line", "stoker up", "all nodes stop"])
            if is_asked and not walk.take(one):
                print("\n".join(f"{machine.name}:\n{machine.last_words()}" for machine in machines))
                break
        print("\n".join(table(walk.rows)), flush=True)
        return 1 if any(row.trouble or row.errors or row.is_late for row in walk.rows) else 0


if __name__ == "__main__":
    # So that nodes, mounts and disks go with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except Cannot as why:
        print(f"walk: cannot run: {why}", flush=True)
        sys.exit(3)
