//! PutObject in all its ways, and deletes.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::client::{Body, connect, exchange, read_response};
use crate::rig::{Rig, client, pattern, volume};
use stoker_gateway_s3::GatewayOptions;
use stoker_store::{Key, Store};

fn crc32(bytes: &[u8]) -> String {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32;
    STANDARD.encode(crc.to_be_bytes())
}

#[test]
fn every_kind_of_payload_arrives() {
    let (client, volume) = (client(), volume());
    let body = pattern(3, 300_000);
    let crc = crc32(&body);
    for (name, kind) in [
        ("sha256", Body::Sha256),
        ("unsigned-trailer", Body::UnsignedTrailer(65_536, vec![("x-amz-checksum-crc32", crc.clone())])),
        ("signed", Body::Signed(65_536)),
        ("signed-trailer", Body::SignedTrailer(8192, vec![("x-amz-checksum-crc32", crc.clone())])),
    ] {
        let path = format!("/{volume}/{name}");
        let put = client.send(client.request("PUT", &path).body(&body).kind(kind.clone())).expect(200);
        if matches!(kind, Body::UnsignedTrailer(..) | Body::SignedTrailer(..)) {
            assert_eq!(put.header("x-amz-checksum-crc32"), Some(crc.as_str()));
        }
        let get = client.get(&path).expect(200);
        assert!(get.body == body, "{name}");
        assert_eq!(get.header("content-encoding"), None);
    }
}

#[test]
fn a_wrong_payload_leaves_nothing() {
    let (client, volume) = (client(), volume());
    let body = pattern(3, 100_000);
    let wrong = crc32(b"something else");
    let path = format!("/{volume}/wrong");
    let put = |request: crate::client::Request| client.send(request.body(&body));
    put(client.request("PUT", &path).header("x-amz-checksum-crc32", &wrong)).refused(400, "BadDigest");
    put(client.request("PUT", &path).header("content-md5", "XrY7u+Ae7tCTyyK7j1rNww=="))
        .refused(400, "BadDigest");
    put(client.request("PUT", &path).header("content-md5", "x")).refused(400, "InvalidDigest");
    let trailer = vec![("x-amz-checksum-crc32", wrong)];
    put(client.request("PUT", &path).kind(Body::UnsignedTrailer(10_000, trailer))).refused(400, "BadDigest");
    let hash = Body::Text("44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
    put(client.request("PUT", &path).kind(hash)).refused(400, "XAmzContentSHA256Mismatch");
    put(client.request("PUT", &path).kind(Body::Text("nonsense"))).refused(400, "InvalidArgument");

    let mut bytes = client.sign(client.request("PUT", &path).body(&body).kind(Body::Signed(50_000)));
    let at = bytes.len() - 60_000;
    bytes[at] ^= 1;
    exchange(client.address, &bytes, "PUT").refused(403, "SignatureDoesNotMatch");
    client.get(&path).refused(404, "NoSuchKey");
}

#[test]
fn checksums_and_md5_are_kept() {
    let (client, volume) = (client(), volume());
    let (path, body) = (format!("/{volume}/sums"), b"hello world");
    let sha = STANDARD.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, body));
    let put = client.request("PUT", &path).body(body).header("x-amz-checksum-sha256", &sha);
    let put = client.send(put.header("content-md5", "XrY7u+Ae7tCTyyK7j1rNww==")).expect(200);
    assert_eq!(put.header("etag"), Some("\"5eb63bbbe01eeed093cb22bb8f5acdc3\""));
    let silent = client.get(&path).expect(200);
    assert_eq!(silent.header("x-amz-checksum-sha256"), None);
    let get = client.request("GET", &path).header("x-amz-checksum-mode", "ENABLED");
    let get = client.send(get).expect(200);
    assert_eq!(get.header("x-amz-checksum-sha256"), Some(sha.as_str()));
    assert_eq!(get.header("x-amz-checksum-type"), Some("FULL_OBJECT"));

    let put = client.put(&path, body).expect(200);
    assert_eq!(put.header("etag"), Some("\"5eb63bbbe01eeed093cb22bb8f5acdc3\""), "it is small");
    let (most, large) = (GatewayOptions::default().md5_up_to as usize, format!("/{volume}/large"));
    let etag = |len: usize| {
        client.put(&large, &pattern(4, len)).expect(200).header("etag").unwrap().trim_matches('"').to_owned()
    };
    assert_eq!(etag(most).len(), 32);
    assert!(etag(most + 1).ends_with("-1"));
    let get = client.send(client.request("GET", &path).header("x-amz-checksum-mode", "ENABLED")).expect(200);
    assert_eq!(get.header("x-amz-checksum-crc64nvme"), Some("jSnVw/bqjr4="));
    let part =
        client.request("GET", &path).header("x-amz-checksum-mode", "ENABLED").header("range", "bytes=0-1");
    assert_eq!(client.send(part).expect(206).header("x-amz-checksum-crc64nvme"), None);
}

