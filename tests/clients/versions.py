"""boto3: versions of objects, delete markers, Object Lock."""

import datetime
import sys

from boto3_basic import Room, refused
from harness import Suite, content, equal, same, target, wait_until

suite = Suite(sys.argv[1] if len(sys.argv) > 1 else "versions")
scenario = suite.scenario

HOUR = datetime.timedelta(hours=1)


def later(hours=1):
    return (datetime.datetime.now(datetime.timezone.utc) + hours * HOUR).replace(microsecond=0)


def versions(s3, bucket, **args):
    """All lines of a listing, page by page, as key, id and whether it is a marker."""
    lines, marker = [], {}
    while True:
        page = s3.list_object_versions(Bucket=bucket, **args, **marker)
        found = [(line, False) for line in page.get("Versions", [])] + [(line, True) for line in page.get("DeleteMarkers", [])]
        lines += [(line["Key"], line["VersionId"], is_marker, line["IsLatest"]) for line, is_marker in found]
        if not page["IsTruncated"]:
            return lines
        marker = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page.get("NextVersionIdMarker", "")}


def bucket_of(room, name, **args):
    bucket = f"{suite.name}-{name}"
    room.s3.create_bucket(Bucket=bucket, **args)
    return bucket


def enable(room, bucket, status="Enabled"):
    room.s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
    equal(room.s3.get_bucket_versioning(Bucket=bucket)["Status"], status, "status")


def clear(room, bucket):
    """Removes all versions, whatever is retained for governance, and then the bucket."""
    for key, version, _, _ in versions(room.s3, bucket):
        room.s3.delete_object(Bucket=bucket, Key=key, VersionId=version, BypassGovernanceRetention=True)
    equal(versions(room.s3, bucket), [], "nothing is left")
    room.s3.delete_bucket(Bucket=bucket)


@scenario("an object has all the versions that were written, and each of them its bytes and properties")
def written(room):
    s3, bucket = room.s3, bucket_of(room, "written")
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket), "nobody enabled it"
    s3.put_object(Bucket=bucket, Key="a", Body=b"before")
    enable(room, bucket)
    bodies = {"null": b"before"}
    for number in range(4):
        body = content(f"written{number}", 5_000_000 if number == 2 else 100 + number)
        answer = s3.put_object(Bucket=bucket, Key="a", Body=body, Metadata={"number": str(number)})
        bodies[answer["VersionId"]] = body
    equal(len(bodies), 5, "ids")
    for version, body in bodies.items():
        got = s3.get_object(Bucket=bucket, Key="a", VersionId=version)
        same(got["Body"].read(), body, version)
        equal(s3.head_object(Bucket=bucket, Key="a", VersionId=version)["ContentLength"], len(body), "length")
        if version != "null":
            equal(got["VersionId"], version, "id")
    ids = list(bodies)
    equal([line[1] for line in versions(s3, bucket)], ids[::-1], "the latest first")
    s3.put_object_tagging(Bucket=bucket, Key="a", VersionId=ids[1], Tagging={"TagSet": [{"Key": "of", "Value": "one"}]})
    equal(s3.get_object_tagging(Bucket=bucket, Key="a", VersionId=ids[1])["TagSet"], [{"Key": "of", "Value": "one"}], "tags")
    equal(s3.get_object_tagging(Bucket=bucket, Key="a")["TagSet"], [], "of the present one")
    equal([line[1] for line in versions(s3, bucket)], ids[::-1], "tags make no version")
    source = {"Bucket": bucket, "Key": "a", "VersionId": ids[1]}
    answer = s3.copy_object(Bucket=bucket, Key="a", CopySource=source)
    equal(answer["CopySourceVersionId"], ids[1], "the source")
    same(s3.get_object(Bucket=bucket, Key="a")["Body"].read(), bodies[ids[1]], "a copy of a former one")
    assert answer["VersionId"] not in bodies
    refused("NoSuchVersion", 404, s3.get_object, Bucket=bucket, Key="a", VersionId="0" * 40)
    refused("BucketNotEmpty", 409, s3.delete_bucket, Bucket=bucket)
    clear(room, bucket)


