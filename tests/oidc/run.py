#!/usr/bin/env python3
"""Users of a real OpenID provider get keys for S3 and log in to the console: oidc-provider, boto3's own chain of credentials, a browser's walk.

  python3 tests/oidc/run.py --stoker target/debug/stoker

Needs Node.js with npm, which gets the provider into STOKER_CACHE (~/.cache/stoker-tests), and what tests/clients needs for boto3.
Exit code: 0 passed, 1 something failed, 3 what it needs could not be had.
"""

import argparse
import contextlib
import http.cookiejar
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "clients")]

import tools  # noqa: E402

NOT_HERE = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program")
    parser.add_argument("--keep", action="store_true", help="leave the folder of the run")
    args = parser.parse_args()
    try:
        library, python = provider_library(), tools.install(("boto3",))["boto3"] / "python"
    except tools.Missing as why:
        print(f"oidc: {why}", file=sys.stderr)
        return NOT_HERE
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-oidc-"))
    try:
        Walk(args.stoker.resolve(), library, python, folder).run()
    except AssertionError as failed:
        print(f"oidc: FAILED: {failed}", flush=True)
        for log in folder.glob("*.log"):
            print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:]))
        return 1
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print("oidc: passed", flush=True)
    return 0


def provider_library():
    """The folder in which node finds oidc-provider."""
    for program in ("node", "npm"):
        if not shutil.which(program):
            raise tools.Missing(f"there is no {program}")
    folder, wanted = tools.cache() / "oidc-provider", (HERE / "package.json").read_text()
    if not (folder / "stamp").is_file() or (folder / "stamp").read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(wanted)
        tools.call(["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"], "npm install oidc-provider")
        (folder / "stamp").write_text(wanted)
    # Beside the library, because that is where node looks for it.
    shutil.copy(HERE / "provider.mjs", folder)
    return folder


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Provider:
    """The provider with fresh keys."""

    def __init__(self, library, log, **told):
        self.command = ["node", str(library / "provider.mjs"), json.dumps(told)]
        self.log = log

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline().split()
        assert line[:1] == ["ready"], f"the provider does not start: {self.log.read_text(errors='replace')[-500:]}"
        self.url = f"http://127.0.0.1:{line[1]}"
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def token(self, robot):
        form = urllib.parse.urlencode({"grant_type": "client_credentials", "client_id": robot, "client_secret": f"secret-of-{robot}"})
        with urllib.request.urlopen(f"{self.url}/token", form.encode()) as answer:
            return json.load(answer)["access_token"]


CONFIG = """
[node]
dir = "{dir}"
cores = 1
memory = "512MiB"
[[drive]]
path = "{dir}-ring"
size = "1GiB"
[s3]
listen = ["127.0.0.1:0"]
[admin]
listen = "127.0.0.1:{admin}"
[[oidc]]
name = "corp"
issuer = "{issuer}"
audiences = ["stoker"]
[[oidc.role]]
role = "acme/trainer"
user = "alice"
groups = ["ml"]
[[oidc.role]]
role = "acme/reader"
user = "alice"
groups = ["ml"]
read_only = true
prefixes = ["acme/public/"]
[oidc.console]
client_id = "console"
client_secret_file = "{dir}.secret"
operators = ["platform"]
viewers = ["ml"]
"""

# What a program does that knows nothing of Stoker but an endpoint.
CHAIN = """
import boto3, json, sys
session = boto3.Session(region_name="us-east-1")
s3 = session.client("s3")
said = {"method": session.get_credentials().method, "arn": session.client("sts").get_caller_identity()["Arn"]}
s3.put_object(Bucket="acme", Key="from/boto3", Body=b"bytes")
said["body"] = s3.get_object(Bucket="acme", Key="from/boto3")["Body"].read().decode()
said["url"] = s3.generate_presigned_url("get_object", Params={"Bucket": "acme", "Key": "from/boto3"})
said["post"] = s3.generate_presigned_post("acme", "from/post")
said["buckets"] = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
s3.upload_file(sys.argv[1], "acme", "from/large")
print(json.dumps(said))
"""

FAILS = """
import boto3, botocore.exceptions
try:
    print(boto3.client("s3", region_name="us-east-1").list_buckets()["Buckets"])
except botocore.exceptions.ClientError as error:
    print(error.response["Error"]["Code"], error.response["Error"]["Message"])
"""

SESSION = """
import boto3, json
sts = boto3.client("sts", region_name="us-east-1")
made = sts.get_session_token(DurationSeconds=900)["Credentials"]
keys = dict(aws_access_key_id=made["AccessKeyId"], aws_secret_access_key=made["SecretAccessKey"], aws_session_token=made["SessionToken"])
s3 = boto3.client("s3", region_name="us-east-1", **keys)
s3.put_object(Bucket="acme", Key="from/session", Body=b"x")
print(json.dumps({"life": (made["Expiration"] - __import__("datetime").datetime.now(made["Expiration"].tzinfo)).total_seconds()}))
"""


