//! Messages that are right, to be made wrong. What a checksum or a signature guards is changed before it is sealed, so that the
//! code behind the guard meets it, too.

use aws_lc_rs::{digest, hmac};
use stoker_client::wire::{self, Header, Kind, Request};
use stoker_format::crc32c;
use stoker_store::{
    Attributes, Condition, CopyRequest, Finish, Key, ListRequest, PartChoice, RenameMode, UploadId,
    WriteRequest,
};

use crate::doors::Door;
use crate::mutate::Mutator;

/// Messages of one port.
pub struct Corpus {
    right: Vec<Vec<u8>>,
    seal: Seal,
}

/// What makes changed bytes look right from outside.
enum Seal {
    None,
    /// SigV4 with the node's own key.
    S3 {
        key: String,
        secret: String,
        region: String,
    },
    /// `Authorization` of the admin API.
    Bearer(String),
    /// Record mark of RPC.
    Rpc,
    /// Header of a frame from a client.
    Frame,
}

impl Corpus {
    pub fn of(door: &Door) -> Corpus {
        let text = |field: &str| door.ready[field].as_str().unwrap_or_default().to_owned();
        let (right, seal) = match door.name {
            "s3" => (
                s3(),
                Seal::S3 { key: text("access_key"), secret: text("secret_key"), region: text("region") },
            ),
            "admin" => (admin(), Seal::Bearer(text("token"))),
            "nfs" => (nfs(), Seal::Rpc),
            "peers" => (peers(), Seal::None),
            _ => (client(), Seal::Frame),
        };
        Corpus { right, seal }
    }

    /// One wrong message.
    pub fn message(&self, mutator: &mut Mutator) -> Vec<u8> {
        let (at, other) = (mutator.choose(&self.right).clone(), mutator.choose(&self.right).clone());
        let mut bytes = at;
        // One in four is wrong from the outside.
        if mutator.below(4) == 0 {
            let mut bytes = self.sealed(bytes, mutator);
            mutator.mutate(&mut bytes, &other);
            return bytes;
        }
        mutator.mutate(&mut bytes, &other);
        self.sealed(bytes, mutator)
    }

    fn sealed(&self, bytes: Vec<u8>, mutator: &mut Mutator) -> Vec<u8> {
        match &self.seal {
            Seal::None => bytes,
            Seal::S3 { key, secret, region } => sign(&bytes, key, secret, region),
            Seal::Bearer(token) => with_header(&bytes, &format!("authorization: Bearer {token}\r\n")),
            Seal::Rpc => [&(0x8000_0000 | bytes.len() as u32).to_be_bytes(), &bytes[..]].concat(),
            Seal::Frame => frame(&bytes, mutator),
        }
    }
}

