"""Databases: what they were told is durable has to be there, whatever dies."""

import os
import pathlib
import pwd
import signal
import sys

import programs

# Several processes that write to one database; each says how far it got.
SQLITE = """
import sqlite3, sys
worker, count, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
db = sqlite3.connect('db.sqlite', timeout=600, isolation_level=None)
for at in range(count):
    db.execute('begin immediate')
    db.execute('insert into t values (?, ?)', (worker * 1_000_000 + at, 'x' * (at * 37 % 3000)))
    db.execute('update total set value = value + 1')
    if at % 5 == 0:
        db.execute('delete from t where id = ?', (worker * 1_000_000 + at,))
        db.execute('update total set value = value - 1')
    db.execute('commit')
"""


def sqlite(rig, run):
    """Several processes write to one database, with a rollback journal and with a write-ahead log."""
    workers, each = run.number(3, 6, 8), run.number(20, 200, 1_000)
    (rig.aside / "work.py").write_text(SQLITE)
    for mode in ("delete", "wal"):
        script = f"""
            sqlite3 db.sqlite 'pragma journal_mode={mode}; create table t (id integer primary key, text text);
                create index i on t (text); create table total (value); insert into total values (0)' > /dev/null
            for at in $(seq {workers}); do {sys.executable} {rig.aside}/work.py $at {each} {mode} & all="${{all:-}} $!"; done
            for one in $all; do wait $one; done"""
        rig.sh(script)
        check = """test "$(sqlite3 db.sqlite 'pragma integrity_check')" = ok
            test "$(sqlite3 db.sqlite 'select (select count(*) from t) - value from total')" = 0"""
        rig.sh(check)
        rig.remount()
        rig.sh(f"{check}; sqlite3 db.sqlite 'vacuum'; {check}; rm -f db.sqlite*")
    return f"{workers} writers, {workers * each * 2:,} transactions"


# Two processes write to one map, a third one reads it all the time: what it sees is of one transaction.
LMDB = """
import lmdb, os, sys
count = int(sys.argv[1])
def opened():
    return lmdb.open('lmdb', map_size=256 << 20, max_dbs=2, writemap=sys.argv[2] == 'map')
opened().close()
children = []
for worker in range(3):
    child = os.fork()
    if child == 0:
        db = opened()
        for at in range(count):
            if worker == 2:
                with db.begin() as txn:
                    assert int(txn.get(b'total', b'0')) == txn.stat()['entries'] - (txn.get(b'total') is not None), at
                continue
            with db.begin(write=True) as txn:
                txn.put(b'%d-%06d' % (worker, at), b'x' * (at * 37 % 3000))
                txn.put(b'total', b'%d' % (int(txn.get(b'total', b'0')) + 1))
        db.close()
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
"""
LMDB_CHECK = """
import lmdb, sys
with lmdb.open('lmdb', map_size=256 << 20).begin() as txn:
    rows = [(key, len(value)) for key, value in txn.cursor() if key != b'total']
    want = sorted((b'%d-%06d' % (worker, at), at * 37 % 3000) for worker in range(2) for at in range(int(sys.argv[1])))
    assert rows == want and int(txn.get(b'total')) == len(want), (len(rows), len(want))
"""


def lmdb(rig, run):
    """A database in shared memory of the file: two writers and a reader, with pages written by write and through the map."""
    python, count = programs.python(), run.number(50, 2_000, 10_000)
    for name, text in (("lmdb.py", LMDB), ("check.py", LMDB_CHECK)):
        (rig.aside / name).write_text(text)
    for how in ("write", "map"):
        rig.sh(f"{python} -P {rig.aside}/lmdb.py {count} {how}; {python} -P {rig.aside}/check.py {count}")
        rig.remount()
        rig.sh(f"{python} -P {rig.aside}/check.py {count}; rm -rf lmdb")
    return f"2 writers, {count * 4:,} transactions"


DUCKDB = """
import duckdb, sys
count = int(sys.argv[1])
db = duckdb.connect('db.duckdb')
db.execute("set memory_limit='200MB'; set temp_directory='spill'")
db.execute('create table t as select range n, repeat(chr(65 + (range % 26)::int), 100) s from range(?)', [count])
for at in range(10):
    db.execute(f'begin; update t set n = n + 1 where n % 10 = {at}; delete from t where n % 97 = {at}; commit')
db.execute("copy t to 't.parquet'; checkpoint")
print(db.execute('select count(*), sum(n), max(s) from t').fetchone())
"""
DUCKDB_CHECK = """
import duckdb
want = "select count(*), sum(n), max(s) from "
db = duckdb.connect('db.duckdb')
found = db.execute(want + 't').fetchone()
assert found == db.execute(want + "'t.parquet'").fetchone(), found
assert db.execute('select count(*) from (select s, n from t order by s, n)').fetchone()[0] == found[0]
print(found)
"""


