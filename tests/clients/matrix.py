"""Clients that people bring, each with a scenario of its own: write, overwrite, list, rename, commit at the same time, odd keys.

`run.py --suites matrix --only minio` runs one of them, in seconds. What is not installed is skipped, and says so.
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import time

from harness import MIB, Skip, Suite, content, equal, same, target
from programs import Program

suite = Suite(sys.argv[1] if len(sys.argv) > 1 else "matrix")
scenario = suite.scenario
ODD = ["a b", "a+b", "a%20b", "ümlaut/ß", "q?x&y=1", "semi;colon", "~tilde", "x" * 200]


class Room:
    def __init__(self, at):
        self.at = at
        self.folder = at.scratch / "matrix"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.ca = os.environ.get("AWS_CA_BUNDLE")
        self.host = at.s3.split("://", 1)[1]
        self.is_tls = at.s3.startswith("https")

    def boto3(self):
        import boto3

        return boto3.client(
            "s3", endpoint_url=self.at.s3, region_name=self.at.region, aws_access_key_id=self.at.access_key,
            aws_secret_access_key=self.at.secret_key,
        )  # fmt: skip

    def bucket(self, name):
        s3 = self.boto3()
        if name not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
            s3.create_bucket(Bucket=name)
        return name

    def environment(self):
        more = {"AWS_CA_BUNDLE": self.ca, "SSL_CERT_FILE": self.ca, "CURL_CA_BUNDLE": self.ca} if self.ca else {}
        return {**self.at.environment(), **more}

    def program(self, name, *args, **more):
        path = shutil.which(name) or shutil.which(name, path=str(pathlib.Path(sys.executable).parent))
        if not path:
            raise Skip(f"{name} is not installed")
        return Program([path, *args], {**self.environment(), **more})

    def options(self):
        """What libraries in Rust are told."""
        if self.ca:
            os.environ["SSL_CERT_FILE"] = self.ca
        return {
            "aws_access_key_id": self.at.access_key, "aws_secret_access_key": self.at.secret_key,
            "aws_region": self.at.region, "aws_endpoint": self.at.s3, "aws_allow_http": "true",
        }  # fmt: skip


def needs(name):
    try:
        return __import__(name)
    except ImportError:
        raise Skip(f"{name} is not installed") from None


@scenario("minio-py: write, overwrite, list, copy, odd keys, delete many", "full")
def minio(room):
    needs("minio")
    import io

    import certifi
    import urllib3
    from minio import Minio
    from minio.commonconfig import CopySource
    from minio.deleteobjects import DeleteObject

    pool = urllib3.PoolManager(cert_reqs="CERT_REQUIRED", ca_certs=room.ca or certifi.where())
    client = Minio(room.host, room.at.access_key, room.at.secret_key, secure=room.is_tls, region=room.at.region, http_client=pool)
    if not client.bucket_exists("minio-py"):
        client.make_bucket("minio-py")
    for key in ODD:
        for size in (10, 3):
            client.put_object("minio-py", key, io.BytesIO(content(key, size)), size)
        same(client.get_object("minio-py", key).read(), content(key, 3), key)
    client.put_object("minio-py", "large", io.BytesIO(content("large", 12 * MIB)), -1, part_size=5 * MIB)
    same(client.get_object("minio-py", "large").read(), content("large", 12 * MIB), "large")
    client.copy_object("minio-py", "copy", CopySource("minio-py", "a b"))
    same(client.get_object("minio-py", "copy").read(), content("a b", 3), "the copy of the right one")
    names = sorted(one.object_name for one in client.list_objects("minio-py", recursive=True))
    equal(names, sorted([*ODD, "large", "copy"]), "listing")
    equal(list(client.remove_objects("minio-py", [DeleteObject(name) for name in names])), [], "errors of deletes")
    equal(list(client.list_objects("minio-py", recursive=True)), [], "what is left")


@scenario("s3cmd: sync, mv, du, delete", "full")
def s3cmd(room):
    bucket = room.bucket("s3cmd")
    more = [] if room.is_tls else ["--no-ssl"]
    more += [f"--ca-certs={room.ca}"] if room.ca else []
    run = room.program(
        "s3cmd", "--config=/dev/null", f"--host={room.host}", f"--host-bucket={room.host}", f"--region={room.at.region}",
        f"--access_key={room.at.access_key}", f"--secret_key={room.at.secret_key}", "--no-progress", *more,
    )  # fmt: skip
    here, back = room.folder / "s3cmd", room.folder / "s3cmd-back"
    here.mkdir()
    back.mkdir()
    for key in ("a b", "a+b", "ü"):
        (here / key).write_bytes(content(key, 100))
    (here / "large").write_bytes(content("s3cmd large", 20 * MIB))
    run("sync", f"{here}/", f"s3://{bucket}/d/")
    run("mv", f"s3://{bucket}/d/a b", f"s3://{bucket}/d/moved")
    run("sync", f"s3://{bucket}/d/", f"{back}/")
    same((back / "moved").read_bytes(), content("a b", 100), "moved")
    same((back / "a+b").read_bytes(), content("a+b", 100), "its neighbour")
    same((back / "large").read_bytes(), content("s3cmd large", 20 * MIB), "large")
    run("del", "--recursive", "--force", f"s3://{bucket}/d/")
    equal(run.text("ls", "--recursive", f"s3://{bucket}/"), "", "what is left")


@scenario("restic: init, two snapshots, check with all data, restore, prune", "full")
def restic(room):
    bucket = room.bucket("restic")
    run = room.program(
        "restic", "-r", f"s3:{room.at.s3}/{bucket}", *(["--cacert", room.ca] if room.ca else []),
        RESTIC_PASSWORD="secret", XDG_CACHE_HOME=str(room.folder),
    )  # fmt: skip
    here = room.folder / "restic"
    (here / "sub").mkdir(parents=True)
    (here / "one").write_bytes(content("one", 3 * MIB))
    run("init")
    run("backup", here)
    (here / "one").write_bytes(content("two", 3 * MIB))
    (here / "sub" / "more").write_bytes(content("more", 1000))
    run("backup", here)
    run("check", "--read-data")
    run("restore", "latest", "--target", room.folder / "restored")
    same((room.folder / "restored" / str(here).lstrip("/") / "one").read_bytes(), content("two", 3 * MIB), "restored")
    run("forget", "--keep-last", "1", "--prune")
    run("check")


@scenario("s3fs-fuse: write, rename, append, list, delete on a mount", "full")
def s3fs(room):
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise Skip("mounting needs root and /dev/fuse")
    bucket, at = room.bucket("s3fs"), room.folder / "s3fs"
    passwd = room.folder / "passwd"
    passwd.write_text(f"{room.at.access_key}:{room.at.secret_key}")
    passwd.chmod(0o600)
    at.mkdir()
    run = room.program("s3fs")
    run(bucket, at, "-o", f"url={room.at.s3},use_path_request_style,passwd_file={passwd},endpoint={room.at.region}")
    try:
        (at / "d").mkdir()
        (at / "d" / "f").write_bytes(content("s3fs", 11 * MIB))
        (at / "d" / "f").rename(at / "d" / "a b+c")
        same((at / "d" / "a b+c").read_bytes(), content("s3fs", 11 * MIB), "renamed")
        with open(at / "d" / "a b+c", "ab") as file:
            file.write(b"end")
        equal([path.name for path in (at / "d").iterdir()], ["a b+c"], "listing")
    finally:
        subprocess.run(["fusermount3", "-u", str(at)], check=True)
    same(room.boto3().get_object(Bucket=bucket, Key="d/a b+c")["Body"].read(), content("s3fs", 11 * MIB) + b"end", "by S3")


@scenario("pyarrow: a partitioned dataset, read back and overwritten", "full")
def pyarrow(room):
    needs("pyarrow")
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import fs

    s3 = fs.S3FileSystem(
        access_key=room.at.access_key, secret_key=room.at.secret_key, region=room.at.region,
        endpoint_override=room.host, scheme="https" if room.is_tls else "http",
        **({"tls_ca_file_path": room.ca} if room.ca else {}),
    )  # fmt: skip
    bucket = room.bucket("pyarrow")
    table = pa.table({"n": list(range(5000)), "part": [f"p {i % 3}" for i in range(5000)]})
    for _ in range(2):
        ds.write_dataset(table, f"{bucket}/t", filesystem=s3, format="parquet", partitioning=["part"],
                         existing_data_behavior="delete_matching")  # fmt: skip
        back = ds.dataset(f"{bucket}/t", filesystem=s3, partitioning=["part"]).to_table()
        equal((back.num_rows, sum(back["n"].to_pylist())), (5000, sum(range(5000))), "rows and their sum")
    equal(s3.get_file_info(f"{bucket}/t").type, fs.FileType.Directory, "the folder")


@scenario("polars: parquet out and in, lazily", "full")
def polars(room):
    needs("polars")
    import polars as pl

    bucket = room.bucket("polars")
    frame = pl.DataFrame({"n": range(10_000), "s": [f"ü{i}" for i in range(10_000)]})
    url, options = f"s3://{bucket}/t/a b.parquet", room.options()
    frame.write_parquet(url, storage_options=options)
    frame.head(5000).write_parquet(url, storage_options=options)
    got = pl.scan_parquet(url, storage_options=options).select(pl.col("n").sum()).collect().item()
    equal(got, sum(range(5000)), "the sum of the second version")


@scenario("deltalake: 4 writers append at the same time, no commit is lost", "full")
def deltalake(room):
    needs("deltalake")
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    url, options = f"s3://{room.bucket('delta')}/table-{time.time_ns()}", room.options()
    options["conditional_put"] = "etag"
    write_deltalake(url, pa.table({"w": [-1], "n": [0]}), storage_options=options)

    def append(worker):
        for n in range(3):
            for _ in range(20):
                try:
                    write_deltalake(url, pa.table({"w": [worker], "n": [n]}), mode="append", storage_options=options)
                    break
                except Exception as error:
                    last = error
            else:
                raise last

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    rows = DeltaTable(url, storage_options=options).to_pyarrow_table()
    equal(sorted(zip(rows["w"].to_pylist(), rows["n"].to_pylist())), sorted([(-1, 0)] + [(w, n) for w in range(4) for n in range(3)]), "rows")


@scenario("lance: create, append by two at once, read a version", "full")
def lance(room):
    needs("lance")
    import lance as ln
    import pyarrow as pa

    url, options = f"s3://{room.bucket('lance')}/t-{time.time_ns()}.lance", room.options()
    ln.write_dataset(pa.table({"n": list(range(100))}), url, storage_options=options)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda n: ln.write_dataset(pa.table({"n": [n]}), url, mode="append", storage_options=options), [100, 101]))
    equal(ln.dataset(url, storage_options=options).count_rows(), 102, "rows")
    equal(ln.dataset(url, version=1, storage_options=options).count_rows(), 100, "rows of the first version")


@scenario("pyiceberg: a table in a SQLite catalog, appends, an old snapshot", "full")
def iceberg(room):
    needs("pyiceberg")
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    bucket = room.bucket("iceberg")
    catalog = SqlCatalog("c", **{
        "uri": f"sqlite:///{room.folder}/iceberg.db", "warehouse": f"s3://{bucket}/w", "s3.endpoint": room.at.s3,
        "s3.access-key-id": room.at.access_key, "s3.secret-access-key": room.at.secret_key, "s3.region": room.at.region,
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO" if room.ca else "pyiceberg.io.pyarrow.PyArrowFileIO",
    })  # fmt: skip
    catalog.create_namespace("n")
    data = pa.table({"n": pa.array(range(1000), pa.int64())})
    table = catalog.create_table("n.t", schema=data.schema)
    table.append(data)
    first = table.current_snapshot().snapshot_id
    table.append(data)
    equal(table.scan().to_arrow().num_rows, 2000, "rows")
    equal(table.scan(snapshot_id=first).to_arrow().num_rows, 1000, "rows of the first snapshot")


@scenario("zarr: an array in chunks by s3fs (Python), written in part again", "full")
def zarr(room):
    needs("zarr")
    import numpy as np
    import s3fs as fs
    import zarr as z

    more = {"client_kwargs": {"verify": room.ca}} if room.ca else {}
    files = fs.S3FileSystem(key=room.at.access_key, secret=room.at.secret_key, endpoint_url=room.at.s3, asynchronous=True,
                            config_kwargs={"region_name": room.at.region}, **more)  # fmt: skip
    store = z.storage.FsspecStore(files, path=f"{room.bucket('zarr')}/a")
    array = z.create_array(store, shape=(200, 200), chunks=(50, 50), dtype="i4", overwrite=True)
    array[:] = np.arange(40_000).reshape(200, 200)
    array[10:20, 10:20] = -1
    back = z.open_array(store, mode="r")
    equal((int(back[15, 15]), int(back[199, 199])), (-1, 39_999), "values")


@scenario("icechunk: two writers of one branch, one has to rebase", "full")
def icechunk(room):
    needs("icechunk")
    import icechunk as ic
    import zarr as z

    if room.ca:
        os.environ["SSL_CERT_FILE"] = room.ca
    storage = ic.s3_storage(
        bucket=room.bucket("icechunk"), prefix=f"r-{time.time_ns()}", region=room.at.region, endpoint_url=room.at.s3,
        access_key_id=room.at.access_key, secret_access_key=room.at.secret_key, allow_http=not room.is_tls, force_path_style=True,
    )  # fmt: skip
    repo = ic.Repository.create(storage)
    first = repo.writable_session("main")
    z.create_group(first.store).create_array("a", shape=(10,), chunks=(5,), dtype="i4")
    first.commit("first")
    one, two = repo.writable_session("main"), repo.writable_session("main")
    z.open_group(one.store)["a"][:5] = 1
    z.open_group(two.store)["a"][5:] = 2
    one.commit("one")
    try:
        two.commit("two")
        raise AssertionError("both commits went through")
    except ic.ConflictError:
        two.rebase(ic.ConflictDetector())
        two.commit("two")
    got = z.open_group(repo.readonly_session("main").store)["a"][:]
    equal(list(map(int, got)), [1] * 5 + [2] * 5, "values")


@scenario("obstore: conditional puts, only one of many wins", "full")
def obstore(room):
    needs("obstore")
    import obstore as obs
    from obstore.store import S3Store

    if room.ca:
        raise Skip("it takes no authorities of its own")
    store = S3Store(room.bucket("obstore"), region=room.at.region, endpoint=room.at.s3, access_key_id=room.at.access_key,
                    secret_access_key=room.at.secret_key, client_options={"allow_http": True})  # fmt: skip
    key = f"k-{time.time_ns()}"

    def put(n):
        try:
            obs.put(store, key, str(n).encode(), mode="create", use_multipart=False)
            return 1
        except Exception as error:
            assert "AlreadyExists" in type(error).__name__ or "already exists" in str(error), error
            return 0

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        equal(sum(pool.map(put, range(16))), 1, "winners")


SCRIPT = """
import {S3Client, PutObjectCommand, GetObjectCommand, ListObjectsV2Command, DeleteObjectsCommand, CopyObjectCommand, CreateBucketCommand} from "@aws-sdk/client-s3";
import {Upload} from "@aws-sdk/lib-storage";
import {getSignedUrl} from "@aws-sdk/s3-request-presigner";
import assert from "node:assert";
const s3 = new S3Client({endpoint: process.env.AWS_ENDPOINT_URL, region: process.env.AWS_REGION, forcePathStyle: true});
const Bucket = "js", text = async (Key) => (await s3.send(new GetObjectCommand({Bucket, Key}))).Body.transformToString();
await s3.send(new CreateBucketCommand({Bucket})).catch((e) => { if (e.name !== "BucketAlreadyOwnedByYou") throw e; });
for (const Key of ["a b", "a+b", "a%20b", "\\u00fc/x"]) { await s3.send(new PutObjectCommand({Bucket, Key, Body: "old"})); await s3.send(new PutObjectCommand({Bucket, Key, Body: Key})); assert.equal(await text(Key), Key); }
await s3.send(new CopyObjectCommand({Bucket, Key: "copy", CopySource: encodeURI(Bucket + "/a b")}));
assert.equal(await text("copy"), "a b");
await new Upload({client: s3, params: {Bucket, Key: "large", Body: Buffer.alloc(12 << 20, 7)}}).done();
assert.equal((await (await s3.send(new GetObjectCommand({Bucket, Key: "large"}))).Body.transformToByteArray()).length, 12 << 20);
const url = await getSignedUrl(s3, new PutObjectCommand({Bucket, Key: "signed"}), {expiresIn: 60});
const put = await fetch(url, {method: "PUT", body: "by url"});
assert.equal(put.status, 200, await put.text());
assert.equal(await text("signed"), "by url");
const keys = (await s3.send(new ListObjectsV2Command({Bucket}))).Contents.map((one) => one.Key);
assert.equal(keys.length, 7, keys.join());
const gone = await s3.send(new DeleteObjectsCommand({Bucket, Delete: {Objects: keys.map((Key) => ({Key}))}}));
assert.equal(gone.Errors, undefined);
assert.equal((await s3.send(new ListObjectsV2Command({Bucket}))).KeyCount, 0);
"""
PACKAGES = ["@aws-sdk/client-s3", "@aws-sdk/lib-storage", "@aws-sdk/s3-request-presigner"]
PACKAGES_VERSION = "3.1166.0"


@scenario("JS SDK v3: odd keys, a copy, an upload in parts, a presigned PUT, deletes", "full")
def javascript(room):
    npm, node = shutil.which("npm"), room.program("node", NODE_EXTRA_CA_CERTS=room.ca or "")
    if not npm:
        raise Skip("npm is not installed")
    place = room.folder / "js"
    place.mkdir()
    (place / "run.mjs").write_text(SCRIPT)
    wanted = [f"{name}@{PACKAGES_VERSION}" for name in PACKAGES]
    done = subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent", *wanted], cwd=place, capture_output=True, text=True)
    if done.returncode != 0:
        raise Skip(f"npm install: {done.stderr[-200:]}")
    node(place / "run.mjs")


if __name__ == "__main__":
    suite.main(Room(target()))