fn s3() -> Vec<Vec<u8>> {
    let form = "--x\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nfuzz/${filename}\r\n--x\r\nContent-Disposition: \
                form-data; name=\"policy\"\r\n\r\ne30=\r\n--x\r\nContent-Disposition: form-data; name=\"file\"; \
                filename=\"a\"\r\nContent-Type: text/plain\r\n\r\nhello\r\n--x--\r\n";
    let delete = "<Delete><Object><Key>fuzz/a</Key></Object><Object><Key>fuzz/b</Key><VersionId>null</VersionId></Object></Delete>";
    let complete = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"0\"</ETag></Part></CompleteMultipartUpload>";
    let tagging = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    let chunked = "5;chunk-signature=0123456789abcdef\r\nhello\r\n0;chunk-signature=0\r\nx-amz-checksum-crc32c:AAAAAA==\r\n\r\n";
    let with = |line: &str, headers: &str, body: &str| {
        format!("{line} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
            .into_bytes()
    };
    vec![
        with("GET /", "", ""),
        with("GET /data?list-type=2&prefix=well%2F&max-keys=7&delimiter=%2F&encoding-type=url", "", ""),
        with("GET /data?list-type=2&continuation-token=d2VsbC8x&start-after=a", "", ""),
        with("GET /data/well/1", "range: bytes=5-9\r\nif-none-match: \"a\"\r\n", ""),
        with(
            "GET /data/well/1?partNumber=1&response-content-type=a%2Fb",
            "if-modified-since: Sat, 1 Jan 2000 00:00:00 GMT\r\n",
            "",
        ),
        with("HEAD /data/well/2", "x-amz-checksum-mode: ENABLED\r\n", ""),
        with("GET /data/well/1?attributes", "x-amz-object-attributes: ETag,Checksum,ObjectParts\r\n", ""),
        with(
            "PUT /data/fuzz/a",
            "content-type: a/b\r\nx-amz-meta-a: b\r\ncontent-md5: XUFAKrxLKna5cZ2REBfFkg==\r\n",
            "hello",
        ),
        with("PUT /data/fuzz/b", "x-amz-checksum-crc32c: mnG7TA==\r\nif-none-match: *\r\n", "hello"),
        with(
            "PUT /data/fuzz/c",
            "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\ncontent-encoding: aws-chunked\r\nx-amz-trailer: x-amz-checksum-crc32c\r\nx-amz-decoded-content-length: 5\r\n",
            chunked,
        ),
        with(
            "PUT /data/fuzz/d",
            "x-amz-copy-source: /data/fuzz%2Fa?versionId=null\r\nx-amz-metadata-directive: REPLACE\r\n",
            "",
        ),
        with(
            "PUT /data/fuzz/e?partNumber=1&uploadId=00000000",
            "x-amz-copy-source-range: bytes=0-4\r\nx-amz-copy-source: data/fuzz/a\r\n",
            "",
        ),
        with("PUT /data/fuzz/a?tagging", "", tagging),
        with("POST /data/fuzz/m?uploads", "x-amz-checksum-algorithm: CRC64NVME\r\n", ""),
        with("POST /data/fuzz/m?uploadId=00000000", "", complete),
        with("POST /data?delete", "content-md5: AAAAAAAAAAAAAAAAAAAAAA==\r\n", delete),
        with("POST /data", "content-type: multipart/form-data; boundary=x\r\n", form),
        with("DELETE /data/fuzz/a", "", ""),
        with(
            "PUT /fuzz-bucket",
            "",
            "<CreateBucketConfiguration><LocationConstraint>a</LocationConstraint></CreateBucketConfiguration>",
        ),
        with(
            "GET /data/well/1?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20260101T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=0",
            "",
            "",
        ),
        b"PUT /data/fuzz/f HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
            .to_vec(),
    ]
}

fn admin() -> Vec<Vec<u8>> {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").into_bytes();
    let post = |path: &str, body: &str| {
        let len = body.len();
        format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}").into_bytes()
    };
    let mut all: Vec<Vec<u8>> =
        ["/healthz", "/readyz", "/metrics", "/console/", "/console/app.js", "/api/v1/openapi.json"]
            .into_iter()
            .chain([
                "/api/v1/status",
                "/api/v1/risk",
                "/api/v1/nodes",
                "/api/v1/drives",
                "/api/v1/volumes",
                "/api/v1/events?after=0",
            ])
            .chain(["/api/v1/volumes/data", "/api/v1/volumes/data/files?prefix=well&limit=5", "/api/v1/slo"])
            .map(get)
            .collect();
    all.push(post("/api/v1/volumes", "{\"name\":\"fuzz-volume\",\"policy\":{\"class\":\"one\"}}"));
    all.push(post("/api/v1/session", "{\"token\":\"a\"}"));
    all.push(post("/api/v1/volumes/data/drain", "{\"prefix\":\"fuzz/\"}"));
    all
}

