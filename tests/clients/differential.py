"""Random sequences of requests against the node and against moto, another implementation of S3. A difference has its reason in `REASONS`, or it fails.

  STOKER_SEED=7 STOKER_SEQUENCES=100 python3 tests/clients/run.py --stoker ... --tier full --suites differential
"""

import base64
import collections
import hashlib
import os
import random
import socket
import subprocess
import time
import zlib

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from harness import Suite, target, wait_until

suite = Suite("differential")
KEYS = ["a", "a b", "a+b", "dir/", "dir/x", "dir/y z", "ü/é", "x%20y", "q?r", "z&=", "dir//x", ".hid", "k;1", "it's"]
STEPS = 40
# What two implementations name as they like.
NAMED = {
    "ResponseMetadata", "LastModified", "ETag", "Owner", "Initiated", "Initiator", "CreationDate", "Location", "VersionId", "UploadId", "ServerSideEncryption", "BucketRegion",
    "NextContinuationToken", "ContinuationToken", "NextMarker", "ID", "DisplayName",
    # A class is a name here, which is taken and not kept.
    "StorageClass",
}  # fmt: skip
# Every file has a CRC-64/NVME here, and moto has what the client sent.
SUMS = {"ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256", "ChecksumType", "ChecksumAlgorithm"}
BUCKET_QUESTIONS = [
    "get_bucket_acl", "get_bucket_policy", "get_bucket_lifecycle_configuration", "get_bucket_encryption", "get_bucket_cors", "get_bucket_tagging",
    "get_bucket_website", "get_bucket_replication", "get_public_access_block", "get_bucket_ownership_controls", "get_object_lock_configuration",
    "get_bucket_notification_configuration", "get_bucket_logging", "get_bucket_request_payment", "get_bucket_accelerate_configuration",
    "get_bucket_versioning", "get_bucket_location", "list_bucket_analytics_configurations", "list_bucket_inventory_configurations",
    "list_bucket_metrics_configurations", "get_bucket_policy_status", "delete_bucket_policy", "delete_bucket_tagging", "delete_bucket_cors",
    "delete_bucket_lifecycle", "delete_bucket_website", "delete_public_access_block", "delete_bucket_encryption", "head_bucket", "list_multipart_uploads",
]  # fmt: skip


class Answer(collections.namedtuple("Answer", "status code fields")):
    """What came back: of an error its code."""

    def differs(self, other):
        names = set(self.fields) | set(other.fields)
        return {name for name in names if self.fields.get(name) != other.fields.get(name)}


def plain(value):
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if name not in NAMED | SUMS}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.read() if hasattr(value, "read") else value