@scenario("what is deleted is hidden by a marker, and back without it")
def markers(room):
    s3, bucket = room.s3, bucket_of(room, "markers")
    enable(room, bucket)
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["VersionId"]
    second = s3.put_object(Bucket=bucket, Key="k", Body=b"2")["VersionId"]
    answer = s3.delete_object(Bucket=bucket, Key="k")
    marker = answer["VersionId"]
    equal(answer["DeleteMarker"], True, "a marker")
    equal(room.s3.list_objects_v2(Bucket=bucket)["KeyCount"], 0, "hidden")
    gone = refused("NoSuchKey", 404, s3.get_object, Bucket=bucket, Key="k")
    equal(gone["ResponseMetadata"]["HTTPHeaders"].get("x-amz-delete-marker"), "true", "it says why")
    refused("MethodNotAllowed", 405, s3.get_object, Bucket=bucket, Key="k", VersionId=marker)
    refused("405", 405, s3.head_object, Bucket=bucket, Key="k", VersionId=marker)
    equal(versions(s3, bucket), [("k", second, False, False), ("k", first, False, False), ("k", marker, True, True)], "listed")
    equal(s3.delete_object(Bucket=bucket, Key="k", VersionId=marker)["DeleteMarker"], True, "the marker goes")
    equal(s3.get_object(Bucket=bucket, Key="k")["Body"].read(), b"2", "back")
    s3.delete_object(Bucket=bucket, Key="k", VersionId=second)
    equal(s3.get_object(Bucket=bucket, Key="k")["Body"].read(), b"1", "the one before")
    wishes = [{"Key": "k", "VersionId": first}, {"Key": "other"}, {"Key": "k", "VersionId": first}]
    deleted = s3.delete_objects(Bucket=bucket, Delete={"Objects": wishes})["Deleted"]
    equal(sorted(line.get("VersionId", "-") for line in deleted), sorted([first, first, "-"]), "answers")
    equal([line[0] for line in versions(s3, bucket)], ["other"], "a marker of what never was")
    clear(room, bucket)


@scenario("while versioning is suspended a key has one version without an id")
def suspended(room):
    s3, bucket = room.s3, bucket_of(room, "suspended")
    enable(room, bucket)
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["VersionId"]
    enable(room, bucket, "Suspended")
    assert "VersionId" not in s3.put_object(Bucket=bucket, Key="k", Body=b"2"), "an id"
    s3.put_object(Bucket=bucket, Key="k", Body=b"3")
    equal([line[1] for line in versions(s3, bucket)], ["null", first], "replaced")
    equal(s3.delete_object(Bucket=bucket, Key="k")["VersionId"], "null", "a marker without an id")
    equal([line[1:3] for line in versions(s3, bucket)], [(first, False), ("null", True)], "in its place")
    equal(s3.get_object(Bucket=bucket, Key="k", VersionId=first)["Body"].read(), b"1", "kept")
    clear(room, bucket)


@scenario("listings of versions go on where a page ended")
def listed(room):
    s3, bucket = room.s3, bucket_of(room, "listed")
    enable(room, bucket)
    keys = ["a", "a!", "a/b", "a/c", "b", "ä", "z+ %"]
    for turn in range(3):
        for key in keys:
            s3.put_object(Bucket=bucket, Key=key, Body=str(turn).encode())
    s3.delete_object(Bucket=bucket, Key="b")
    whole = versions(s3, bucket)
    equal(len(whole), 22, "lines")
    equal([line[0] for line in whole if not line[2]], [key for key in sorted(keys, key=str.encode) for _ in range(3)], "order")
    for size in (1, 2, 5):
        equal(sorted(versions(s3, bucket, MaxKeys=size)), sorted(whole), f"in pages of {size}")
    page = s3.list_object_versions(Bucket=bucket, Delimiter="/")
    equal([row["Prefix"] for row in page["CommonPrefixes"]], ["a/"], "groups")
    equal(len(page["Versions"]) + len(page["DeleteMarkers"]), 16, "beside groups")
    equal(len(versions(s3, bucket, Prefix="a/")), 6, "with a prefix")
    clear(room, bucket)


@scenario("multipart uploads and concurrent writes make versions")
def concurrent(room):
    s3, bucket = room.s3, bucket_of(room, "concurrent")
    enable(room, bucket)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="m")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="m", UploadId=upload, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    done = s3.complete_multipart_upload(Bucket=bucket, Key="m", UploadId=upload, MultipartUpload=parts)
    equal(versions(s3, bucket), [("m", done["VersionId"], False, True)], "one version")
    import concurrent.futures

    def write(number):
        return s3.put_object(Bucket=bucket, Key="m", Body=str(number).encode())["VersionId"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(write, range(24)))
    equal(sorted(line[1] for line in versions(s3, bucket)), sorted([*ids, done["VersionId"]]), "all of them")
    clear(room, bucket)