/// Calls of RPC without their mark.
fn nfs() -> Vec<Vec<u8>> {
    let call = |program: u32, procedure: u32, body: &[u8]| {
        let mut bytes = Vec::new();
        // xid, call, RPC version, program, version, procedure, then credentials of uid 0 and none to verify them.
        for word in [7, 0, 2, program, 3, procedure, 1, 24, 0, 0, 0, 0, 0, 0, 0, 0] {
            bytes.extend_from_slice(&u32::to_be_bytes(word));
        }
        bytes.extend_from_slice(body);
        bytes
    };
    let opaque = |bytes: &[u8]| {
        let mut out = (bytes.len() as u32).to_be_bytes().to_vec();
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    };
    let handle = opaque(&[7; 40]);
    let with = |more: &[&[u8]]| [&[&handle[..]], more].concat().concat();
    let mut all = vec![call(100_005, 0, &[]), call(100_005, 1, &opaque(b"/data")), call(100_005, 5, &[])];
    // GETATTR, SETATTR, LOOKUP, ACCESS, READLINK, READ, WRITE, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK,
    // READDIR, READDIRPLUS, FSSTAT, FSINFO, PATHCONF, COMMIT.
    for procedure in 0..22u32 {
        let name = opaque(b"well");
        let body = match procedure {
            0 => Vec::new(),
            2 => with(&[&[0; 28], &[0; 4]]),
            3 | 12 | 13 => with(&[&name]),
            4 => with(&[&[0, 0, 0, 63]]),
            6 => with(&[&[0; 8], &[0, 0, 16, 0]]),
            7 => with(&[&[0; 8], &[0, 0, 0, 5], &[0, 0, 0, 2], &opaque(b"hello")]),
            8 | 9 => with(&[&name, &[0; 4], &[0; 24]]),
            10 => with(&[&name, &[0; 24], &opaque(b"to")]),
            11 => with(&[&name, &[0, 0, 0, 7], &[0; 24]]),
            14 => with(&[&name, &handle, &opaque(b"other")]),
            15 => with(&[&handle, &name]),
            16 => with(&[&[0; 16], &[0, 0, 16, 0]]),
            17 => with(&[&[0; 16], &[0, 0, 4, 0], &[0, 0, 16, 0]]),
            21 => with(&[&[0; 12]]),
            _ => with(&[]),
        };
        all.push(call(100_003, procedure, &body));
    }
    all
}

fn peers() -> Vec<Vec<u8>> {
    let mut hello = b"STOKER>\n\x02\0\x01\0\0\0\x01\0".to_vec();
    hello.resize(120, 0);
    hello.extend_from_slice(&crc32c(&hello).to_le_bytes());
    // The beginning of a TLS 1.3 hello with our application protocol.
    let mut tls = vec![22, 3, 1, 0, 77, 1, 0, 0, 73, 3, 3];
    tls.extend_from_slice(&[9; 32]);
    tls.extend_from_slice(&[0, 0, 4, 0x13, 1, 0x13, 2, 1, 0, 0, 28, 0, 16, 0, 14, 0, 12, 11]);
    tls.extend_from_slice(b"stoker-join");
    tls.extend_from_slice(&[0, 43, 0, 3, 2, 3, 4, 0, 10, 0, 4, 0, 2, 0, 29]);
    vec![hello, tls, b"GET / HTTP/1.1\r\n\r\n".to_vec()]
}

/// Control parts of frames from a client.
fn client() -> Vec<Vec<u8>> {
    let (volume, key) = (|| "data".to_owned(), |name: &str| Key::new(name).unwrap());
    let upload = || UploadId("00000000".to_owned());
    let all = [
        Request::Volumes,
        Request::Volume { name: volume() },
        Request::Stat { volume: volume(), key: key("well/1") },
        Request::Open { volume: volume(), key: key("well/2") },
        Request::Read { file: 1, offset: 0, len: 4096 },
        Request::List { volume: volume(), request: ListRequest { limit: 10, ..ListRequest::default() } },
        Request::Create { volume: volume(), key: key("fuzz/c"), request: WriteRequest::default() },
        Request::Finish { writer: 1, len: 0, crc64: 0, finish: Finish::default() },
        Request::Rename {
            volume: volume(),
            from: key("fuzz/c"),
            to: key("fuzz/d"),
            mode: RenameMode::Replace,
        },
        Request::Delete { volume: volume(), keys: vec![(key("fuzz/d"), Condition::default())] },
        Request::Copy(CopyRequest {
            from_volume: volume(),
            from: key("fuzz/c"),
            from_condition: Condition::default(),
            to_volume: volume(),
            to: key("fuzz/e"),
            condition: Condition::default(),
            attributes: None,
        }),
        Request::UploadCreate {
            volume: volume(),
            key: key("fuzz/u"),
            attributes: Attributes::default(),
            checksum: None,
        },
        Request::UploadParts { volume: volume(), key: key("fuzz/u"), upload: upload(), after: 0, limit: 10 },
        Request::UploadComplete {
            volume: volume(),
            key: key("fuzz/u"),
            upload: upload(),
            parts: vec![PartChoice { number: 1, etag: "0".into(), checksum: None }],
            condition: Condition::default(),
            finish: Finish::default(),
        },
        Request::Receipt { volume: volume(), key: key("well/1") },
    ];
    all.iter().map(wire::encode).collect()
}