def ask(client, verb, args):
    try:
        raw = getattr(client, verb)(**args)
        return Answer(raw["ResponseMetadata"]["HTTPStatusCode"], "", plain(raw)), raw
    except ClientError as error:
        return Answer(error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"], {}), None


# Why an answer may differ, first reason that holds: verb or a part of it, what holds, why.
REASONS = [
    ("", lambda args, ours, theirs, fields: theirs.status == 500, "moto fails"),
    ("", lambda args, ours, theirs, fields: "*" in (args.get("IfMatch"), args.get("IfNoneMatch")), "moto does not know `*` in reads"),
    ("", lambda args, ours, theirs, fields: ours.status == 404 == theirs.status and {ours.code, theirs.code} <= {"404", "NoSuchKey"}, "a word"),
    ("get_bucket_location", lambda args, ours, theirs, fields: fields == {"LocationConstraint"}, "the region is another one"),
    ("head_object", lambda args, ours, theirs, fields: ours.status == 404, "moto judges a condition before it looks for the object"),
    ("head_object", lambda args, ours, theirs, fields: "PartNumber" in args, "moto takes any number of a part"),
    ("_object", lambda args, ours, theirs, fields: fields and fields <= {"AcceptRanges", "TagCount", "PartsCount", "ContentRange"}, "moto leaves headers out"),
    ("get_object", lambda args, ours, theirs, fields: "Range" in args, "moto takes ranges that are none, or lie outside"),
    ("get_object_torrent", lambda args, ours, theirs, fields: ours.code == "NotImplemented", "there are no torrents"),
    ("get_object_retention", lambda args, ours, theirs, fields: ours.code == "InvalidRequest", "no bucket has Object Lock"),
    ("get_object_legal_hold", lambda args, ours, theirs, fields: ours.code == "InvalidRequest", "no bucket has Object Lock"),
    ("get_object_lock_configuration", lambda args, ours, theirs, fields: ours.code == "ObjectLockConfigurationNotFoundError", "moto has another answer for none"),
    ("delete_objects", lambda args, ours, theirs, fields: args["Delete"]["Quiet"] and fields == {"Deleted"}, "moto is not quiet"),
    ("delete_object_tagging", lambda args, ours, theirs, fields: ours.code == "NoSuchKey", "moto takes tags of what is not there"),
    ("put_object", lambda args, ours, theirs, fields: ours.code == "BadDigest", "moto does not look whether a checksum is right"),
    ("put_object_tagging", lambda args, ours, theirs, fields: ours.code == "InvalidTag", "moto takes a tag twice"),
    ("list_object_versions", lambda args, ours, theirs, fields: "EncodingType" in args, "moto spells no names of versions"),
    ("get_object", lambda args, ours, theirs, fields: fields == {"ContentType"} and ours.fields["ContentType"] == args.get("ResponseContentType"), "moto shows the type that was stored"),
    ("list_object", lambda args, ours, theirs, fields: fields and fields <= {"Marker", "StartAfter", "Prefix", "EncodingType", "KeyMarker", "Delimiter"}, "moto repeats what was asked in another way, or decodes it twice"),
    ("list_object", lambda args, ours, theirs, fields: "MaxKeys" in args and args.get("Delimiter"), "moto counts common prefixes and keys apart"),
    ("list_objects", lambda args, ours, theirs, fields: args.get("Delimiter") and ("Marker" in args or "StartAfter" in args) and "CommonPrefixes" in fields, "moto shows common prefixes whatever the marker is"),
    ("list_objects", lambda args, ours, theirs, fields: args.get("MaxKeys") == 0, "moto calls an empty page truncated"),
    ("list_multipart_uploads", lambda args, ours, theirs, fields: fields <= {"Prefix", "KeyMarker", "UploadIdMarker"}, "moto leaves the empty prefix out"),
    ("list_parts", lambda args, ours, theirs, fields: fields <= {"PartNumberMarker", "NextPartNumberMarker"}, "markers of an only page"),
    ("complete_multipart_upload", lambda args, ours, theirs, fields: ours.status == 200 or "InvalidPart" in (ours.code, theirs.code), "a second completion has its answer here; moto looks at ETags after that"),
    ("abort_multipart_upload", lambda args, ours, theirs, fields: ours.code == "NoSuchUpload", "moto aborts what is not there"),
    ("get_bucket_policy_status", lambda args, ours, theirs, fields: ours.code == "NoSuchBucketPolicy", "moto has no such question"),
    ("get_bucket_request_payment", lambda args, ours, theirs, fields: ours.status == 200, "moto has no such question"),
    ("list_bucket_analytics", lambda args, ours, theirs, fields: ours.status == 200, "moto has no such question"),
    ("get_bucket_website", lambda args, ours, theirs, fields: ours.code == "NoSuchWebsiteConfiguration", "moto has no such question"),
]  # fmt: skip


class Pair:
    """Both servers, and what they were found to differ in."""

    def __init__(self, ours, theirs, seed):
        self.ours, self.theirs, self.random = ours, theirs, random.Random(seed)
        self.asked, self.explained, self.odd = 0, collections.Counter(), {}

    def both(self, verb, args, others=None):
        ours, mine = ask(self.ours, verb, args)
        theirs, other = ask(self.theirs, verb, others or args)
        self.asked += 1
        if ours != theirs:
            self.note(verb, args, ours, theirs)
        return mine, other

    def note(self, verb, args, ours, theirs):
        fields = ours.differs(theirs) if ours.status == theirs.status else set()
        for part, holds, why in REASONS:
            if part in verb and holds(args, ours, theirs, fields):
                self.explained[f"{verb}: {why}"] += 1
                return
        self.odd.setdefault((verb, ours.status, ours.code, theirs.status, theirs.code, tuple(sorted(fields))), (args, ours, theirs))

    def sequence(self, bucket):
        self.both("create_bucket", {"Bucket": bucket})
        for _ in range(STEPS):
            getattr(self, self.random.choice(["put"] * 4 + ["copy"] * 3 + ["get", "ranged", "conditional", "head", "delete", "deletes", "listed", "listed2", "versions", "tags", "asked_of_object", "asked_of_bucket", "guarded", "upload", "paged", "spelled", "summed", "overridden", "matched"]))(bucket)

    def some(self, odds):
        return self.random.random() < odds

    def at(self, bucket):
        return {"Bucket": bucket, "Key": self.random.choice(KEYS)}

    def put(self, bucket):
        args = {**self.at(bucket), "Body": self.random.randbytes(self.random.choice([0, 1, 100]))}
        for name, values in {
            "Metadata": [{"m": "1"}, {"m": "a  b"}, {"m": "x,y", "n": "2"}], "ContentType": ["text/x"], "ContentEncoding": ["gzip", "gzip, br"],
            "CacheControl": ["no-cache"], "Tagging": ["a=1&b=2"], "StorageClass": ["STANDARD", "STANDARD_IA", "WHAT"], "ChecksumAlgorithm": ["SHA1", "SHA256", "CRC32"],
        }.items():  # fmt: skip
            if self.some(0.2):
                args[name] = self.random.choice(values)
        self.both("put_object", args)

    def guarded(self, bucket):
        self.both("put_object", {**self.at(bucket), "Body": b"c", **self.random.choice([{"IfMatch": '"x"'}, {"IfNoneMatch": "*"}])})

    def matched(self, bucket):
        """Conditions by the ETag that it has, of writes, copies, reads and deletes."""
        at = self.at(bucket)
        tags = [self.etag(client, at) for client in (self.ours, self.theirs)]
        if not all(tags):
            return
        verb, name, more = self.random.choice([
            ("put_object", "IfMatch", {"Body": b"m"}), ("get_object", "IfMatch", {}), ("get_object", "IfNoneMatch", {}), ("head_object", "IfNoneMatch", {}), ("delete_object", "IfMatch", {}),
            ("copy_object", "CopySourceIfMatch", {}), ("copy_object", "CopySourceIfNoneMatch", {}),
        ])  # fmt: skip
        to = {**at, "CopySource": at, "Key": "matched"} if verb == "copy_object" else at
        self.both(verb, {**to, **more, name: tags[0]}, {**to, **more, name: tags[1]})

    @staticmethod
    def etag(client, at):
        try:
            return client.head_object(**at)["ETag"]
        except ClientError:
            return None

    def overridden(self, bucket):
        chosen = self.random.sample(["ResponseCacheControl", "ResponseContentDisposition", "ResponseContentEncoding", "ResponseContentLanguage", "ResponseContentType"], 2)
        self.both("get_object", {**self.at(bucket), **{name: self.random.choice(["a/b", "x y;q=1", "a, b"]) for name in chosen}})

    def summed(self, bucket):
        """A checksum that is given: the right one, or one of other bytes."""
        body, other = self.random.randbytes(50), self.random.randbytes(50)
        algorithm, of = self.random.choice([("CRC32", lambda data: zlib.crc32(data).to_bytes(4, "big")), ("SHA1", lambda data: hashlib.sha1(data).digest()), ("SHA256", lambda data: hashlib.sha256(data).digest())])
        sums = {f"Checksum{algorithm}": base64.b64encode(of(self.random.choice([body, body, other]))).decode()}
        at = self.at(bucket)
        mine, _ = self.both("put_object", {**at, "Body": body, "ChecksumAlgorithm": algorithm, **sums})
        # One that is wrong is kept by moto, and every read of it fails in the client.
        self.both("get_object" if mine else "delete_object", {**at, **({"ChecksumMode": "ENABLED"} if mine else {})})

    def paged(self, bucket):
        """Page after page, to the end."""
        verb = self.random.choice(["list_objects_v2", "list_objects"])
        args = {"Bucket": bucket, "MaxKeys": self.random.choice([1, 2, 3]), "Prefix": self.random.choice(["", "dir"])}
        seen = []
        for client in (self.ours, self.theirs):
            pages = client.get_paginator(verb).paginate(**{name: value for name, value in args.items() if name != "MaxKeys"}, PaginationConfig={"PageSize": args["MaxKeys"]})
            seen.append([one["Key"] for page in pages for one in page.get("Contents", [])])
        self.asked += 1
        if seen[0] != seen[1]:
            self.odd.setdefault((verb, "pages"), (args, *seen))

    def spelled(self, bucket):
        """Names in the spelling of urls, which boto3 takes away only from its own."""
        verb = self.random.choice(["list_objects_v2", "list_objects", "list_object_versions"])
        self.both(verb, {"Bucket": bucket, "EncodingType": "url", "Prefix": self.random.choice(["", "a", "dir/", "ü", "x%"]), "Delimiter": self.random.choice(["", "/", " ", "%", "+"])})

    def get(self, bucket):
        self.both("get_object", {**self.at(bucket), **({"ResponseContentType": "a/b"} if self.some(0.2) else {})})

    def ranged(self, bucket):
        self.both("get_object", {**self.at(bucket), "Range": self.random.choice(["bytes=0-0", "bytes=5-", "bytes=-3", "bytes=200-", "bytes=0-5,7-8"])})

    def conditional(self, bucket):
        condition = self.random.choice([{"IfMatch": '"x"'}, {"IfNoneMatch": '"x"'}, {"IfModifiedSince": "2013-01-01"}, {"IfUnmodifiedSince": "2013-01-01"}, {"IfMatch": "*"}])
        self.both(self.random.choice(["get_object", "head_object"]), {**self.at(bucket), **condition})

    def head(self, bucket):
        self.both("head_object", {**self.at(bucket), **({"PartNumber": 1} if self.some(0.2) else {})})

    def delete(self, bucket):
        self.both("delete_object", self.at(bucket))

    def deletes(self, bucket):
        objects = [{"Key": key} for key in self.random.sample(KEYS, 2)]
        self.both("delete_objects", {"Bucket": bucket, "Delete": {"Objects": objects, "Quiet": self.some(0.5)}})

    def listing(self, bucket):
        args = {"Bucket": bucket, "Prefix": self.random.choice(["", "dir", "dir/", "a"])}
        if self.some(0.5):
            args["Delimiter"] = "/"
        return args

    def listed(self, bucket):
        more = {"MaxKeys": self.random.choice([1, 2, 5])} if self.some(0.5) else {}
        more |= {"Marker": self.random.choice(KEYS)} if self.some(0.3) else {}
        self.both("list_objects", {**self.listing(bucket), **more})

    def listed2(self, bucket):
        more = {"MaxKeys": self.random.choice([0, 1, 2, 5])} if self.some(0.5) else {}
        more |= {"StartAfter": self.random.choice(KEYS)} if self.some(0.3) else {}
        more |= {"FetchOwner": True} if self.some(0.3) else {}
        self.both("list_objects_v2", {**self.listing(bucket), **more})

    def versions(self, bucket):
        self.both("list_object_versions", self.listing(bucket))

    def copy(self, bucket):
        args = {**self.at(bucket), "CopySource": self.at(bucket)}
        if self.some(0.3):
            args |= {"MetadataDirective": "REPLACE", "Metadata": {"n": "2"}}
        if self.some(0.2):
            args |= {"TaggingDirective": "REPLACE", "Tagging": "c=3"}
        if args["Key"] != args["CopySource"]["Key"]:
            self.both("copy_object", args)

    def tags(self, bucket):
        verb = self.random.choice(["put_object_tagging", "get_object_tagging", "delete_object_tagging"])
        tags = {"Tagging": {"TagSet": [{"Key": "t", "Value": "v"}]}} if verb.startswith("put") else {}
        self.both(verb, {**self.at(bucket), **tags})

    def asked_of_object(self, bucket):
        verb = self.random.choice(["get_object_acl", "get_object_retention", "get_object_legal_hold", "get_object_torrent", "get_object_attributes"])
        self.both(verb, {**self.at(bucket), **({"ObjectAttributes": ["ObjectSize"]} if verb.endswith("attributes") else {})})

    def asked_of_bucket(self, bucket):
        self.both(self.random.choice(BUCKET_QUESTIONS), {"Bucket": bucket})

    def upload(self, bucket):
        at = self.at(bucket)
        mine, other = self.both("create_multipart_upload", {**at, **({"Metadata": {"u": "1"}} if self.some(0.5) else {})})
        if not mine or not other:
            return
        ours, theirs = ({**at, "UploadId": one["UploadId"]} for one in (mine, other))
        part = {"PartNumber": 1, "Body": self.random.randbytes(self.random.choice([1, 100]))}
        mine, other = self.both("upload_part", {**ours, **part}, {**theirs, **part})
        self.both("list_parts", ours, theirs)
        if self.some(0.2):
            self.both("abort_multipart_upload", ours, theirs)
        elif self.some(0.8):
            chosen = [{"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": one["ETag"]}]}} for one in (mine, other)]
            self.both("complete_multipart_upload", {**ours, **chosen[0]}, {**theirs, **chosen[1]})
            if self.some(0.3):
                self.both("complete_multipart_upload", {**ours, **chosen[0]}, {**theirs, **chosen[1]})


@suite.scenario("random sequences, against moto")
def sequences(at):
    seed, count = int(os.environ.get("STOKER_SEED", "1")), int(os.environ.get("STOKER_SEQUENCES", "25"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [f"{at.programs['moto']}/moto_server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_open(port), "moto")
        pair = Pair(client(at.s3, at.access_key, at.secret_key), client(f"http://127.0.0.1:{port}", "x", "y"), seed)
        for n in range(count):
            pair.sequence(f"differential-{seed}-{n}-{int(time.time())}")
    finally:
        server.terminate()
        server.wait()
    for why, times in sorted(pair.explained.items()):
        print(f"differential: {times} times {why}", flush=True)
    print(f"differential: {pair.asked} requests", flush=True)
    words = "\n".join(f"{key}\n    {args}\n    ours   {ours}\n    theirs {theirs}"[:900] for key, (args, ours, theirs) in pair.odd.items())
    assert not pair.odd, f"{len(pair.odd)} differences without a reason:\n{words}"


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def client(url, access_key, secret_key):
    config = Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, signature_version="s3v4")
    return boto3.client(
        "s3", endpoint_url=url, aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name="us-east-1", config=config
    )


if __name__ == "__main__":
    suite.main(target())
