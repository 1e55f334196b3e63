//! Requests that no honest client sends.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;

use proptest::prelude::*;

use crate::client::{Body, connect, exchange, read_response};
use crate::rig::{client, pattern, volume};

#[test]
fn a_short_body_leaves_nothing() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/short");
    for (kind, body) in [
        (Body::Unsigned, pattern(1, 300_000)),
        (Body::Signed(65_536), pattern(1, 300_000)),
        (Body::Unsigned, pattern(1, 9 << 20)),
    ] {
        let bytes = client.sign(client.request("PUT", &path).body(&body).kind(kind));
        let mut stream = connect(client.address);
        stream.write_all(&bytes[..bytes.len() - 1000]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        read_response(&mut stream, "PUT").refused(400, "IncompleteBody");
    }
    client.get(&path).refused(404, "NoSuchKey");
    let lengths = client.request("PUT", &path).body(b"12345").header("x-amz-decoded-content-length", "4");
    let bytes = client.sign(
        lengths.kind(Body::Text("STREAMING-UNSIGNED-PAYLOAD-TRAILER")).body(b"5\r\nhello\r\n0\r\n\r\n"),
    );
    exchange(client.address, &bytes, "PUT").refused(400, "IncompleteBody");
}

#[test]
fn lengths_are_needed_and_limited() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/length");
    let huge = client.request("PUT", &path).header("content-length", &((5u64 << 30) + 1).to_string());
    let huge = client.sign(huge.header("expect", "100-continue"));
    exchange(client.address, &huge, "PUT").refused(400, "EntityTooLarge");
    let open =
        client.request("PUT", &path).header("transfer-encoding", "chunked").body(b"1\r\nx\r\n0\r\n\r\n");
    let open = String::from_utf8(client.sign(open)).unwrap().replace("content-length: 11\r\n", "");
    exchange(client.address, open.as_bytes(), "PUT").refused(411, "MissingContentLength");
    client.get(&path).refused(404, "NoSuchKey");
}

#[test]
fn odd_names_get_their_codes() {
    let (client, volume) = (client(), volume());
    let long = "k".repeat(1025);
    client.put(&format!("/{volume}/{long}"), b"").refused(400, "KeyTooLongError");
    client.put(&format!("/{volume}/{}", &long[..1024]), b"").expect(200);
    client.put(&format!("/{volume}/a%00b"), b"").refused(400, "InvalidArgument");
    client.put(&format!("/{volume}/%ff"), b"").refused(400, "InvalidURI");
    client.put(&format!("/{volume}/%zz"), b"").refused(400, "InvalidURI");
    client.put("/Bad_Name/a", b"").refused(400, "InvalidBucketName");
    client.get(&format!("/{volume}/a?x=%zz")).refused(400, "InvalidURI");
    client.get(&format!("/{volume}/a?prefix=1&prefix=2")).refused(400, "InvalidArgument");
}

#[test]
fn heads_have_a_limit() {
    let client = client();
    let mut big = String::new();
    for n in 0..50 {
        big.push_str(&format!("x-filler-{n}: {}\r\n", "y".repeat(1000)));
    }
    let request = format!("GET / HTTP/1.1\r\nhost: h\r\n{big}\r\n");
    assert_eq!(exchange(client.address, request.as_bytes(), "GET").status, 431);
    let many: String = (0..200).map(|n| format!("h{n}: v\r\n")).collect();
    let request = format!("GET / HTTP/1.1\r\n{many}\r\n");
    assert_eq!(exchange(client.address, request.as_bytes(), "GET").status, 431);
    let meta = client.request("PUT", "/vol/a").header("x-amz-meta-a", &"y".repeat(3000));
    client.send(meta).refused(400, "MetadataTooLarge");
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let (client, volume) = (client(), volume());
    client.put(&format!("/{volume}/a"), b"x").expect(200);
    let mut stream = connect(client.address);
    // A good request, and garbage behind it in the same segment.
    let mut bytes = client.sign(client.request("GET", &format!("/{volume}/a")));
    bytes.extend_from_slice(b"\x16\x03\x01\x02\x00\x01garbage\r\n\r\n");
    stream.write_all(&bytes).unwrap();
    assert_eq!(read_response(&mut stream, "GET").expect(200).body, b"x");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400"), "{rest:?}");
    client.get(&format!("/{volume}/a")).expect(200);
}

#[test]
fn two_pipelined_requests_get_two_answers() {
    let (client, volume) = (client(), volume());
    client.put(&format!("/{volume}/a"), b"first").expect(200);
    client.put(&format!("/{volume}/b"), b"second").expect(200);
    let requests = ["a", "b"].map(|key| client.sign(client.request("GET", &format!("/{volume}/{key}"))));
    let mut stream = connect(client.address);
    stream.write_all(&requests.concat()).unwrap();
    assert_eq!(read_response(&mut stream, "GET").expect(200).body, b"first");
    assert_eq!(read_response(&mut stream, "GET").expect(200).body, b"second");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever comes over the socket: an answer of HTTP, or a closed connection, and a gateway that goes on.
    #[test]
    fn random_requests_are_survived(method in "[A-Z]{1,7}", path in "[ -~]{0,40}", headers in "[ -~\r\n]{0,80}", body: Vec<u8>) {
        let client = client();
        let mut stream = connect(client.address);
        let _ = stream.write_all(format!("{method} /{path} HTTP/1.1\r\nhost: h\r\n{headers}\r\n\r\n").as_bytes());
        let _ = stream.write_all(&body);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        prop_assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "));
        client.get("/").expect(200);
    }
}
