"""As much of S3 as the tests need: one request, signed by version 4."""

import datetime
import hashlib
import hmac
import urllib.parse
import urllib.request

REGION = "stoker"


def quoted(key):
    return urllib.parse.quote(key)


def request(method, endpoint, key, access, secret, body=None, more=()):
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    host = urllib.parse.urlparse(endpoint).netloc
    path = "/" + quoted(key)
    digest = hashlib.sha256(body or b"").hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now, **dict(more)}
    headers = dict(sorted(headers.items()))
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    canonical = "\n".join([method, path, "", *lines, "", names, digest])
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signing = ("AWS4" + secret).encode()
    for part in (now[:8], REGION, "s3", "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    signature = hmac.digest(signing, text.encode(), "sha256").hex()
    proof = f"AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={names}, Signature={signature}"
    asked = urllib.request.Request(endpoint + path, data=body, method=method)
    for name, value in (*headers.items(), ("authorization", proof)):
        asked.add_header(name, value)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.read()
