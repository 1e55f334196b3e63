//! Multipart uploads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::client::{Body, Client, Response};
use crate::rig::{client, pattern, volume};

const PART: usize = 5 << 20;

fn begin(client: &Client, path: &str, headers: &[(&str, &str)]) -> String {
    let mut request = client.request("POST", &format!("{path}?uploads"));
    for (name, value) in headers {
        request = request.header(name, value);
    }
    client.send(request).expect(200).element("UploadId").unwrap()
}

fn part(client: &Client, path: &str, upload: &str, number: u32, body: &[u8]) -> Response {
    client.put(&format!("{path}?partNumber={number}&uploadId={upload}"), body)
}

fn document(parts: &[(u32, String)]) -> String {
    let parts: String = parts
        .iter()
        .map(|(number, etag)| format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"))
        .collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

fn complete(client: &Client, path: &str, upload: &str, document: &str) -> Response {
    let request = client.request("POST", &format!("{path}?uploadId={upload}")).body(document.as_bytes());
    client.send(request.kind(Body::Sha256))
}

#[test]
fn parts_become_one_file() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/dir/large");
    let headers = [("content-type", "text/x-parts"), ("x-amz-meta-a", "b"), ("x-amz-tagging", "k=v")];
    let upload = begin(&client, &path, &headers);
    let bodies = [pattern(1, PART), pattern(2, PART + 1), pattern(3, 10)];
    let mut parts = Vec::new();
    for (number, body) in [3u32, 1, 2].into_iter().zip([&bodies[2], &bodies[0], &bodies[1]]) {
        let etag = part(&client, &path, &upload, number, body).expect(200).header("etag").unwrap().to_owned();
        parts.push((number, etag));
    }
    parts.sort();
    client.get(&path).refused(404, "NoSuchKey");

    let listed = client.get(&format!("{path}?max-parts=2&uploadId={upload}")).expect(200);
    assert_eq!(listed.elements("PartNumber"), ["1", "2"]);
    assert_eq!(listed.element("NextPartNumberMarker").as_deref(), Some("2"));
    let rest = client.get(&format!("{path}?part-number-marker=2&uploadId={upload}")).expect(200);
    assert_eq!(
        (rest.elements("PartNumber"), rest.elements("Size")),
        (vec!["3".to_owned()], vec!["10".to_owned()])
    );

    let done = complete(&client, &path, &upload, &document(&parts)).expect(200);
    assert!(done.header("x-stoker-receipt").unwrap().contains("\"copies\":1"));
    let etag = done.element("ETag").unwrap().replace("&quot;", "\"");
    assert!(etag.ends_with("-3\""), "{etag}");
    let get = client.get(&path).expect(200);
    assert!(get.body == bodies.concat());
    assert_eq!(get.header("etag"), Some(etag.as_str()));
    assert_eq!(get.header("content-type"), Some("text/x-parts"));
    assert_eq!(get.header("x-amz-meta-a"), Some("b"));
    assert_eq!(get.header("x-amz-tagging-count"), Some("1"));

    let second = client.get(&format!("{path}?partNumber=2")).expect(206);
    assert!(second.body == bodies[1]);
    assert_eq!(second.header("x-amz-mp-parts-count"), Some("3"));
    let request = client.request("GET", &format!("{path}?attributes"));
    let attributes =
        client.send(request.header("x-amz-object-attributes", "ObjectParts,ObjectSize")).expect(200);
    assert_eq!(attributes.elements("PartNumber"), ["1", "2", "3"]);
    assert_eq!(attributes.element("ObjectSize"), Some((PART * 2 + 11).to_string()));
}

#[test]
fn a_completion_whose_answer_was_lost_is_answered_again() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/again");
    let upload = begin(&client, &path, &[]);
    let bodies = [pattern(1, PART), pattern(2, 10)];
    let parts: Vec<(u32, String)> = (1..)
        .zip(&bodies)
        .map(|(number, body)| {
            let put = part(&client, &path, &upload, number, body).expect(200);
            (number, put.header("etag").unwrap().to_owned())
        })
        .collect();
    let etag = complete(&client, &path, &upload, &document(&parts)).expect(200).element("ETag").unwrap();
    let again = || complete(&client, &path, &upload, &document(&parts)).expect(200).element("ETag").unwrap();
    assert_eq!(again(), etag);
    // A client that wants to be the first was.
    let first = client.request("POST", &format!("{path}?uploadId={upload}")).header("if-none-match", "*");
    let first = client.send(first.body(document(&parts).as_bytes())).expect(200);
    assert_eq!(first.element("ETag").as_deref(), Some(etag.as_str()));
    // What became of the file since is another matter.
    client.put(&path, b"newer").expect(200);
    assert_eq!(again(), etag);
    assert_eq!(client.get(&path).expect(200).body, b"newer");
    client.send(client.request("DELETE", &path)).expect(204);
    assert_eq!(again(), etag);
    client.get(&path).refused(404, "NoSuchKey");
    // Under another name there was no such upload.
    complete(&client, &format!("/{volume}/other"), &upload, &document(&parts)).refused(404, "NoSuchUpload");
    part(&client, &path, &upload, 1, &bodies[0]).refused(404, "NoSuchUpload");
}

