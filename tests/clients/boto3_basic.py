"""boto3, with and without awscrt: objects, ranges, conditions, metadata, tags, copies, deletes, errors."""

import concurrent.futures
import contextlib
import datetime
import io
import json
import socket
import sys
import unittest.mock
import urllib.request

import boto3
import botocore.auth
import botocore.exceptions
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config

from harness import MIB, Skip, Suite, Target, content, equal, same, target

suite = Suite(sys.argv[1] if len(sys.argv) > 1 else "boto3")
scenario = suite.scenario


def client(at: Target, **overrides):
    config = overrides.pop("config", {})
    settings = {
        "endpoint_url": at.s3,
        "aws_access_key_id": at.access_key,
        "aws_secret_access_key": at.secret_key,
        "region_name": at.region,
        "config": Config(**{"retries": {"max_attempts": 2}, "s3": {"addressing_style": "path"}, **config}),
        **overrides,
    }
    return boto3.client("s3", **settings)


def refused(code, status, function, **args):
    """Expects an error with this code and status; HEAD has no body, so there the code is the status."""
    try:
        function(**args)
    except botocore.exceptions.ClientError as error:
        got = error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
        equal(got, (code, status), f"{function.__name__} {args}"[:200])
        return error.response
    raise AssertionError(f"{function.__name__} {args} was not refused with {code}"[:300])


@contextlib.contextmanager
def hours_ago(hours):
    """Signs as a client does whose clock is late."""
    then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=hours)
    modules = ["botocore.auth", *(name for name in ("botocore.crt.auth",) if name in sys.modules)]
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(unittest.mock.patch(f"{module}.get_current_datetime", lambda *_, **__: then))
        yield


class Room:
    """A bucket of our own."""

    def __init__(self, at, name):
        self.at, self.s3, self.bucket = at, client(at), name
        self.s3.create_bucket(Bucket=name)

    def put(self, key, body=b"", **args):
        return self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, **args)

    def get(self, key, **args):
        return self.s3.get_object(Bucket=self.bucket, Key=key, **args)

    def head(self, key, **args):
        return self.s3.head_object(Bucket=self.bucket, Key=key, **args)

    def read(self, key, **args):
        return self.get(key, **args)["Body"].read()

    def keys(self, **args):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, **args)
        return [row["Key"] for page in pages for row in page.get("Contents", [])]

    def clear(self):
        keys = self.keys()
        for at in range(0, len(keys), 1000):
            batch = {"Objects": [{"Key": key} for key in keys[at : at + 1000]], "Quiet": True}
            equal(self.s3.delete_objects(Bucket=self.bucket, Delete=batch).get("Errors", []), [], "delete_objects")

    def remove(self):
        self.clear()
        self.s3.delete_bucket(Bucket=self.bucket)
        refused("404", 404, self.s3.head_bucket, Bucket=self.bucket)


@scenario("objects of many sizes come back byte for byte")
def sizes(room):
    for size in (0, 1, 4095, 4096, 4097, 65535, 65537, MIB, MIB + 1, 4 * MIB, 4 * MIB + 1, 9 * MIB):
        body = content(f"size{size}", size)
        answer = room.put(f"sizes/{size}", body)
        assert answer["ETag"].startswith('"') and answer["ETag"].endswith('"'), answer["ETag"]
        got = room.get(f"sizes/{size}")
        same(got["Body"].read(), body, f"{size} bytes")
        equal(got["ETag"], answer["ETag"], "ETag of GET and PUT")
        head = room.head(f"sizes/{size}")
        equal((head["ContentLength"], head["ETag"]), (size, answer["ETag"]), "HEAD")
        age = datetime.datetime.now(datetime.timezone.utc) - head["LastModified"]
        assert abs(age.total_seconds()) < 300, f"LastModified is off by {age}"


@scenario("an overwrite shows the new bytes at once, and never a mixture")
def overwrites(room):
    bodies = [content(f"version{n}", 300_000 + n) for n in range(8)]
    room.put("over", bodies[0])

    def write(n):
        room.put("over", bodies[n])

    def read(_):
        assert room.read("over") in bodies, "bytes that nobody wrote"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: write(n) if n % 2 else read(n), range(1, 8)))
        list(pool.map(read, range(16)))
    room.put("over", bodies[0])
    same(room.read("over"), bodies[0], "read after write")