#[test]
fn a_write_leaves_a_receipt_and_an_owner() {
    let (client, volume, rig) = (client(), volume(), Rig::get());
    let put = client.put(&format!("/{volume}/a"), b"x").expect(200);
    let receipt: serde_json::Value = serde_json::from_str(put.header("x-stoker-receipt").unwrap()).unwrap();
    assert_eq!(receipt["copies"], 1);
    assert_eq!(receipt["class"], "one");
    assert_eq!(receipt["drain"], "never", "the node of the tests has no lake");
    assert!(receipt["seq"].as_u64().unwrap() > 0);
    let key = Key::new("a").unwrap();
    let info = rig.runtime.block_on(rig.node.stat(&volume, &key)).unwrap();
    assert_eq!(info.attributes.owner, Some((1000, 100)));
    assert_eq!(receipt["version"], info.version.to_string());
}

#[test]
fn conditional_writes() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/once");
    let put =
        |name: &str, value: &str| client.send(client.request("PUT", &path).body(b"x").header(name, value));
    put("if-match", "\"abc\"").refused(404, "NoSuchKey");
    let etag = put("if-none-match", "*").expect(200).header("etag").unwrap().to_owned();
    put("if-none-match", "*").refused(412, "PreconditionFailed");
    put("if-match", "\"abc\"").refused(412, "PreconditionFailed");
    put("if-match", &etag).expect(200);
    put("if-none-match", &etag).refused(501, "NotImplemented");
}

#[test]
fn a_client_that_asks_first_is_refused_before_it_sends() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/expected");
    client.put(&path, b"x").expect(200);
    let body = pattern(1, 1 << 20);
    for (condition, status) in [("*", 412), ("", 200)] {
        let mut request = client.request("PUT", &path).body(&body).header("expect", "100-continue");
        if !condition.is_empty() {
            request = request.header("if-none-match", condition);
        }
        let bytes = client.sign(request);
        let head = bytes.len() - body.len();
        let mut stream = connect(client.address);
        stream.write_all(&bytes[..head]).unwrap();
        if status == 200 {
            // 100 Continue must come before anything is sent.
            let mut line = [0; 25];
            std::io::Read::read_exact(&mut stream, &mut line).unwrap();
            assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
            stream.write_all(&bytes[head..]).unwrap();
        }
        assert_eq!(read_response(&mut stream, "PUT").status, status);
    }
    assert!(client.get(&path).expect(200).body == body);
}

#[test]
fn a_refused_body_does_not_hide_the_answer() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/once");
    client.put(&path, b"x").expect(200);
    let request = client.request("PUT", &path).body(&pattern(1, 3 << 20)).header("if-none-match", "*");
    client.send(request).refused(412, "PreconditionFailed");
}

