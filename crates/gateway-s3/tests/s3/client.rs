//! A small blocking S3 client that signs by itself and can be told to do everything wrong.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};

#[derive(Clone)]
pub struct Client {
    pub address: SocketAddr,
    pub access_key: String,
    pub secret_key: String,
    pub region: String,
    /// Seconds by which the client's clock is ahead.
    pub clock_ahead_s: i64,
    /// The session token of a temporary key.
    pub token: Option<String>,
    /// What signatures are for.
    pub service: &'static str,
}

/// What `x-amz-content-sha256` says.
#[derive(Clone, PartialEq)]
pub enum Body {
    Unsigned,
    Sha256,
    /// Chunks of this size, without signatures, and these trailers.
    UnsignedTrailer(usize, Vec<(&'static str, String)>),
    /// Chunks of this size, each signed.
    Signed(usize),
    /// The same with signed trailers.
    SignedTrailer(usize, Vec<(&'static str, String)>),
    /// Anything.
    Text(&'static str),
}

pub struct Request {
    pub method: &'static str,
    /// Percent-encoded.
    pub path: String,
    /// Percent-encoded and sorted.
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub kind: Body,
    pub host: Option<String>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The text of the first element of this name.
    pub fn element(&self, name: &str) -> Option<String> {
        self.elements(name).into_iter().next()
    }

    pub fn elements(&self, name: &str) -> Vec<String> {
        let (text, open, close) = (self.text(), format!("<{name}>"), format!("</{name}>"));
        text.split(&open).skip(1).filter_map(|rest| Some(rest.split_once(&close)?.0.to_owned())).collect()
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Response {
        assert_eq!(self.status, status, "{}", self.text());
        assert!(self.header("x-amz-request-id").is_some());
        self
    }

    /// Status and code of an error.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Response {
        let response = self.expect(status);
        assert_eq!(response.element("Code").as_deref(), Some(code), "{}", response.text());
        assert_eq!(response.element("RequestId").as_deref(), response.header("x-amz-request-id"));
        assert!(response.element("Resource").is_some() && response.element("Message").is_some());
        response
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    sign(&Key::new(HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// Percent-encodes everything but unreserved characters and slashes.
pub fn encode(text: &[u8]) -> String {
    let keep = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(byte);
    text.iter()
        .map(|byte| if keep(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

pub fn encode_all(text: &str) -> String {
    encode(text.as_bytes()).replace('/', "%2F")
}

/// `20130524T000000Z` of a time, by way of the HTTP date.
pub fn amz_date(unix_s: i64) -> String {
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(unix_s as u64));
    let month = "JanFebMarAprMayJunJulAugSepOctNovDec".find(&date[8..11]).unwrap() / 3 + 1;
    format!("{}{month:02}{}T{}Z", &date[12..16], &date[5..7], date[17..25].replace(':', ""))
}

#[expect(clippy::disallowed_methods, reason = "signs for the real gateway, which looks at the real clock")]
pub fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

impl Client {
    pub fn new(address: SocketAddr, access_key: &str, secret_key: &str) -> Client {
        Client {
            address,
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            region: "stoker".to_owned(),
            clock_ahead_s: 0,
            token: None,
            service: "s3",
        }
    }

    pub fn request(&self, method: &'static str, path: &str) -> Request {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        Request {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            kind: Body::Unsigned,
            host: None,
        }
    }

    pub fn get(&self, path: &str) -> Response {
        self.send(self.request("GET", path))
    }

    pub fn put(&self, path: &str, body: &[u8]) -> Response {
        self.send(self.request("PUT", path).body(body))
    }

    pub fn send(&self, request: Request) -> Response {
        let method = request.method;
        exchange(self.address, &self.sign(request), method)
    }

    pub fn signing_key(&self, day: &str) -> Vec<u8> {
        let key = mac(format!("AWS4{}", self.secret_key).as_bytes(), day);
        [self.region.as_str(), self.service, "aws4_request"].iter().fold(key, |key, piece| mac(&key, piece))
    }

    /// The bytes of a signed request.
    pub fn sign(&self, request: Request) -> Vec<u8> {
        let time = amz_date(now_s() + self.clock_ahead_s);
        let day = &time[..8];
        let host = request.host.clone().unwrap_or_else(|| self.address.to_string());
        let declared = match &request.kind {
            Body::Unsigned => "UNSIGNED-PAYLOAD".to_owned(),
            Body::Sha256 => sha256(&request.body),
            Body::UnsignedTrailer(..) => "STREAMING-UNSIGNED-PAYLOAD-TRAILER".to_owned(),
            Body::Signed(_) => "STREAMING-AWS4-HMAC-SHA256-PAYLOAD".to_owned(),
            Body::SignedTrailer(..) => "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER".to_owned(),
            Body::Text(text) => (*text).to_owned(),
        };
        let mut headers = request.headers.clone();
        headers.push(("host".to_owned(), host));
        headers.push(("x-amz-date".to_owned(), time.clone()));
        headers.push(("x-amz-content-sha256".to_owned(), declared.clone()));
        if let Some(token) = &self.token {
            headers.push(("x-amz-security-token".to_owned(), token.clone()));
        }
        if let Body::UnsignedTrailer(_, trailers) | Body::SignedTrailer(_, trailers) = &request.kind {
            let names: Vec<&str> = trailers.iter().map(|(name, _)| *name).collect();
            headers.push(("x-amz-trailer".to_owned(), names.join(",")));
        }
        let chunked = !matches!(request.kind, Body::Unsigned | Body::Sha256 | Body::Text(_));
        if chunked {
            headers.push(("x-amz-decoded-content-length".to_owned(), request.body.len().to_string()));
            headers.push(("content-encoding".to_owned(), "aws-chunked".to_owned()));
        }
        headers.sort();
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let canonical = format!(
            "{}\n{}\n{}\n{lines}\n{}\n{declared}",
            request.method,
            request.path,
            canonical_query(&request.query),
            names.join(";")
        );
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let string = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256(canonical.as_bytes()));
        let key = self.signing_key(day);
        let seed = hex(&mac(&key, &string));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={},Signature={seed}",
            self.access_key,
            names.join(";")
        );
        let body = framed(&request, &key, &time, &scope, seed);
        headers.push(("authorization".to_owned(), authorization));
        if !headers.iter().any(|(name, _)| name == "content-length") {
            headers.push(("content-length".to_owned(), body.len().to_string()));
        }
        let target = if request.query.is_empty() {
            request.path.clone()
        } else {
            format!("{}?{}", request.path, request.query)
        };
        let mut bytes = format!("{} {target} HTTP/1.1\r\n", request.method).into_bytes();
        for (name, value) in &headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&body);
        bytes
    }

    /// A presigned path.
    pub fn presign(&self, method: &str, path: &str, expires_s: i64, more: &str) -> String {
        let time = amz_date(now_s() + self.clock_ahead_s);
        let scope = format!("{}/{}/s3/aws4_request", &time[..8], self.region);
        let mut query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={}&X-Amz-Date={time}&X-Amz-Expires={expires_s}\
             &X-Amz-SignedHeaders=host",
            encode_all(&format!("{}/{scope}", self.access_key))
        );
        if !more.is_empty() {
            query = format!("{query}&{more}");
        }
        if let Some(token) = &self.token {
            query = format!("{query}&X-Amz-Security-Token={token}");
        }
        let query = canonical_query(&query);
        let canonical = format!("{method}\n{path}\n{query}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD", self.address);
        let string = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256(canonical.as_bytes()));
        let signature = hex(&mac(&self.signing_key(&time[..8]), &string));
        format!("{path}?{query}&X-Amz-Signature={signature}")
    }

    /// Sends without a signature.
    pub fn plain(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{headers}content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        exchange(self.address, &[head.as_bytes(), body].concat(), method)
    }
}

fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
        .collect();
    pairs.sort();
    pairs.join("&")
}

/// The body in its framing.
fn framed(request: &Request, key: &[u8], time: &str, scope: &str, seed: String) -> Vec<u8> {
    let (size, trailers, is_signed) = match &request.kind {
        Body::Unsigned | Body::Sha256 | Body::Text(_) => return request.body.clone(),
        Body::UnsignedTrailer(size, trailers) => (*size, trailers.as_slice(), false),
        Body::Signed(size) => (*size, &[][..], true),
        Body::SignedTrailer(size, trailers) => (*size, trailers.as_slice(), true),
    };
    let mut previous = seed;
    let mut out = Vec::new();
    for chunk in request.body.chunks(size).chain([&[][..]]) {
        out.extend_from_slice(format!("{:x}", chunk.len()).as_bytes());
        if is_signed {
            let string = format!(
                "AWS4-HMAC-SHA256-PAYLOAD\n{time}\n{scope}\n{previous}\n{}\n{}",
                sha256(b""),
                sha256(chunk)
            );
            previous = hex(&mac(key, &string));
            out.extend_from_slice(format!(";chunk-signature={previous}").as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(chunk);
        if !chunk.is_empty() {
            out.extend_from_slice(b"\r\n");
        }
    }
    let mut lines = String::new();
    for (name, value) in trailers {
        out.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
        lines.push_str(&format!("{name}:{value}\n"));
    }
    if is_signed && !trailers.is_empty() {
        let string =
            format!("AWS4-HMAC-SHA256-TRAILER\n{time}\n{scope}\n{previous}\n{}", sha256(lines.as_bytes()));
        let signature = hex(&mac(key, &string));
        out.extend_from_slice(format!("x-amz-trailer-signature:{signature}\r\n").as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out
}

impl Request {
    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: &[u8]) -> Request {
        self.body = body.to_vec();
        self
    }

    pub fn kind(mut self, kind: Body) -> Request {
        self.kind = kind;
        self
    }
}

/// Opens a connection that gives up rather than hang a test.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Sends bytes and reads one answer.
pub fn exchange(address: SocketAddr, bytes: &[u8], method: &str) -> Response {
    let mut stream = connect(address);
    // The gateway may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    read_response(&mut stream, method)
}

/// Reads one answer, skipping `100 Continue`.
pub fn read_response(stream: &mut impl Read, method: &str) -> Response {
    loop {
        let head = read_head(stream);
        let text = String::from_utf8(head).unwrap();
        let mut lines = text.split("\r\n");
        let status: u16 =
            lines.next().unwrap().split(' ').nth(1).unwrap_or_else(|| panic!("{text:?}")).parse().unwrap();
        if status == 100 {
            continue;
        }
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        let mut response = Response { status, headers, body: Vec::new() };
        let is_empty = method == "HEAD" || status == 204 || status == 304;
        if is_empty {
            return response;
        }
        if let Some(len) = response.header("content-length") {
            response.body = vec![0; len.parse().unwrap()];
            stream.read_exact(&mut response.body).unwrap();
        } else if response.header("transfer-encoding") == Some("chunked") {
            response.body = read_chunks(stream);
        } else {
            stream.read_to_end(&mut response.body).unwrap();
        }
        return response;
    }
}

fn read_until(stream: &mut impl Read, end: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(end) {
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            other => panic!(
                "the connection ended in a head: {other:?} after {:?}",
                String::from_utf8_lossy(&bytes)
            ),
        }
    }
    bytes
}

fn read_head(stream: &mut impl Read) -> Vec<u8> {
    read_until(stream, b"\r\n\r\n")
}

fn read_chunks(stream: &mut impl Read) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = read_until(stream, b"\r\n");
        let len = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        let mut chunk = vec![0; len + 2];
        stream.read_exact(&mut chunk).unwrap();
        if len == 0 {
            return body;
        }
        body.extend_from_slice(&chunk[..len]);
    }
}