@scenario("ranges")
def ranges(room):
    body = content("ranges", 9 * MIB + 77)
    size = len(body)
    room.put("ranged", body)
    for first, last in [(0, 0), (0, 99), (4095, 4096), (4 * MIB - 1, 4 * MIB), (MIB, 6 * MIB), (size - 1, size - 1), (5, size + 9)]:
        got = room.get("ranged", Range=f"bytes={first}-{last}")
        same(got["Body"].read(), body[first : last + 1], f"{first}-{last}")
        equal(got["ContentRange"], f"bytes {first}-{min(last, size - 1)}/{size}", "Content-Range")
        equal(got["ResponseMetadata"]["HTTPStatusCode"], 206, "status")
    same(room.read("ranged", Range=f"bytes={size - 10}-"), body[-10:], "open end")
    same(room.read("ranged", Range="bytes=-1000"), body[-1000:], "suffix")
    same(room.read("ranged", Range=f"bytes=-{size + 5}"), body, "suffix longer than the object")
    refused("InvalidRange", 416, room.get, key="ranged", Range=f"bytes={size}-")
    equal(room.head("ranged", Range="bytes=0-9")["ContentLength"], 10, "HEAD with a range")


@scenario("conditions on reads")
def conditional_reads(room):
    etag = room.put("cond", b"first")["ETag"]
    stamp = room.head("cond")["LastModified"]
    hour = datetime.timedelta(hours=1)
    same(room.read("cond", IfMatch=etag), b"first", "IfMatch")
    refused("PreconditionFailed", 412, room.get, key="cond", IfMatch='"0"')
    refused("304", 304, room.get, key="cond", IfNoneMatch=etag)
    same(room.read("cond", IfNoneMatch='"0"'), b"first", "IfNoneMatch")
    refused("304", 304, room.get, key="cond", IfModifiedSince=stamp + hour)
    same(room.read("cond", IfModifiedSince=stamp - hour), b"first", "IfModifiedSince")
    refused("PreconditionFailed", 412, room.get, key="cond", IfUnmodifiedSince=stamp - hour)
    refused("412", 412, room.head, key="cond", IfMatch='"0"')


@scenario("conditions on writes")
def conditional_writes(room):
    room.s3.delete_object(Bucket=room.bucket, Key="once")
    etag = room.put("once", b"first", IfNoneMatch="*")["ETag"]
    refused("PreconditionFailed", 412, room.put, key="once", body=b"second", IfNoneMatch="*")
    refused("PreconditionFailed", 412, room.put, key="once", body=b"second", IfMatch='"0"')
    same(room.read("once"), b"first", "after refusals")
    room.put("once", b"second", IfMatch=etag)
    same(room.read("once"), b"second", "after IfMatch")
    refused("NoSuchKey", 404, room.put, key="never", body=b"x", IfMatch=etag)

    def race(n):
        try:
            room.put("race", b"%d" % n, IfNoneMatch="*")
            return n
        except botocore.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"), error
            return None

    room.s3.delete_object(Bucket=room.bucket, Key="race")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        winners = [n for n in pool.map(race, range(8)) if n is not None]
    equal(len(winners), 1, "winners of a race")
    same(room.read("race"), b"%d" % winners[0], "the winner's bytes")


@scenario("metadata and headers")
def metadata(room):
    headers = {
        "ContentType": "text/x-test; charset=utf-8",
        "CacheControl": "max-age=60",
        "ContentDisposition": 'attachment; filename="a b.txt"',
        "ContentEncoding": "identity",
        "ContentLanguage": "de",
        "Metadata": {"colour": "blue", "long": "x" * 500},
    }
    room.put("meta", b"m", **headers)
    head = room.head("meta")
    for name, value in headers.items():
        equal(head.get(name), value, name)
    equal(room.get("meta", ResponseContentType="image/png")["ContentType"], "image/png", "override")
    equal(room.head("sizes/1")["ContentType"], "binary/octet-stream", "default type")
    room.s3.copy_object(Bucket=room.bucket, Key="meta2", CopySource={"Bucket": room.bucket, "Key": "meta"})
    equal(room.head("meta2")["Metadata"], headers["Metadata"], "copied")
    source = {"Bucket": room.bucket, "Key": "meta"}
    room.s3.copy_object(
        Bucket=room.bucket, Key="meta", CopySource=source, MetadataDirective="REPLACE",
        Metadata={"colour": "red"}, ContentType="text/plain",
    )
    head = room.head("meta")
    equal((head["Metadata"], head["ContentType"]), ({"colour": "red"}, "text/plain"), "replaced on itself")
    same(room.read("meta"), b"m", "bytes stay")