#[test]
fn a_part_that_is_sent_twice_is_the_same_part() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/twice");
    let md5 = |body: &[u8]| {
        use md5::Digest as _;
        STANDARD.encode(md5::Md5::digest(body))
    };
    let body = pattern(1, 100_000);
    let plain = |upload: &str, body: &[u8]| {
        part(&client, &path, upload, 1, body).expect(200).header("etag").unwrap().to_owned()
    };
    let summed = |upload: &str, body: &[u8]| {
        let request = client.request("PUT", &format!("{path}?partNumber=1&uploadId={upload}")).body(body);
        let put = client.send(request.header("content-md5", &md5(body))).expect(200);
        put.header("etag").unwrap().to_owned()
    };
    let upload = begin(&client, &path, &[]);
    let first = plain(&upload, &body);
    assert_eq!(plain(&upload, &body), first);
    assert!(first.ends_with("-1\""), "no MD5, and none that looks like one: {first}");
    // The client knows one ETag, the other came late, or the other way round.
    let with_md5 = summed(&upload, &body);
    assert_ne!(with_md5, first);
    assert_eq!(plain(&upload, &body), with_md5);
    complete(&client, &path, &upload, &document(&[(1, first)])).expect(200);
    assert!(client.get(&path).expect(200).body == body);

    let upload = begin(&client, &path, &[]);
    let first = summed(&upload, &body);
    plain(&upload, &body);
    complete(&client, &path, &upload, &document(&[(1, first)])).expect(200);

    // Other bytes are another part.
    let upload = begin(&client, &path, &[]);
    let first = plain(&upload, &body);
    let other = plain(&upload, &body[1..]);
    assert_ne!(other, first);
    complete(&client, &path, &upload, &document(&[(1, first)])).refused(400, "InvalidPart");

    // A part that is copied, in whichever way its bytes come.
    client.put(&format!("/{volume}/source"), &pattern(3, 12 << 20)).expect(200);
    for range in ["bytes=0-12582911", "bytes=5-9999999", "bytes=7-20"] {
        let copied = || {
            let request = client.request("PUT", &format!("{path}?partNumber=2&uploadId={upload}"));
            let request = request.header("x-amz-copy-source", &format!("{volume}/source"));
            client.send(request.header("x-amz-copy-source-range", range)).expect(200).element("ETag").unwrap()
        };
        assert_eq!(copied(), copied(), "{range}");
    }
}

#[test]
fn checksums_of_parts_are_composed() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/sums");
    let crc =
        |bytes: &[u8]| (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32).to_be_bytes();
    let bodies = [pattern(1, PART), pattern(2, 100)];
    for (kind, expected) in [
        (None, format!("{}-2", STANDARD.encode(crc(&[crc(&bodies[0]), crc(&bodies[1])].concat())))),
        (Some("FULL_OBJECT"), STANDARD.encode(crc(&bodies.concat()))),
    ] {
        let mut headers = vec![("x-amz-checksum-algorithm", "CRC32")];
        headers.extend(kind.map(|kind| ("x-amz-checksum-type", kind)));
        let upload = begin(&client, &path, &headers);
        let mut parts = String::new();
        for (number, body) in (1..).zip(&bodies) {
            let sum = STANDARD.encode(crc(body));
            let request = client.request("PUT", &format!("{path}?partNumber={number}&uploadId={upload}"));
            let put = client.send(request.body(body).header("x-amz-checksum-crc32", &sum)).expect(200);
            assert_eq!(put.header("x-amz-checksum-crc32"), Some(sum.as_str()));
            parts.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag><ChecksumCRC32>{sum}</ChecksumCRC32></Part>",
                put.header("etag").unwrap()
            ));
        }
        let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let finish = |sum: &str| {
            let mut request = client.request("POST", &format!("{path}?uploadId={upload}"));
            request = request.body(document.as_bytes()).header("x-amz-checksum-crc32", sum);
            if let Some(kind) = kind {
                request = request.header("x-amz-checksum-type", kind);
            }
            client.send(request)
        };
        finish(&expected.replace(&expected[..1], if expected.starts_with('A') { "B" } else { "A" }))
            .refused(400, "BadDigest");
        let done = finish(&expected).expect(200);
        assert_eq!(done.element("ChecksumCRC32"), Some(expected.clone()));
        let get =
            client.send(client.request("HEAD", &path).header("x-amz-checksum-mode", "ENABLED")).expect(200);
        assert_eq!(get.header("x-amz-checksum-crc32"), Some(expected.as_str()));
        assert_eq!(get.header("x-amz-checksum-type"), Some(kind.unwrap_or("COMPOSITE")));
    }
}