@scenario("what is locked stays until its time is over, and nobody shortens what is for compliance")
def locked(room):
    s3, bucket = room.s3, bucket_of(room, "locked", ObjectLockEnabledForBucket=True)
    equal(s3.get_bucket_versioning(Bucket=bucket)["Status"], "Enabled", "with locks")
    refused("InvalidBucketState", 409, s3.put_bucket_versioning, Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    args = {"Bucket": bucket, "Key": "k"}
    version = s3.put_object(**args, Body=b"1", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=later())["VersionId"]
    head = s3.head_object(**args)
    equal((head["ObjectLockMode"], "ObjectLockLegalHoldStatus" in head), ("GOVERNANCE", False), "HEAD")
    refused("AccessDenied", 403, s3.delete_object, **args, VersionId=version)
    equal(s3.delete_object(**args)["DeleteMarker"], True, "hidden, not gone")
    equal(s3.get_object(**args, VersionId=version)["Body"].read(), b"1", "still there")
    shorter = {"Mode": "GOVERNANCE", "RetainUntilDate": later(0.5)}
    refused("AccessDenied", 403, s3.put_object_retention, **args, VersionId=version, Retention=shorter)
    s3.put_object_retention(**args, VersionId=version, Retention=shorter, BypassGovernanceRetention=True)
    got = s3.get_object_retention(**args, VersionId=version)["Retention"]
    equal((got["Mode"], got["RetainUntilDate"]), ("GOVERNANCE", shorter["RetainUntilDate"]), "shorter")
    s3.put_object_legal_hold(**args, VersionId=version, LegalHold={"Status": "ON"})
    refused("AccessDenied", 403, s3.delete_object, **args, VersionId=version, BypassGovernanceRetention=True)
    s3.put_object_legal_hold(**args, VersionId=version, LegalHold={"Status": "OFF"})
    s3.delete_object(**args, VersionId=version, BypassGovernanceRetention=True)

    until = later()
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=3)
    version = s3.put_object(**args, Body=b"2", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=soon)["VersionId"]
    for wish in ({}, {"Mode": "GOVERNANCE", "RetainUntilDate": until}, {"Mode": "COMPLIANCE", "RetainUntilDate": soon - datetime.timedelta(seconds=2)}):
        try:
            s3.put_object_retention(**args, VersionId=version, Retention=wish, BypassGovernanceRetention=True)
        except s3.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] in ("AccessDenied", "InvalidArgument"), error
        else:
            raise AssertionError(f"shortened by {wish}")
    refused("AccessDenied", 403, s3.delete_object, **args, VersionId=version, BypassGovernanceRetention=True)

    def is_over():
        try:
            s3.delete_object(**args, VersionId=version)
        except s3.exceptions.ClientError as error:
            equal(error.response["Error"]["Code"], "AccessDenied", "until then")
            return False
        return True

    wait_until(is_over, "a retention that is over")
    clear(room, bucket)


@scenario("a bucket says how long what is written into it stays")
def defaults(room):
    s3, bucket = room.s3, bucket_of(room, "defaults")
    configuration = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}}
    refused("InvalidBucketState", 409, s3.put_object_lock_configuration, Bucket=bucket, ObjectLockConfiguration=configuration)
    refused("ObjectLockConfigurationNotFoundError", 404, s3.get_object_lock_configuration, Bucket=bucket)
    refused("InvalidRequest", 400, s3.put_object, Bucket=bucket, Key="k", Body=b"", ObjectLockLegalHoldStatus="ON")
    enable(room, bucket)
    s3.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=configuration)
    equal(s3.get_object_lock_configuration(Bucket=bucket)["ObjectLockConfiguration"], configuration, "as it was set")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="m", ObjectLockLegalHoldStatus="ON")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="m", UploadId=upload, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=bucket, Key="m", UploadId=upload, MultipartUpload=parts)
    head = s3.head_object(Bucket=bucket, Key="m")
    equal((head["ObjectLockMode"], head["ObjectLockLegalHoldStatus"]), ("GOVERNANCE", "ON"), "both")
    refused("NoSuchKey", 404, s3.get_object_retention, Bucket=bucket, Key="none")
    s3.put_object_legal_hold(Bucket=bucket, Key="m", LegalHold={"Status": "OFF"})
    clear(room, bucket)


if __name__ == "__main__":
    suite.main(Room(target(), f"{suite.name}-room"))