@scenario("tags")
def tags(room):
    def read(key):
        rows = room.s3.get_object_tagging(Bucket=room.bucket, Key=key)["TagSet"]
        return {row["Key"]: row["Value"] for row in rows}

    room.put("tagged", b"t", Tagging="a=1&b=two%20words")
    equal(read("tagged"), {"a": "1", "b": "two words"}, "set by PUT")
    equal(room.get("tagged").get("TagCount"), 2, "x-amz-tagging-count")
    rows = [{"Key": "c", "Value": "3"}]
    room.s3.put_object_tagging(Bucket=room.bucket, Key="tagged", Tagging={"TagSet": rows})
    equal(read("tagged"), {"c": "3"}, "set anew")
    room.s3.copy_object(Bucket=room.bucket, Key="tagged2", CopySource={"Bucket": room.bucket, "Key": "tagged"})
    equal(read("tagged2"), {"c": "3"}, "copied")
    room.s3.delete_object_tagging(Bucket=room.bucket, Key="tagged")
    equal(read("tagged"), {}, "deleted")


@scenario("copies, also of odd keys and into another bucket")
def copies(room):
    body = content("copies", 5 * MIB + 3)
    key = "copy source/ü+&?#%25 =.bin"
    etag = room.put(key, body, Metadata={"a": "b"})["ETag"]
    source = {"Bucket": room.bucket, "Key": key}
    room.s3.copy_object(Bucket=room.bucket, Key="copied", CopySource=source)
    same(room.read("copied"), body, "copy")
    other = room.bucket + "-other"
    room.s3.create_bucket(Bucket=other)
    room.s3.copy_object(Bucket=other, Key="copied", CopySource=source, CopySourceIfMatch=etag)
    same(room.s3.get_object(Bucket=other, Key="copied")["Body"].read(), body, "copy into another bucket")
    refused(
        "PreconditionFailed", 412, room.s3.copy_object, Bucket=other, Key="no", CopySource=source, CopySourceIfMatch='"0"'
    )
    refused(
        "NoSuchKey", 404, room.s3.copy_object, Bucket=other, Key="no", CopySource={"Bucket": room.bucket, "Key": "none"}
    )
    refused("InvalidRequest", 400, room.s3.copy_object, Bucket=room.bucket, Key=key, CopySource=source)
    # The source goes, the copies stay.
    room.put(key, b"overwritten")
    room.s3.delete_object(Bucket=room.bucket, Key=key)
    same(room.read("copied"), body, "copy of what is gone")
    refused("BucketNotEmpty", 409, room.s3.delete_bucket, Bucket=other)
    room.s3.delete_object(Bucket=other, Key="copied")
    room.s3.delete_bucket(Bucket=other)
    refused("404", 404, room.s3.head_bucket, Bucket=other)


@scenario("deletes: one, a thousand at once, what is not there")
def deletes(room):
    keys = [f"del/{n:04}" for n in range(1000)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: room.put(key, key.encode()), keys))
    batch = [{"Key": key} for key in keys[:-1]] + [{"Key": "del/none"}]
    answer = room.s3.delete_objects(Bucket=room.bucket, Delete={"Objects": batch})
    equal(len(answer["Deleted"]), 1000, "deleted")
    equal(room.keys(Prefix="del/"), ["del/0999"], "left")
    room.s3.delete_object(Bucket=room.bucket, Key="del/0999")
    room.s3.delete_object(Bucket=room.bucket, Key="del/0999")
    refused("NoSuchKey", 404, room.get, key="del/0999")
    refused("404", 404, room.head, key="del/0999")
    batch.append({"Key": "one too many"})
    refused("MalformedXML", 400, room.s3.delete_objects, Bucket=room.bucket, Delete={"Objects": batch})