#[test]
fn a_connection_is_used_again() {
    let (client, volume) = (client(), volume());
    let mut stream = connect(client.address);
    for round in 0..5u8 {
        let path = format!("/{volume}/again");
        stream.write_all(&client.sign(client.request("PUT", &path).body(&[round; 100_000]))).unwrap();
        read_response(&mut stream, "PUT").expect(200);
        stream.write_all(&client.sign(client.request("GET", &path))).unwrap();
        assert_eq!(read_response(&mut stream, "GET").expect(200).body, [round; 100_000]);
        stream.write_all(&client.sign(client.request("GET", "/no-such-volume/a"))).unwrap();
        read_response(&mut stream, "GET").refused(404, "NoSuchBucket");
    }
}

#[test]
fn deletes_are_final_and_repeatable() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/gone");
    let etag = client.put(&path, b"x").expect(200).header("etag").unwrap().to_owned();
    client
        .send(client.request("DELETE", &path).header("if-match", "\"other\""))
        .refused(412, "PreconditionFailed");
    client.send(client.request("DELETE", &path).header("if-match", &etag)).expect(204);
    client.send(client.request("DELETE", &path)).expect(204);
    client.get(&path).refused(404, "NoSuchKey");
}

#[test]
fn many_are_deleted_at_once() {
    let (client, volume) = (client(), volume());
    for key in ["a", "b&c", "d"] {
        client.put(&format!("/{volume}/{}", crate::client::encode(key.as_bytes())), b"x").expect(200);
    }
    let delete = |document: &str| {
        let request = client.request("POST", &format!("/{volume}?delete")).body(document.as_bytes());
        client.send(request.kind(Body::Sha256))
    };
    let long = "k".repeat(1025);
    let document = format!(
        "<Delete><Object><Key>a</Key></Object><Object><Key>b&amp;c</Key></Object><Object><Key>none</Key></Object>\
         <Object><Key>{long}</Key></Object></Delete>"
    );
    let answer = delete(&document).expect(200);
    assert_eq!(answer.elements("Deleted").len(), 3);
    assert_eq!(answer.elements("Code"), ["KeyTooLongError"]);
    let quiet = delete("<Delete><Quiet>true</Quiet><Object><Key>d</Key></Object></Delete>").expect(200);
    assert!(quiet.elements("Deleted").is_empty());
    assert_eq!(
        client.get(&format!("/{volume}?list-type=2")).expect(200).element("KeyCount").as_deref(),
        Some("0")
    );

    delete("<Delete><Object>").refused(400, "MalformedXML");
    delete("nonsense").refused(400, "MalformedXML");
    let many: String = (0..1001).map(|n| format!("<Object><Key>{n}</Key></Object>")).collect();
    delete(&format!("<Delete>{many}</Delete>")).refused(400, "MalformedXML");
    let request = client.request("POST", &format!("/{volume}?delete")).body(b"<Delete/>");
    client.send(request.header("content-md5", "XrY7u+Ae7tCTyyK7j1rNww==")).refused(400, "BadDigest");
}

#[test]
fn presigned_requests_work_without_headers() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/presigned%20key");
    let put = client.presign("PUT", &path, 60, "");
    client.plain("PUT", &put, "", b"hello").expect(200);
    let get = client.presign("GET", &path, 60, "response-content-type=a%2Fb");
    let response = client.plain("GET", &get, "", b"").expect(200);
    assert_eq!((response.body.as_slice(), response.header("content-type")), (&b"hello"[..], Some("a/b")));
    client.plain("PUT", &get, "", b"").refused(403, "SignatureDoesNotMatch");
    let old = crate::client::Client { clock_ahead_s: -100, ..client.clone() };
    client.plain("GET", &old.presign("GET", &path, 60, ""), "", b"").refused(403, "AccessDenied");
    // Headers in the query count as headers.
    let tagged = client.presign(
        "PUT",
        &path,
        60,
        &format!("x-amz-checksum-crc32={}", crate::client::encode_all(&crc32(b"yes"))),
    );
    client.plain("PUT", &tagged, "", b"no").refused(400, "BadDigest");
    client.plain("PUT", &tagged, "", b"yes").expect(200);
}
