#!/usr/bin/env python3
"""The same files by S3, with nothing but boto3.

  stoker up                                               # prints the lines that set these
  export AWS_ENDPOINT_URL=http://127.0.0.1:9000 AWS_DEFAULT_REGION=stoker AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
  pip install boto3 && python examples/s3.py

A bucket is a volume. What is put is durable as the class of the volume says when the answer comes, and some seconds later it is an
object of the same name in your own bucket behind it.
"""

import argparse
import io
import json
import os
import urllib.request

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bucket", default="data")
    parser.add_argument("--prefix", default="s3-example")
    args = parser.parse_args()
    bucket, prefix = args.bucket, args.prefix
    s3 = boto3.client("s3")
    if bucket not in [one["Name"] for one in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket=bucket)

    # Large files go up in parts, at the same time.
    data = os.urandom(24 << 20)
    parts = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=4)
    s3.upload_fileobj(io.BytesIO(data), bucket, f"{prefix}/large.bin", Config=parts)
    middle = s3.get_object(Bucket=bucket, Key=f"{prefix}/large.bin", Range="bytes=10000000-10000999")["Body"].read()
    assert middle == data[10_000_000:10_001_000]
    print(f"uploaded {len(data)} bytes in parts and read a range back", flush=True)

    # Only one of many writers gets a name.
    s3.delete_object(Bucket=bucket, Key=f"{prefix}/lock")
    s3.put_object(Bucket=bucket, Key=f"{prefix}/lock", Body=b"rank 0", IfNoneMatch="*")
    try:
        s3.put_object(Bucket=bucket, Key=f"{prefix}/lock", Body=b"rank 1", IfNoneMatch="*")
        raise AssertionError("two writers got one name")
    except ClientError as fault:
        assert fault.response["Error"]["Code"] == "PreconditionFailed"
    print("a second writer of the same name was refused", flush=True)

    # A link that somebody without keys may use for five minutes.
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": f"{prefix}/lock"}, ExpiresIn=300)
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"rank 0"
    print("a presigned link works", flush=True)

    # A checkpoint set: both shards appear together or not at all.
    step = f"{prefix}/step-1"
    for one in s3.list_objects_v2(Bucket=bucket, Prefix=f"{step}/").get("Contents", []):
        s3.delete_object(Bucket=bucket, Key=one["Key"])
    s3.put_object(Bucket=bucket, Key=f"{step}/.stoker-set", Body=json.dumps({"action": "begin", "shards": 2}))
    for rank in range(2):
        of_set = {"stoker-set": f"{step}/", "stoker-shard": str(rank)}
        s3.put_object(Bucket=bucket, Key=f"{step}/rank-{rank}.pt", Body=os.urandom(1 << 20), Metadata=of_set)
    assert s3.list_objects_v2(Bucket=bucket, Prefix=f"{step}/")["KeyCount"] == 0
    s3.put_object(Bucket=bucket, Key=f"{step}/.stoker-set", Body=json.dumps({"action": "publish"}))
    assert s3.list_objects_v2(Bucket=bucket, Prefix=f"{step}/")["KeyCount"] == 2
    last = json.loads(s3.get_object(Bucket=bucket, Key=f"{prefix}/.stoker-latest")["Body"].read())
    print(f"published {step}: {last['state']}, {last['shards']} shards", flush=True)


if __name__ == "__main__":
    main()