@scenario("buckets")
def buckets(room):
    names = [row["Name"] for row in room.s3.list_buckets()["Buckets"]]
    assert room.bucket in names, names
    room.s3.head_bucket(Bucket=room.bucket)
    equal(room.s3.get_bucket_location(Bucket=room.bucket)["LocationConstraint"], room.at.region, "location")
    refused("NoSuchBucket", 404, room.s3.list_objects_v2, Bucket="no-such-bucket-here")
    refused("NoSuchBucket", 404, room.s3.put_object, Bucket="no-such-bucket-here", Key="a", Body=b"b")
    try:
        room.s3.create_bucket(Bucket=room.bucket)
    except botocore.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"), error


@scenario("wrong keys and clocks get their codes, any region is right")
def refusals(room):
    at = room.at
    wrong = client(at, aws_secret_access_key="0" * 40)
    refused("SignatureDoesNotMatch", 403, wrong.list_objects_v2, Bucket=room.bucket)
    refused("SignatureDoesNotMatch", 403, wrong.put_object, Bucket=room.bucket, Key="a", Body=b"b")
    refused("SignatureDoesNotMatch", 403, wrong.get_object, Bucket=room.bucket, Key="sizes/1")
    unknown = client(at, aws_access_key_id="AKIDOESNOTEXIST00000")
    refused("InvalidAccessKeyId", 403, unknown.list_objects_v2, Bucket=room.bucket)
    refused("InvalidAccessKeyId", 403, unknown.get_object, Bucket=room.bucket, Key="sizes/1")
    # Any region will do.
    far, seen = client(at, region_name="eu-central-9"), []
    note = lambda parsed_response, **_: seen.append(parsed_response.get("Error", {}).get("Code"))
    far.meta.events.register("response-received.s3.GetObject", note)
    far.get_object(Bucket=room.bucket, Key="sizes/1")
    equal(seen, [None], "answers to a client of another region")
    with hours_ago(1):
        refused("RequestTimeTooSkewed", 403, room.get, key="sizes/1")
        refused("RequestTimeTooSkewed", 403, room.s3.list_objects_v2, Bucket=room.bucket)
    nobody = client(at, config={"signature_version": UNSIGNED})
    refused("AccessDenied", 403, nobody.get_object, Bucket=room.bucket, Key="sizes/1")
    refused("AccessDenied", 403, nobody.list_objects_v2, Bucket=room.bucket)


@scenario("virtual-host style")
def virtual_host(room):
    port = room.at.s3.rsplit(":", 1)[1]
    resolve = socket.getaddrinfo
    local = lambda host, *rest, **more: resolve("127.0.0.1" if str(host).endswith("localhost") else host, *rest, **more)
    with unittest.mock.patch("socket.getaddrinfo", local):
        virtual = client(
            room.at, endpoint_url=f"http://s3.localhost:{port}", config={"s3": {"addressing_style": "virtual"}}
        )
        try:
            virtual.put_object(Bucket=room.bucket, Key="virtual/host", Body=b"style")
        except botocore.exceptions.ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchBucket":
                raise Skip("this server knows no domain `s3.localhost`") from error
            raise
        same(virtual.get_object(Bucket=room.bucket, Key="virtual/host")["Body"].read(), b"style", "virtual host")
        rows = virtual.list_objects_v2(Bucket=room.bucket, Prefix="virtual/")["Contents"]
        equal([row["Key"] for row in rows], ["virtual/host"], "listing")
    same(room.read("virtual/host"), b"style", "path style")