fn crc32(bytes: &[u8]) -> [u8; 4] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32).to_be_bytes()
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref().to_vec()
}

/// Parts without any checksum of the client; gives the document that completes them.
fn plain_parts(client: &Client, path: &str, upload: &str, bodies: &[Vec<u8>]) -> String {
    let parts: Vec<(u32, String)> = (1..)
        .zip(bodies)
        .map(|(number, body)| {
            let put = part(client, path, upload, number, body).expect(200);
            (number, put.header("etag").unwrap().to_owned())
        })
        .collect();
    document(&parts)
}

#[test]
fn a_checksum_that_the_parts_do_not_have_is_checked_against_the_bytes() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/read-again");
    let bodies = [pattern(1, PART), pattern(2, 100_000)];
    let all = bodies.concat();
    let composed = |sums: [&[u8]; 2]| sums.concat();
    let (one, two) = (crc32(&bodies[0]), crc32(&bodies[1]));
    let (first, second) = (sha256(&bodies[0]), sha256(&bodies[1]));
    for (header, good) in [
        ("x-amz-checksum-crc32", STANDARD.encode(crc32(&all))),
        ("x-amz-checksum-sha256", STANDARD.encode(sha256(&all))),
        ("x-amz-checksum-crc32", format!("{}-2", STANDARD.encode(crc32(&composed([&one, &two]))))),
        ("x-amz-checksum-sha256", format!("{}-2", STANDARD.encode(sha256(&composed([&first, &second]))))),
    ] {
        let upload = begin(&client, &path, &[]);
        let document = plain_parts(&client, &path, &upload, &bodies);
        let finish = |sum: &str| {
            let request = client.request("POST", &format!("{path}?uploadId={upload}"));
            client.send(request.body(document.as_bytes()).header(header, sum))
        };
        let wrong = good.replacen(&good[..1], if good.starts_with('A') { "B" } else { "A" }, 1);
        finish(&wrong).refused(400, "BadDigest");
        client.get(&path).refused(404, "NoSuchKey");
        finish(&good).expect(200);
        let get =
            client.send(client.request("GET", &path).header("x-amz-checksum-mode", "ENABLED")).expect(200);
        assert_eq!(get.header(header), Some(good.as_str()));
        let form = if good.ends_with("-2") { "COMPOSITE" } else { "FULL_OBJECT" };
        assert_eq!(get.header("x-amz-checksum-type"), Some(form));
        client.send(client.request("DELETE", &path)).expect(204);
    }
}

#[test]
fn what_an_upload_announces_is_remembered_to_its_end_and_after() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/announced");
    let bodies = [pattern(1, PART), pattern(2, 100)];
    let sums: Vec<String> = bodies.iter().map(|body| STANDARD.encode(crc32(body))).collect();
    for (form, whole) in [
        ("FULL_OBJECT", STANDARD.encode(crc32(&bodies.concat()))),
        (
            "COMPOSITE",
            format!("{}-2", STANDARD.encode(crc32(&[crc32(&bodies[0]), crc32(&bodies[1])].concat()))),
        ),
    ] {
        let headers = [("x-amz-checksum-algorithm", "CRC32"), ("x-amz-checksum-type", form)];
        let upload = begin(&client, &path, &headers);
        let document = plain_parts(&client, &path, &upload, &bodies);
        let listed = client.get(&format!("{path}?uploadId={upload}")).expect(200);
        assert_eq!(listed.elements("ChecksumType"), [form]);
        assert_eq!(listed.elements("ChecksumAlgorithm"), ["CRC32"]);
        assert_eq!(listed.elements("ChecksumCRC32"), sums);
        assert!(listed.text().contains("<Initiator>"));
        let uploads = client.get(&format!("/{volume}?uploads")).expect(200);
        assert_eq!(uploads.elements("ChecksumType"), [form]);
        assert!(uploads.text().contains("<Initiator>"));

        let finish = |name: &str, value: &str| {
            let request = client.request("POST", &format!("{path}?uploadId={upload}"));
            client.send(request.body(document.as_bytes()).header(name, value))
        };
        let other = if form == "COMPOSITE" { "FULL_OBJECT" } else { "COMPOSITE" };
        finish("x-amz-checksum-type", other).refused(400, "InvalidRequest");
        finish("x-amz-checksum-sha1", &STANDARD.encode([0; 20])).refused(400, "InvalidRequest");
        finish("x-amz-checksum-sha512", &STANDARD.encode([0; 64])).refused(400, "InvalidRequest");
        // It is not said again, and holds.
        let done = complete(&client, &path, &upload, &document).expect(200);
        assert_eq!(done.element("ChecksumCRC32").as_ref(), Some(&whole));
        assert_eq!(done.element("ChecksumType").as_deref(), Some(form));
        let mode = |path: &str| client.request("HEAD", path).header("x-amz-checksum-mode", "ENABLED");
        let head = client.send(mode(&path)).expect(200);
        assert_eq!(head.header("x-amz-checksum-crc32"), Some(whole.as_str()));
        assert_eq!(head.header("x-amz-checksum-type"), Some(form));
        for (number, sum) in (1..).zip(&sums) {
            let part = client.send(mode(&format!("{path}?partNumber={number}"))).expect(206);
            assert_eq!(part.header("x-amz-checksum-crc32"), Some(sum.as_str()));
        }
        let request = client.request("GET", &format!("{path}?attributes"));
        let attributes =
            client.send(request.header("x-amz-object-attributes", "ETag,Checksum,ObjectParts")).expect(200);
        assert_eq!(attributes.elements("ChecksumCRC32"), [vec![whole.clone()], sums.clone()].concat());
        assert_eq!(attributes.element("ChecksumType").as_deref(), Some(form));
        // Without quotes, unlike everywhere else.
        let etag = head.header("etag").unwrap().trim_matches('"').to_owned();
        assert_eq!(attributes.element("ETag"), Some(etag));
        client.send(client.request("DELETE", &path)).expect(204);
    }
}

