"""boto3, with and without awscrt: multipart uploads, checksums, listings, odd keys, signed URLs and forms."""

import base64
import concurrent.futures
import io
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import uuid

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import MissingDependencyException

from boto3_basic import Room, client, hours_ago, refused, suite
from harness import MIB, Skip, content, equal, same, target

# The scenarios of the other file were registered when it was read.
suite.scenarios.clear()
scenario = suite.scenario

PARTS_OF_8_MIB = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB)
ALGORITHMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")


def begin(room, key, **args):
    return room.s3.create_multipart_upload(Bucket=room.bucket, Key=key, **args)["UploadId"]


def part(room, key, upload, number, body, **args):
    answer = room.s3.upload_part(
        Bucket=room.bucket, Key=key, UploadId=upload, PartNumber=number, Body=body, **args
    )
    return {"PartNumber": number, "ETag": answer["ETag"]}


def complete(room, key, upload, parts, **args):
    return room.s3.complete_multipart_upload(
        Bucket=room.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **args
    )


@scenario("a file of 64 MiB in parts of 8 MiB, both ways")
def transfer(room):
    body = content("transfer", 64 * MIB)
    source, back = room.at.scratch / f"{room.bucket}.up", room.at.scratch / f"{room.bucket}.down"
    source.write_bytes(body)
    room.s3.upload_file(str(source), room.bucket, "transfer", Config=PARTS_OF_8_MIB)
    head = room.head("transfer")
    equal(head["ContentLength"], len(body), "size")
    assert head["ETag"].strip('"').endswith("-8"), head["ETag"]
    room.s3.download_file(room.bucket, "transfer", str(back), Config=PARTS_OF_8_MIB)
    same(back.read_bytes(), body, "download")
    same(room.read("transfer", PartNumber=3), body[16 * MIB : 24 * MIB], "part 3")
    room.s3.upload_fileobj(io.BytesIO(body[: 20 * MIB]), room.bucket, "fileobj", Config=PARTS_OF_8_MIB)
    same(room.read("fileobj"), body[: 20 * MIB], "fileobj")
    source.unlink()
    back.unlink()


@scenario("parts out of order, again, listed, aborted, refused")
def parts(room):
    bodies = [content(f"part{n}", 5 * MIB + n) for n in range(3)] + [b"the end"]
    upload = begin(room, "parts", Metadata={"kind": "parts"}, ContentType="text/parts")
    refused("NoSuchKey", 404, room.get, key="parts")
    part(room, "parts", upload, 2, b"to be replaced" * 10)
    done = {n: part(room, "parts", upload, n, bodies[n - 1]) for n in (3, 1, 4, 2)}
    rows = room.s3.list_parts(Bucket=room.bucket, Key="parts", UploadId=upload)["Parts"]
    equal([(row["PartNumber"], row["Size"]) for row in rows], [(n, len(bodies[n - 1])) for n in range(1, 5)], "parts")
    page = room.s3.list_parts(Bucket=room.bucket, Key="parts", UploadId=upload, MaxParts=2, PartNumberMarker=1)
    equal(([row["PartNumber"] for row in page["Parts"]], page["IsTruncated"]), ([2, 3], True), "a page of parts")
    uploads = room.s3.list_multipart_uploads(Bucket=room.bucket)["Uploads"]
    assert ("parts", upload) in [(row["Key"], row["UploadId"]) for row in uploads], uploads
    ordered = [done[n] for n in range(1, 5)]
    refused("InvalidPart", 400, complete, room=room, key="parts", upload=upload, parts=[{"PartNumber": 1, "ETag": '"0"'}])
    refused("InvalidPart", 400, complete, room=room, key="parts", upload=upload, parts=[*ordered, {"PartNumber": 9, "ETag": done[1]["ETag"]}])
    refused("InvalidPartOrder", 400, complete, room=room, key="parts", upload=upload, parts=ordered[::-1])
    complete(room, "parts", upload, ordered)
    same(room.read("parts"), b"".join(bodies), "whole")
    head = room.head("parts")
    equal((head["Metadata"], head["ContentType"]), ({"kind": "parts"}, "text/parts"), "metadata")

    small = begin(room, "small")
    rows = [part(room, "small", small, n, b"x" * 1000) for n in (1, 2)]
    refused("EntityTooSmall", 400, complete, room=room, key="small", upload=small, parts=rows)
    room.s3.abort_multipart_upload(Bucket=room.bucket, Key="small", UploadId=small)
    refused("NoSuchUpload", 404, part, room=room, key="small", upload=small, number=1, body=b"late")
    refused("NoSuchUpload", 404, complete, room=room, key="small", upload=small, parts=rows)
    refused("NoSuchKey", 404, room.get, key="small")

    # A part of an upload may be left out, and one upload does not disturb another to the same key.
    first, second = begin(room, "both"), begin(room, "both")
    a, b = part(room, "both", first, 1, bodies[0]), part(room, "both", second, 7, bodies[1])
    complete(room, "both", second, [b])
    same(room.read("both"), bodies[1], "second upload")
    complete(room, "both", first, [a])
    same(room.read("both"), bodies[0], "first upload")
    last = begin(room, "both")
    c = part(room, "both", last, 1, b"c")
    refused("PreconditionFailed", 412, complete, room=room, key="both", upload=last, parts=[c], IfNoneMatch="*")