@scenario("a checkpoint set: shards appear together, also one in parts")
def checkpoint_set(room):
    control = "run/step-1/.stoker-set"

    def act(**wish):
        return room.put(control, json.dumps(wish).encode())

    def seen():
        return json.loads(room.read(control))

    refused("NoSuchKey", 404, room.get, key=control)
    begun = act(action="begin", shards=3, deadline_s=600)
    number = begun["ResponseMetadata"]["HTTPHeaders"]["x-stoker-set"]
    equal(seen()["set"], int(number), "the id of the set")
    mark = lambda shard: {"stoker-set": "run/step-1/", "stoker-shard": str(shard)}
    small, large = content("shard 0", 70_000), content("shard 2", 12 * MIB)
    room.put("run/step-1/r0", small, Metadata={"stoker-set": number, "stoker-shard": "0"})
    parts = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    room.s3.upload_fileobj(
        io.BytesIO(large), room.bucket, "run/step-1/r2", ExtraArgs={"Metadata": mark(2)}, Config=parts
    )
    told = refused("OperationAborted", 409, act, action="publish")
    assert "1 of 3 shards are missing: 1;" in told["Error"]["Message"], told
    equal((seen()["state"], seen()["missing"]), ("open", [1]), "status")
    equal(room.keys(Prefix="run/"), [], "nothing is visible")
    room.put("run/step-1/r1", b"", Metadata=mark(1))
    act(action="publish")
    equal(room.keys(Prefix="run/"), [f"run/step-1/r{rank}" for rank in range(3)], "all are visible")
    same(room.read("run/step-1/r0"), small, "a shard")
    same(room.read("run/step-1/r2"), large, "a shard in parts")
    equal(room.head("run/step-1/r0")["Metadata"], {}, "metadata of a shard")
    refused("OperationAborted", 409, room.put, key="run/step-1/r1", body=b"late", Metadata=mark(1))
    equal(json.loads(room.read("run/.stoker-latest"))["path"], "run/step-1/", "the latest set")
    second = "run/step-2/.stoker-set"
    room.put(second, b'{"action": "begin", "shards": 1}')
    room.s3.delete_object(Bucket=room.bucket, Key=second)
    refused("NoSuchKey", 404, room.get, key=second)


@scenario("temporary keys: from a lasting one, in headers and urls, and not without their token")
def temporary(room):
    at = room.at
    keys = {"aws_access_key_id": at.access_key, "aws_secret_access_key": at.secret_key, "region_name": "us-east-1"}
    sts = boto3.client("sts", endpoint_url=at.s3, **keys)
    assert sts.get_caller_identity()["Arn"].endswith(at.access_key), "who it is"
    made = sts.get_session_token(DurationSeconds=900)["Credentials"]
    left = (made["Expiration"] - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    assert 840 < left <= 901, left
    session = {"aws_access_key_id": made["AccessKeyId"], "aws_secret_access_key": made["SecretAccessKey"]}
    s3 = client(at, aws_session_token=made["SessionToken"], **session)
    s3.put_object(Bucket=room.bucket, Key="by/session", Body=b"bytes")
    same(s3.get_object(Bucket=room.bucket, Key="by/session")["Body"].read(), b"bytes", "by a temporary key")
    read = {"Bucket": room.bucket, "Key": "by/session"}
    with urllib.request.urlopen(s3.generate_presigned_url("get_object", Params=read)) as answer:
        same(answer.read(), b"bytes", "by a url")
    altered = made["SessionToken"][:-1] + ("A" if made["SessionToken"][-1] != "A" else "B")
    refused("InvalidAccessKeyId", 403, client(at, **session).get_object, **read)
    refused("InvalidToken", 400, client(at, aws_session_token=altered, **session).get_object, **read)
    refused("InvalidToken", 400, client(at, aws_session_token=made["SessionToken"]).get_object, **read)
    inner = boto3.client("sts", endpoint_url=at.s3, region_name="us-east-1", aws_session_token=made["SessionToken"], **session)
    refused("AccessDenied", 403, inner.get_session_token)
    wrong = boto3.client("sts", endpoint_url=at.s3, **{**keys, "aws_secret_access_key": "wrong"})
    refused("SignatureDoesNotMatch", 403, wrong.get_caller_identity)
    room.s3.delete_object(Bucket=room.bucket, Key="by/session")


@scenario("a bucket is emptied and removed")
def emptied(room):
    room.remove()


if __name__ == "__main__":
    suite.main(Room(target(), f"{suite.name}-basic"))