def duckdb(rig, run):
    """Tables with updates in place, a file of Parquet and files of its own for what memory does not hold."""
    python, count = programs.python(), run.number(20_000, 2_000_000, 10_000_000)
    for name, text in (("duckdb-work.py", DUCKDB), ("duckdb-check.py", DUCKDB_CHECK)):
        (rig.aside / name).write_text(text)
    made = rig.sh(f"{python} -P {rig.aside}/duckdb-work.py {count}")
    assert rig.sh(f"{python} -P {rig.aside}/duckdb-check.py") == made, "another table than was made"
    rig.remount()
    assert rig.sh(f"{python} -P {rig.aside}/duckdb-check.py; rm -rf db.duckdb* t.parquet spill") == made, "another table after a mount"
    return f"{count:,} rows"


# pgbench changes these by the same amounts, so that their sums say whether a transaction was torn.
SUMS = (
    "select (select sum(abalance) from pgbench_accounts), (select sum(bbalance) from pgbench_branches), "
    "(select sum(tbalance) from pgbench_tellers), (select coalesce(sum(delta), 0) from pgbench_history), "
    "(select count(*) from pgbench_history)"
)


NEEDS = ("initdb", "pgbench", "pg_amcheck", "setpriv")


class PostgreSQL:
    """A server on the mount, of another user than root."""

    def __init__(self, rig):
        # Debian keeps some of them out of the way of people.
        found = [programs.find(name) for name in (*NEEDS, "pg_ctl", "psql", "pg_checksums")]
        self.rig, self.path = rig, [str(pathlib.Path(one).parent) for one in found if one]
        names = [entry.pw_name for entry in pwd.getpwall()]
        self.user = pwd.getpwnam("postgres" if "postgres" in names else "nobody") if os.geteuid() == 0 else None
        self.data, self.log = rig.mnt / "pgdata", rig.aside / "postgresql.log"
        # Its socket is beside the mount: a volume holds no sockets.
        self.socket = rig.aside / "socket"
        self.socket.mkdir()
        self.data.mkdir(mode=0o700)
        self.log.touch()
        if self.user:
            for path in (self.socket, self.data, self.log):
                os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def sh(self, script, timeout=1800):
        path = ":".join([*self.path, os.environ["PATH"]])
        return self.rig.sh(
            script, at=self.rig.aside, user=self.user, timeout=timeout,
            PATH=path, PGHOST=str(self.socket), PGDATABASE="postgres", PGUSER="stoker", PGDATA=str(self.data),
            HOME=str(self.socket), LC_ALL="C.UTF-8",
        )  # fmt: skip

    def make(self):
        self.sh("initdb --username=stoker --auth=trust --data-checksums -D $PGDATA > /dev/null")

    def start(self):
        options = f"-c listen_addresses= -c unix_socket_directories={self.socket} -c checkpoint_timeout=30s"
        # Not -l: the log is written by the shell, which does not live as long as the server.
        self.sh(f"pg_ctl start -w -t 600 -l {self.log} -o '{options} -c max_wal_size=64MB' > /dev/null")

    def stop(self):
        self.sh("pg_ctl stop -w -m fast -t 600 > /dev/null")

    def postmaster(self):
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def kill(self):
        """SIGKILL of the server and of every process of it."""
        first = self.postmaster()
        children = pathlib.Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in [first, *map(int, children)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def query(self, text):
        return self.sh(f'psql -qAtX -c "{text}"').strip()

    def check(self, acknowledged):
        """No transaction is torn, none that was acknowledged is missing, and tables and indexes agree."""
        accounts, branches, tellers, history, count = map(int, self.query(SUMS).split("|"))
        assert accounts == branches == tellers == history, f"sums differ: {accounts} {branches} {tellers} {history}"
        assert count >= acknowledged, f"{count} transactions are there, {acknowledged} were acknowledged"
        self.sh("pg_amcheck --install-missing --heapallindexed")
        return count


def postgresql(rig, run):
    """initdb, pgbench, kill -9 under load with recovery, on another mount of the same bytes, and the checksums of every page."""
    scale, each, clients = run.number(1, 2, 10), run.number(50, 250, 2_000), 4
    server = PostgreSQL(rig)
    server.make()
    server.start()
    try:
        server.sh(f"pgbench -i -q -s {scale}")
        server.sh(f"pgbench -c {clients} -j 2 -t {each}")
        count = clients * each
        for _ in range(run.number(1, 2, 6)):
            server.query("checkpoint")
            before = int(server.query("select count(*) from pgbench_history"))
            # What it acknowledged is what it counts; it ends with the server.
            load = f"pgbench -n -c {clients} -j 2 -T 600 > /dev/null 2>&1 & echo $!"
            server.sh(f"{load}; until test $(psql -qAtX -c 'select count(*) from pgbench_history') -gt {before + 100}; do :; done")
            count = int(server.query("select count(*) from pgbench_history"))
            server.kill()
            rig.sh("while kill -0 $1 2> /dev/null; do :; done".replace("$1", str(server.postmaster())))
            server.start()
            count = server.check(count)
        server.stop()
        rig.remount()
        server.sh("pg_checksums --check > /dev/null")
        server.start()
        count = server.check(count)
    finally:
        if (server.data / "postmaster.pid").exists():
            server.kill()
    return f"{count:,} transactions"