#[test]
fn bad_completions_get_their_codes() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/bad");
    let upload = begin(&client, &path, &[]);
    let small = part(&client, &path, &upload, 1, b"small").expect(200).header("etag").unwrap().to_owned();
    let last = part(&client, &path, &upload, 2, b"last").expect(200).header("etag").unwrap().to_owned();
    let with = |document: &str| complete(&client, &path, &upload, document);
    with(&document(&[(1, small.clone()), (2, last.clone())])).refused(400, "EntityTooSmall");
    with(&document(&[(2, last.clone()), (1, small.clone())])).refused(400, "InvalidPartOrder");
    with(&document(&[(1, "\"other\"".to_owned())])).refused(400, "InvalidPart");
    with(&document(&[(7, small.clone())])).refused(400, "InvalidPart");
    with("").refused(400, "MalformedXML");
    with("<CompleteMultipartUpload></CompleteMultipartUpload>").refused(400, "MalformedXML");
    with("<CompleteMultipartUpload><Part><PartNumber>x</PartNumber>").refused(400, "MalformedXML");
    complete(&client, &path, "no-such-upload", &document(&[(1, small.clone())])).refused(404, "NoSuchUpload");
    part(&client, &path, "no-such-upload", 1, b"x").refused(404, "NoSuchUpload");
    part(&client, &path, &upload, 0, b"x").refused(400, "InvalidArgument");
    part(&client, &path, &upload, 10_001, b"x").refused(400, "InvalidArgument");
    let size =
        client.request("POST", &format!("{path}?uploadId={upload}")).header("x-amz-mp-object-size", "99");
    client.send(size.body(document(&[(1, small.clone())]).as_bytes())).refused(400, "InvalidRequest");
    with(&document(&[(1, small)])).expect(200);
    assert_eq!(client.get(&path).expect(200).body, b"small");
}

#[test]
fn conditions_hold_for_completions() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/conditional");
    let upload = begin(&client, &path, &[]);
    let etag = part(&client, &path, &upload, 1, b"new").expect(200).header("etag").unwrap().to_owned();
    client.put(&path, b"old").expect(200);
    let body = document(&[(1, etag)]);
    let finish = |name: &str, value: &str| {
        let request = client.request("POST", &format!("{path}?uploadId={upload}")).header(name, value);
        client.send(request.body(body.as_bytes()))
    };
    finish("if-none-match", "*").refused(412, "PreconditionFailed");
    finish("if-match", "\"other\"").refused(412, "PreconditionFailed");
    assert_eq!(client.get(&path).expect(200).body, b"old");
    let present = client.get(&path).expect(200).header("etag").unwrap().to_owned();
    finish("if-match", &present).expect(200);
    assert_eq!(client.get(&path).expect(200).body, b"new");
}

#[test]
fn an_aborted_upload_is_gone() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/aborted");
    let upload = begin(&client, &path, &[]);
    let etag = part(&client, &path, &upload, 1, b"x").expect(200).header("etag").unwrap().to_owned();
    client.send(client.request("DELETE", &format!("{path}?uploadId={upload}"))).expect(204);
    complete(&client, &path, &upload, &document(&[(1, etag)])).refused(404, "NoSuchUpload");
    client.get(&format!("{path}?uploadId={upload}")).refused(404, "NoSuchUpload");
    client.get(&path).refused(404, "NoSuchKey");
}