@scenario("parts copied by reference")
def part_copies(room):
    body = content("part copies", 12 * MIB)
    room.put("part source", body)
    source = {"Bucket": room.bucket, "Key": "part source"}
    upload, rows = begin(room, "assembled"), []
    for number, (first, last) in enumerate([(0, 6 * MIB - 1), (5 * MIB + 1, 11 * MIB), (7, 7)], 1):
        answer = room.s3.upload_part_copy(
            Bucket=room.bucket, Key="assembled", UploadId=upload, PartNumber=number,
            CopySource=source, CopySourceRange=f"bytes={first}-{last}",
        )
        rows.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    complete(room, "assembled", upload, rows)
    room.s3.delete_object(Bucket=room.bucket, Key="part source")
    same(room.read("assembled"), body[: 6 * MIB] + body[5 * MIB + 1 : 11 * MIB + 1] + body[7:8], "assembled")


@scenario("10,000 parts are taken and listed", tier="full")
def ten_thousand_small_parts(room):
    upload = begin(room, "many parts")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda n: part(room, "many parts", upload, n, b"%d" % n), range(1, 10_001)))
    refused("InvalidArgument", 400, part, room=room, key="many parts", upload=upload, number=10_001, body=b"x")
    refused("InvalidArgument", 400, part, room=room, key="many parts", upload=upload, number=0, body=b"x")
    pages = room.s3.get_paginator("list_parts").paginate(Bucket=room.bucket, Key="many parts", UploadId=upload)
    listed = [(row["PartNumber"], row["ETag"]) for page in pages for row in page["Parts"]]
    equal(listed, [(row["PartNumber"], row["ETag"]) for row in rows], "listed")
    refused("EntityTooSmall", 400, complete, room=room, key="many parts", upload=upload, parts=rows)
    room.s3.abort_multipart_upload(Bucket=room.bucket, Key="many parts", UploadId=upload)
    refused("NoSuchUpload", 404, complete, room=room, key="many parts", upload=upload, parts=rows)