fn frame(control: &[u8], mutator: &mut Mutator) -> Vec<u8> {
    let kinds =
        [Kind::Request, Kind::Request, Kind::Request, Kind::Release, Kind::Data, Kind::Want, Kind::DataAt];
    let kind = *mutator.choose(&kinds);
    let payload: Vec<u8> = (0..mutator.below(9)).map(|_| mutator.below(256) as u8).collect();
    let mut header = Header {
        kind,
        flags: if mutator.below(8) == 0 { mutator.below(256) as u8 } else { 0 },
        id: 1 + mutator.below(16),
        control_len: control.len() as u32,
        payload_len: payload.len() as u32,
        deadline_ms: 0,
        payload_crc: crc32c(&payload),
        control_crc: 0,
    };
    header.control_crc = header.crc_with(control);
    [&header.encode()[..], control, &payload].concat()
}

/// A header line behind the first line, if there is one.
fn with_header(request: &[u8], line: &str) -> Vec<u8> {
    let end = request.windows(2).position(|two| two == b"\r\n").map_or(request.len(), |at| at + 2);
    [&request[..end], line.as_bytes(), &request[end..]].concat()
}

/// Signs what there is of a request with the node's key. The body is not signed, nor are headers that it does not have.
#[expect(clippy::disallowed_methods, reason = "a signature has the time of its request")]
fn sign(request: &[u8], key: &str, secret: &str, region: &str) -> Vec<u8> {
    let line_end = request.windows(2).position(|two| two == b"\r\n").unwrap_or(request.len());
    let line = String::from_utf8_lossy(&request[..line_end]).into_owned();
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut pairs: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
        .collect();
    pairs.sort();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let (day, time) = date(now);
    let scope = format!("{day}/{region}/s3/aws4_request");
    let host = host_of(request);
    let canonical = format!(
        "{method}\n{path}\n{}\nhost:{host}\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:{time}\n\nhost;x-amz-content-sha256;x-amz-date\nUNSIGNED-PAYLOAD",
        pairs.join("&")
    );
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
        hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref())
    );
    let mac = |key: &[u8], text: &str| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
    };
    let mut sealed = mac(format!("AWS4{secret}").as_bytes(), &day);
    for word in [region, "s3", "aws4_request", &to_sign] {
        sealed = mac(&sealed, word);
    }
    let lines = format!(
        "x-amz-date: {time}\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\nauthorization: AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={}\r\n",
        hex(&sealed)
    );
    with_header(request, &lines)
}

fn host_of(request: &[u8]) -> String {
    let text = String::from_utf8_lossy(request);
    let line = text.lines().find(|line| line.to_ascii_lowercase().starts_with("host:"));
    line.map(|line| line[5..].trim().to_owned()).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `20260102` and `20260102T030405Z`.
fn date(seconds: u64) -> (String, String) {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of the year 0, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let text = format!("{year:04}{month:02}{day:02}");
    let time = format!("{text}T{:02}{:02}{:02}Z", rest / 3_600, rest / 60 % 60, rest % 60);
    (text, time)
}