class Walk:
    def __init__(self, stoker, library, python, folder):
        self.stoker, self.library, self.python, self.folder = stoker, library, python, folder
        self.admin, self.port = free_port(), free_port()

    def run(self):
        node_dir = self.folder / "node"
        pathlib.Path(f"{node_dir}-ring").mkdir()
        pathlib.Path(f"{node_dir}.secret").write_text("secret-of-console\n")
        os.chmod(f"{node_dir}.secret", 0o600)
        config = self.folder / "stoker.toml"
        config.write_text(CONFIG.format(dir=node_dir, admin=self.admin, issuer=f"http://127.0.0.1:{self.port}"))
        with self.node(config) as ready:
            self.s3, self.dir = ready["s3"][0] if isinstance(ready["s3"], list) else ready["s3"], ready["dir"]
            self.call("tenant", "create", "acme")
            self.call("user", "create", "acme/alice")
            # Nobody answers yet: the program is told what is the matter.
            with self.provider("a", ["RS256"]) as provider:
                self.token = self.folder / "token"
                self.token.write_text(provider.token("trainer"))
            assert self.fails("trainer").startswith("IDPCommunicationError"), "a provider that is down"
            with self.provider("a", ["RS256"]) as provider:
                self.token.write_text(provider.token("trainer"))
                self.check(config)
                self.chain(provider)
                self.roles(provider)
                self.console(provider)
                self.sessions()
            with self.provider("b", ["ES256"]) as provider:
                self.rotated(provider)
            # Known keys go on although the provider is away.
            assert self.fails("trainer").startswith("["), "a provider that is away"
            self.ended()

    def provider(self, generation, keys):
        console = f"http://127.0.0.1:{self.admin}/login/callback"
        return Provider(self.library, self.folder / "provider.log", port=self.port, console=console, keys=keys, generation=generation)

    @contextlib.contextmanager
    def node(self, config):
        with open(self.folder / "node.log", "ab") as log:
            process = subprocess.Popen([self.stoker, "serve", "--config", config, "--json"], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            line = process.stdout.readline()
            assert line, "the node does not start"
            yield json.loads(line)
        finally:
            process.terminate()
            process.wait(60)

    def call(self, *args, expect=0):
        done = subprocess.run([self.stoker, *args, "--dir", self.dir], capture_output=True, text=True, timeout=120)
        assert done.returncode == expect, f"{args}: {done.returncode} {done.stderr}"
        return done.stdout

    def environment(self, role=None, **more):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        clean |= {"AWS_ENDPOINT_URL_S3": self.s3, "AWS_ENDPOINT_URL_STS": self.s3, "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(self.folder)}
        if role:
            clean |= {"AWS_ROLE_ARN": f"arn:aws:iam::acme:role/{role}", "AWS_WEB_IDENTITY_TOKEN_FILE": str(self.token), "AWS_ROLE_SESSION_NAME": "job-7"}
        return clean | more

    def boto3(self, program, *args, **environment):
        done = subprocess.run(
            [self.python, "-c", program, *args], env=self.environment(**environment), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"boto3: {done.stderr[-800:]}"
        return done.stdout.strip()

    def fails(self, role):
        return self.boto3(FAILS, role=role)

    def check(self, config):
        done = subprocess.run(
            [self.stoker, "oidc", "check", "--config", config, "--token-file", self.token, "--json"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr + done.stdout
        said = json.loads(done.stdout)
        assert (said["fault"], [key["kid"] for key in said["keys"]]) == (None, ["a-RS256"]), said
        assert {role["role"]: role["user"] for role in said["roles"]} == {"acme/trainer": "acme/alice", "acme/reader": "acme/alice"}, said
        listed = subprocess.run([self.stoker, "oidc", "ls", "--config", config], capture_output=True, text=True, timeout=60).stdout
        assert "acme/trainer" in listed and "operator" in listed, listed

    def chain(self, provider):
        """boto3 finds its keys by itself, as in a pod."""
        self.token.write_text(provider.token("trainer"))
        large = self.folder / "large"
        large.write_bytes(os.urandom(20 << 20))
        said = json.loads(self.boto3(CHAIN, str(large), role="trainer"))
        assert said["method"] == "assume-role-with-web-identity", said
        assert said["arn"] == "arn:aws:sts::acme:assumed-role/trainer/job-7", said
        assert (said["body"], said["buckets"]) == ("bytes", ["acme"]), said
        with urllib.request.urlopen(said["url"]) as answer:
            assert answer.read() == b"bytes"
        without = re.sub(r"&X-Amz-Security-Token=[^&]*|&?x-amz-security-token=[^&]*", "", said["url"])
        assert without != said["url"], said["url"]
        assert status(without) == 403, "a url without its session token"
        assert status(said["url"].replace("security-token=", "security-token=A").replace("Security-Token=", "Security-Token=A")) == 400
        post = said["post"]
        assert form(self.s3 + "/acme", post["fields"], b"by form") in (200, 204), "a form"
        bare = {name: value for name, value in post["fields"].items() if name.lower() != "x-amz-security-token"}
        assert form(self.s3 + "/acme", bare, b"by form") == 403, "a form without its session token"

    def roles(self, provider):
        """A role takes away, and is not for everybody."""
        program = FAILS.replace('list_buckets()["Buckets"]', 'put_object(Bucket="acme", Key="public/x", Body=b"x")')
        assert self.boto3(program, role="reader").startswith("AccessDenied")
        assert self.fails("none").startswith("AccessDenied")
        token = self.token.read_text()
        self.token.write_text(provider.token("stranger"))
        assert self.fails("trainer").startswith("AccessDenied"), "a group that the role is not for"
        self.token.write_text(token[:-4] + ("AAAA" if not token.endswith("AAAA") else "BBBB"))
        assert self.fails("trainer").startswith("InvalidIdentityToken")
        self.token.write_text(token)

    def console(self, provider):
        """A browser's walk, by the provider's own pages."""
        for who, role in (("platform", "operator"), ("trainer", "view"), ("stranger", None)):
            browser = Browser()
            page = browser.get(f"http://127.0.0.1:{self.admin}/login/begin?provider=corp")
            page = browser.submit(page, login=who, password="any")
            page = browser.submit(page)
            if role is None:
                assert "in no group" in page.text and page.status == 403, page.text
                continue
            assert page.status == 200 and "Logged in" in page.text, f"{page.status} {page.text[:500]}"
            session = json.loads(browser.get(f"http://127.0.0.1:{self.admin}/api/v1/session").text)
            assert (session["role"], session["by"]) == (role, "session"), session
        lines = self.call("audit", "query", "--json")
        assert '"subject":"platform"' in lines.replace("\\", ""), "a login has a line"
        assert "AssumeRoleWithWebIdentity" in lines and "trainer/job-7 (trainer at" in lines, "a session is named in its lines"
        assert self.token.read_text() not in lines

    def sessions(self):
        key = json.loads(self.call("key", "create", "--user", "acme/alice", "--json"))
        made = json.loads(self.boto3(SESSION, AWS_ACCESS_KEY_ID=key["access_key"], AWS_SECRET_ACCESS_KEY=key["secret_key"]))
        assert 800 < made["life"] <= 901, made

    def rotated(self, provider):
        """Another key of the provider, which is found by its name; within half a minute, because the last look was a moment ago."""
        old, new = self.token.read_text(), provider.token("trainer")
        self.token.write_text(new)
        self.until(45, "[", "InvalidIdentityToken")
        self.token.write_text(old)
        assert self.fails("trainer").startswith("InvalidIdentityToken"), "a key that is not listed any more"
        self.token.write_text(new)

    def ended(self):
        """Whoever is kept out gets no temporary keys."""
        self.call("user", "set", "acme/alice", "--disabled", "true")
        self.until(10, "AccessDenied", "[")

    def until(self, seconds, wanted, before):
        begun = time.monotonic()
        while not (said := self.fails("trainer")).startswith(wanted):
            assert said.startswith(before) and time.monotonic() - begun < seconds, said


def status(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def form(url, fields, body):
    mark = "----stoker-test"
    parts = [f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    parts.append(f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n')
    data = "".join(parts).encode() + body + f"\r\n--{mark}--\r\n".encode()
    request = urllib.request.Request(url, data, {"Content-Type": f"multipart/form-data; boundary={mark}"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


class Page:
    def __init__(self, url, status, text):
        self.url, self.status, self.text = url, status, text


class Browser:
    """Keeps cookies, follows redirections, sends forms."""

    def __init__(self):
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def get(self, url, data=None):
        try:
            with self.opener.open(url, data) as answer:
                return Page(answer.url, answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Page(error.url, error.code, error.read().decode())

    def submit(self, page, **typed):
        """Sends the form of a page with what is typed into it."""
        found = re.search(r'<form[^>]*action="([^"]+)"', page.text)
        assert found, f"{page.url} has no form: {page.status} {page.text[:500]}"
        hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page.text))
        url = urllib.parse.urljoin(page.url, found.group(1).replace("&amp;", "&"))
        return self.get(url, urllib.parse.urlencode(hidden | typed).encode())


if __name__ == "__main__":
    sys.exit(main())