@scenario("10,000 parts of 5 MiB become one object", tier="full")
def ten_thousand_parts(room):
    """All but the last are copied by reference, because 50 GB of parts do not fit on a small machine. The object is
    deleted at once, before its time to drain comes."""
    key, piece = "ten thousand", content("piece", 5 * MIB)
    room.put("piece", piece)
    upload = begin(room, key)

    def copy(number):
        answer = room.s3.upload_part_copy(
            Bucket=room.bucket, Key=key, UploadId=upload, PartNumber=number,
            CopySource={"Bucket": room.bucket, "Key": "piece"},
        )  # fmt: skip
        return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

    def kept():
        return sum(ring["keep_bytes"] for ring in room.at.status()["rings"])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        before = kept()
        rows = list(pool.map(copy, range(1, 101)))
        if kept() - before > 250 * MIB:
            room.s3.abort_multipart_upload(Bucket=room.bucket, Key=key, UploadId=upload)
            raise Skip("parts are copied byte by byte, and 50 GB do not fit")
        rows += pool.map(copy, range(101, 10_000))
    rows.append(part(room, key, upload, 10_000, b"the last part"))
    slow = client(room.at, config={"read_timeout": 300})
    slow.complete_multipart_upload(Bucket=room.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": rows})
    try:
        head = room.head(key)
        equal(head["ContentLength"], 9_999 * len(piece) + 13, "size")
        assert head["ETag"].strip('"').endswith("-10000"), head["ETag"]
        same(room.read(key, Range="bytes=-20"), piece[-7:] + b"the last part", "the end")
        middle = 5_000 * len(piece)
        got = room.read(key, Range=f"bytes={middle - 100}-{middle + 99}")
        same(got, piece[-100:] + piece[:100], "across two parts")
    finally:
        room.s3.delete_object(Bucket=room.bucket, Key=key)


@scenario("checksums of all five kinds, right and wrong")
def checksums(room):
    body = content("checksums", 3 * MIB + 5)
    found = {}
    for algorithm in ALGORITHMS:
        name, key = f"Checksum{algorithm}", f"sum/{algorithm}"
        try:
            answer = room.put(key, body, ChecksumAlgorithm=algorithm)
        except MissingDependencyException:
            continue  # botocore alone cannot compute this one
        head = room.head(key, ChecksumMode="ENABLED")
        equal(head.get(name), answer[name], f"{algorithm} of HEAD and PUT")
        got = room.get(key, ChecksumMode="ENABLED")
        same(got["Body"].read(), body, algorithm)
        equal(got.get(name), answer[name], f"{algorithm} of GET")
        found[algorithm] = answer[name]
        wrong = base64.b64encode(bytes(len(base64.b64decode(answer[name])))).decode()
        refused("BadDigest", 400, room.put, key="sum/wrong", body=body, **{name: wrong})
        refused("NoSuchKey", 404, room.get, key="sum/wrong")
        attributes = room.s3.get_object_attributes(
            Bucket=room.bucket, Key=key, ObjectAttributes=["Checksum", "ObjectSize", "ETag"]
        )
        equal((attributes["Checksum"][name], attributes["ObjectSize"]), (answer[name], len(body)), "attributes")
    assert len(found) >= 3, found
    refused("BadDigest", 400, room.put, key="sum/wrong", body=body, ContentMD5=base64.b64encode(bytes(16)).decode())
    refused("InvalidDigest", 400, room.put, key="sum/wrong", body=body, ContentMD5="short")


@scenario("checksums of parts and of what they make")
def part_checksums(room):
    bodies = [content(f"summed part{n}", 5 * MIB) for n in range(2)]
    for algorithm, kind in (("SHA256", "COMPOSITE"), ("CRC32", "FULL_OBJECT"), ("CRC32", "COMPOSITE")):
        key, name = f"summed/{algorithm}-{kind}", f"Checksum{algorithm}"
        upload = begin(room, key, ChecksumAlgorithm=algorithm, ChecksumType=kind)
        rows = []
        for number, body in enumerate(bodies, 1):
            answer = room.s3.upload_part(
                Bucket=room.bucket, Key=key, UploadId=upload, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm
            )
            rows.append({"PartNumber": number, "ETag": answer["ETag"], name: answer[name]})
        done = complete(room, key, upload, rows, ChecksumType=kind)
        head = room.head(key, ChecksumMode="ENABLED")
        equal((head.get(name), head.get("ChecksumType")), (done[name], kind), key)
        if kind == "COMPOSITE":
            assert done[name].endswith("-2"), done[name]
        same(room.read(key), b"".join(bodies), key)


@scenario("bodies without a length, signed, unsigned, with and without checksums")
def streams(room):
    body = content("streams", 2 * MIB + 1)
    variants = {
        "when_required": {"request_checksum_calculation": "when_required"},
        "signed payload": {"s3": {"addressing_style": "path", "payload_signing_enabled": True}},
        "unsigned payload": {"s3": {"addressing_style": "path", "payload_signing_enabled": False}},
    }
    for name, config in variants.items():
        s3 = client(room.at, config=config)
        s3.put_object(Bucket=room.bucket, Key=f"stream/{name}", Body=body)
        same(s3.get_object(Bucket=room.bucket, Key=f"stream/{name}")["Body"].read(), body, name)
        s3.upload_fileobj(io.BytesIO(body), room.bucket, f"stream/{name}/fileobj")
        same(room.read(f"stream/{name}/fileobj"), body, f"{name}, fileobj")


@scenario("listings: pages, prefixes, delimiters, order")
def listings(room):
    # Once is enough for the large form; it takes minutes.
    count = 100_000 if room.at.is_full and suite.name == "boto3" else 2_000
    keys = sorted(f"list/{n % 20:02}/{n:06}" for n in range(count))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: room.put(key, b"x"), keys))
    equal(room.keys(Prefix="list/"), keys, "all, by thousands")
    few = keys[: min(count, 2_000)]
    got = []
    for page in room.s3.get_paginator("list_objects_v2").paginate(
        Bucket=room.bucket, Prefix="list/", PaginationConfig={"PageSize": 333, "MaxItems": len(few)}
    ):
        got += [row["Key"] for row in page["Contents"]]
        assert page["KeyCount"] <= 333, page["KeyCount"]
    equal(got, few, "all, by 333")
    answer = room.s3.list_objects_v2(Bucket=room.bucket, Prefix="list/", Delimiter="/")
    equal([row["Prefix"] for row in answer["CommonPrefixes"]], [f"list/{n:02}/" for n in range(20)], "prefixes")
    equal((answer.get("Contents", []), answer["KeyCount"]), ([], 20), "nothing else")
    answer = room.s3.list_objects_v2(Bucket=room.bucket, Prefix="list/", Delimiter="/", MaxKeys=7, StartAfter="list/03")
    equal([row["Prefix"] for row in answer["CommonPrefixes"]], [f"list/{n:02}/" for n in range(3, 10)], "from list/03")
    assert answer["IsTruncated"], answer
    more = room.s3.list_objects_v2(
        Bucket=room.bucket, Prefix="list/", Delimiter="/", ContinuationToken=answer["NextContinuationToken"]
    )
    equal([row["Prefix"] for row in more["CommonPrefixes"]], [f"list/{n:02}/" for n in range(10, 20)], "the rest")
    pages = room.s3.get_paginator("list_objects").paginate(Bucket=room.bucket, Prefix="list/1")
    equal([row["Key"] for page in pages for row in page["Contents"]], [key for key in keys if key[5] == "1"], "version 1")
    equal(room.keys(Prefix="list/05/", StartAfter=keys[count // 4]), [
        key for key in keys if key.startswith("list/05/") and key > keys[count // 4]
    ], "start after")
    equal(room.s3.list_objects_v2(Bucket=room.bucket, Prefix="nothing")["KeyCount"], 0, "nothing")
    refused("InvalidArgument", 400, room.s3.list_objects_v2, Bucket=room.bucket, ContinuationToken="garbage")
    row = room.s3.list_objects_v2(Bucket=room.bucket, Prefix=keys[0], FetchOwner=True)["Contents"][0]
    equal((row["Size"], row["ETag"]), (1, room.head(keys[0])["ETag"]), "size and ETag")


ODD_KEYS = [
    "a b", " leading", "trailing ", "plus+plus", "per%cent", "per%2Fcent", "qu?estion", "ha#sh", "am&p=er;semi:co,lon",
    "quote'\"quote", "<xml>&amp;", "back\\slash", "tilde~star*(par)!", "$@[]{}|^`", "ümlaut/日本語/🦀", "e\u0301 not é",
    "dots/../up", "dots/./here", "../outside", "..", ".", "double//slash", "/leading slash", "trailing slash/",
    "foo", "foo/", "foo/bar", "foo/bar/", "foo/bar/xyzzy", "new\nline", "tab\there", "control\x01\x7f",
    "x" * 255, "y" * 256 + "/z", "k" * 1024, "é" * 512, "CON", "con.", "a:b|c", ".hidden", "_STOKER_SET.json", "~", "-rf",
]  # fmt: skip


@scenario("odd keys")
def odd_keys(room):
    for key in ODD_KEYS:
        room.put(f"{key}", key.encode())
    ordered = sorted(ODD_KEYS, key=lambda key: key.encode())
    listed = [key for key in room.keys() if key in set(ODD_KEYS)]
    equal(listed, ordered, "listed in the order of their bytes")
    for key in ODD_KEYS:
        same(room.read(key), key.encode(), repr(key))
    source = {"Bucket": room.bucket, "Key": "dots/../up"}
    room.s3.copy_object(Bucket=room.bucket, Key="copy//of/../it", CopySource=source)
    same(room.read("copy//of/../it"), b"dots/../up", "copy of a key with dots")
    rows = [{"Key": key} for key in [*ODD_KEYS, "copy//of/../it"]]
    # Control characters cannot be told in XML 1.0; those go one by one.
    for row in [row for row in rows if any(c in row["Key"] for c in "\x01\x7f\n\t")]:
        room.s3.delete_object(Bucket=room.bucket, Key=row["Key"])
        rows.remove(row)
    answer = room.s3.delete_objects(Bucket=room.bucket, Delete={"Objects": rows, "Quiet": True})
    equal(answer.get("Errors", []), [], "deleted")
    equal([key for key in room.keys() if key in set(ODD_KEYS)], [], "left")
    refused("KeyTooLongError", 400, room.put, key="k" * 1025, body=b"x")


def fetch(url, data=None, method="GET", headers=None):
    request = urllib.request.Request(url, data=data, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@scenario("presigned URLs, with urllib and curl")
def presigned(room):
    body, key = content("presigned", 100_000), "signed/ü +&?.bin"
    s3 = client(room.at)
    sign = lambda name, **args: s3.generate_presigned_url(
        name, Params={"Bucket": room.bucket, "Key": key, **args}, ExpiresIn=300
    )
    equal(fetch(sign("put_object"), body, "PUT")[0], 200, "PUT")
    same(fetch(sign("get_object"))[1], body, "GET")
    equal(fetch(sign("head_object"), method="HEAD")[0], 200, "HEAD")
    status, part_of = fetch(sign("get_object"), headers={"Range": "bytes=5-9"})
    equal((status, part_of), (206, body[5:10]), "a range")
    url = sign("get_object")
    status, text = fetch(url[:-1] + ("0" if url[-1] != "0" else "1"))
    equal((status, b"SignatureDoesNotMatch" in text), (403, True), "a changed signature")
    status, text = fetch(sign("get_object").replace("signed/", "signex/"))
    equal((status, b"SignatureDoesNotMatch" in text), (403, True), "another key")
    status, text = fetch(sign("get_object"), body, "PUT")
    equal((status, b"SignatureDoesNotMatch" in text), (403, True), "another method")
    with hours_ago(1):
        past = sign("get_object")
    status, text = fetch(past)
    equal((status, b"AccessDenied" in text), (403, True), "an expired URL")
    curl = shutil.which("curl")
    if curl:
        done = subprocess.run([curl, "-sS", "--fail", sign("get_object")], capture_output=True, check=True)
        same(done.stdout, body, "curl")
        path = room.at.scratch / f"{room.bucket}.curl"
        path.write_bytes(body * 20)
        # curl asks first whether it may send a body of this length.
        asking = [curl, "-sS", "--fail", "-H", "Expect: 100-continue", "-T", str(path), sign("put_object")]
        subprocess.run(asking, capture_output=True, check=True)
        path.unlink()
        same(room.read(key), body * 20, "curl -T")
    fetch(sign("delete_object"), method="DELETE")
    refused("NoSuchKey", 404, room.get, key=key)


def form(fields, name, body):
    mark = uuid.uuid4().hex
    lines = []
    for field, value in fields.items():
        lines += [f"--{mark}", f'Content-Disposition: form-data; name="{field}"', "", value]
    lines += [f"--{mark}", f'Content-Disposition: form-data; name="file"; filename="{name}"', "Content-Type: text/x-form", ""]
    data = "\r\n".join([*lines, ""]).encode() + body + f"\r\n--{mark}--\r\n".encode()
    return data, {"Content-Type": f"multipart/form-data; boundary={mark}"}


@scenario("uploads by HTML form")
def forms(room):
    body = content("form", 300_000)
    limits = [["content-length-range", 1, 400_000], ["starts-with", "$key", "form/"]]
    s3 = client(room.at, config={"signature_version": "s3v4"})
    post = s3.generate_presigned_post(room.bucket, "form/${filename}", Conditions=limits, ExpiresIn=300)
    data, headers = form(post["fields"], "a.bin", body)
    status, text = fetch(post["url"], data, "POST", headers)
    assert status in (200, 201, 204), (status, text[:300])
    same(room.read("form/a.bin"), body, "form")
    data, headers = form(post["fields"], "b.bin", body + body)
    status, text = fetch(post["url"], data, "POST", headers)
    equal((status, b"EntityTooLarge" in text), (400, True), "too long")
    data, headers = form({**post["fields"], "key": "elsewhere"}, "c.bin", body)
    status, text = fetch(post["url"], data, "POST", headers)
    equal((status, b"AccessDenied" in text), (403, True), "another key")
    data, headers = form({**post["fields"], "x-amz-signature": "0" * 64}, "d.bin", body)
    equal(fetch(post["url"], data, "POST", headers)[0], 403, "another signature")
    equal(room.keys(Prefix="form/"), ["form/a.bin"], "only the first")


@scenario("a bucket is emptied and removed")
def emptied(room):
    for row in room.s3.list_multipart_uploads(Bucket=room.bucket).get("Uploads", []):
        room.s3.abort_multipart_upload(Bucket=room.bucket, Key=row["Key"], UploadId=row["UploadId"])
    room.remove()


if __name__ == "__main__":
    suite.main(Room(target(), f"{suite.name}-large"))
