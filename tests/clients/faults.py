"""A proxy that does to requests what networks and proxies do: it drops them, drops their answers, sends them twice, and sends them once more much later.

Which request gets which fault is drawn from a seed. A request that is sent again is one that its client signed: the server cannot tell it from the first.
"""

import collections
import http.client
import http.server
import queue
import random
import socketserver
import threading
import urllib.parse

# Of so many requests one has the fault.
ODDS = {"request lost": 12, "answer lost": 10, "sent twice": 10, "sent late": 10}
# A late request is held back until so many others have passed.
LATE = 5
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "proxy-connection"}


class Faults(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Stands in front of a server; `with Faults(url, seed) as proxy: proxy.url`."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, url, seed):
        at = urllib.parse.urlsplit(url)
        self.behind = (at.hostname, at.port)
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.counts, self.passed = collections.Counter(), 0
        self.held, self.late = [], queue.Queue()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.sender = threading.Thread(target=self.send_late, daemon=True)
        self.sender.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        with self.lock:
            for _, request in self.held:
                self.late.put(request)
            self.held = []
        self.late.put(None)
        self.sender.join(120)
        self.server_close()

    def draw(self):
        """The fault of the next request, if it has one."""
        with self.lock:
            self.passed += 1
            due = [request for at, request in self.held if at <= self.passed]
            self.held = [(at, request) for at, request in self.held if at > self.passed]
            for request in due:
                self.late.put(request)
            for fault, odds in ODDS.items():
                if self.random.randrange(odds) == 0:
                    self.counts[fault] += 1
                    return fault
        return None

    def hold(self, request):
        with self.lock:
            self.held.append((self.passed + LATE, request))

    def send_late(self):
        while (request := self.late.get()) is not None:
            self.forward(request)

    def forward(self, request):
        """Sends a request to the server; its answer, or none if there is none."""
        method, path, headers, body = request
        connection = http.client.HTTPConnection(*self.behind, timeout=120)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def handle_error(self, *_):
        """Clients hang up; that is what this is about."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_expect_100(self):
        self.send_response_only(100)
        self.end_headers()
        return True

    def pass_on(self):
        length = int(self.headers.get("content-length", 0))
        body = self.chunks() if self.headers.get("transfer-encoding") else self.rfile.read(length)
        # `Expect` stays, though the server has the body at once: some clients sign it.
        skipped = HOP_BY_HOP | {"content-length"}
        headers = [(name, value) for name, value in self.headers.items() if name.lower() not in skipped]
        if body or self.command in ("PUT", "POST"):
            headers.append(("content-length", str(len(body))))
        request = (self.command, self.path, headers, body)
        fault = self.server.draw()
        # What only looks is answered or not; sent twice it would say nothing.
        if fault == "request lost":
            return self.hang_up()
        answer = self.server.forward(request)
        if fault == "sent twice" and self.command != "GET":
            self.server.forward(request)
        if fault == "sent late" and self.is_of_a_part():
            self.server.hold(request)
        if fault == "answer lost" or answer is None:
            return self.hang_up()
        self.answer(*answer)

    def is_of_a_part(self):
        """A PUT of an object that comes late may come behind a newer one, and then S3 says that it is the newest."""
        return self.command == "PUT" and "uploadId=" in self.path

    def chunks(self):
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def hang_up(self):
        self.close_connection = True
        self.connection.close()

    def answer(self, status, headers, body):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        has_length = self.command == "HEAD" or status in (204, 304)
        length = next((value for name, value in headers if name.lower() == "content-length"), "0")
        if status not in (204, 304):
            self.send_header("content-length", length if has_length else str(len(body)))
        self.end_headers()
        if not has_length:
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on
