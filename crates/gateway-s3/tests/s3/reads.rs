//! GetObject and HeadObject.

use crate::client::{Response, encode};
use crate::rig::{client, pattern, volume};

#[test]
fn bytes_and_properties_come_back() {
    let (client, volume) = (client(), volume());
    for (name, len) in [
        ("empty", 0),
        ("one", 1),
        ("small", 65_535),
        ("piece", 524_288),
        ("chunk", 4 << 20),
        ("large", (9 << 20) + 17),
    ] {
        let (path, body) = (format!("/{volume}/{name}"), pattern(len as u64, len));
        let put = client.send(
            client
                .request("PUT", &path)
                .body(&body)
                .header("content-type", "text/x-test")
                .header("cache-control", "no-store")
                .header("x-amz-meta-color", "blue"),
        );
        let etag = put.expect(200).header("etag").unwrap().to_owned();
        assert!(etag.starts_with('"') && etag.ends_with('"'));
        let get = client.get(&path).expect(200);
        assert!(get.body == body, "{name}");
        let head = client.send(client.request("HEAD", &path)).expect(200);
        for response in [&get, &head] {
            for (header, value) in [
                ("etag", etag.as_str()),
                ("content-type", "text/x-test"),
                ("cache-control", "no-store"),
                ("x-amz-meta-color", "blue"),
                ("accept-ranges", "bytes"),
                ("content-length", &len.to_string()),
            ] {
                assert_eq!(response.header(header), Some(value), "{header} of {name}");
            }
            assert!(response.header("last-modified").is_some());
        }
    }
}

fn ranged(path: &str, range: &str) -> Response {
    let client = client();
    client.send(client.request("GET", path).header("range", range))
}

#[test]
fn ranges_cut_out_bytes() {
    let (client, volume) = (client(), volume());
    let body = pattern(7, (5 << 20) + 100);
    let path = format!("/{volume}/ranged");
    client.put(&path, &body).expect(200);
    let size = body.len();
    for (range, start, end) in [
        ("bytes=0-0".to_owned(), 0, 1),
        ("bytes=100-199".to_owned(), 100, 200),
        (format!("bytes={}-", (4 << 20) - 1), (4 << 20) - 1, size),
        ("bytes=-100".to_owned(), size - 100, size),
        ("bytes=1048000-3145000".to_owned(), 1_048_000, 3_145_001),
    ] {
        let part = ranged(&path, &range).expect(206);
        assert!(part.body == body[start..end], "{range}");
        let expected = format!("bytes {start}-{}/{size}", end - 1);
        assert_eq!(part.header("content-range"), Some(expected.as_str()));
    }
    assert_eq!(ranged(&path, "bytes=0-1,5-6").expect(200).body.len(), size);
    let beyond = ranged(&path, &format!("bytes={size}-")).refused(416, "InvalidRange");
    assert_eq!(beyond.element("ActualObjectSize"), Some(size.to_string()));
    let head = client.send(client.request("HEAD", &path).header("range", "bytes=0-9")).expect(206);
    assert_eq!(head.header("content-length"), Some("10"));
}

#[test]
fn conditions_are_kept() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/conditional");
    let etag = client.put(&path, b"x").expect(200).header("etag").unwrap().to_owned();
    let with = |name: &str, value: &str| client.send(client.request("GET", &path).header(name, value));
    with("if-match", &etag).expect(200);
    with("if-match", "\"other\"").refused(412, "PreconditionFailed");
    let same = with("if-none-match", &etag).expect(304);
    assert_eq!(same.header("etag"), Some(etag.as_str()));
    with("if-none-match", "\"other\"").expect(200);
    with("if-modified-since", "Fri, 24 May 2013 00:00:00 GMT").expect(200);
    with("if-unmodified-since", "Fri, 24 May 2013 00:00:00 GMT").refused(412, "PreconditionFailed");
    let request = client.request("GET", &path).header("range", "bytes=0-0").header("if-range", "\"other\"");
    client.send(request).expect(200);
}

#[test]
fn parameters_replace_headers() {
    let (client, volume) = (client(), volume());
    client.put(&format!("/{volume}/a"), b"x").expect(200);
    let path = format!(
        "/{volume}/a?response-content-disposition=attachment%3B%20filename%3Dx&response-content-type=a%2Fb"
    );
    let response = client.get(&path).expect(200);
    assert_eq!(response.header("content-disposition"), Some("attachment; filename=x"));
    assert_eq!(response.header("content-type"), Some("a/b"));
    client.get(&format!("/{volume}/a?response-content-type=a%0Ab")).refused(400, "InvalidArgument");
}

#[test]
fn what_is_not_there_is_said_to_be_so() {
    let (client, volume) = (client(), volume());
    client.get(&format!("/{volume}/nothing")).refused(404, "NoSuchKey");
    client.get("/no-such-volume/a").refused(404, "NoSuchBucket");
    let head = client.send(client.request("HEAD", &format!("/{volume}/nothing"))).expect(404);
    assert!(head.body.is_empty());
    client.put(&format!("/{volume}/a"), b"x").expect(200);
    client.get(&format!("/{volume}/a?versionId=null")).expect(200);
    client.get(&format!("/{volume}/a?versionId=3")).refused(404, "NoSuchVersion");
    client.get(&format!("/{volume}/a?partNumber=2")).refused(416, "InvalidPartNumber");
    client.get(&format!("/{volume}/a?torrent")).refused(501, "NotImplemented");
}

#[test]
fn a_condition_that_fails_is_named() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/a");
    let etag = client.put(&path, b"x").expect(200).header("etag").unwrap().to_owned();
    let old = "Fri, 24 May 2013 00:00:00 GMT";
    let with = |method: &'static str, headers: &[(&str, &str)]| {
        let path = if method == "POST" { format!("{path}?uploads") } else { path.clone() };
        let mut request = client.request(method, &path);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        client.send(request).refused(412, "PreconditionFailed").element("Condition")
    };
    let from = format!("{volume}/a");
    let copy = ("x-amz-copy-source", from.as_str());
    for (method, headers, condition) in [
        ("GET", &[("if-match", "\"x\"")][..], "If-Match"),
        ("GET", &[("if-unmodified-since", old)], "If-Unmodified-Since"),
        ("PUT", &[("if-match", "\"x\"")], "If-Match"),
        ("PUT", &[("if-none-match", "*")], "If-None-Match"),
        ("DELETE", &[("if-match", "\"x\"")], "If-Match"),
        ("PUT", &[copy, ("x-amz-copy-source-if-match", "\"x\"")], "x-amz-copy-source-If-Match"),
        ("PUT", &[copy, ("x-amz-copy-source-if-none-match", &etag)], "x-amz-copy-source-If-None-Match"),
        (
            "PUT",
            &[copy, ("x-amz-copy-source-if-unmodified-since", old)],
            "x-amz-copy-source-If-Unmodified-Since",
        ),
    ] {
        assert_eq!(with(method, headers).as_deref(), Some(condition), "{method} {headers:?}");
    }
    // Details of other refusals come through as well.
    let odd = client.get(&format!("/{volume}?list-type=2&max-keys=-1")).refused(400, "InvalidArgument");
    assert_eq!(odd.element("ArgumentName").as_deref(), Some("max-keys"));
}

#[test]
fn odd_keys_round_trip() {
    let (client, volume) = (client(), volume());
    let keys = [
        "..",
        "../../etc/passwd",
        "a//b",
        "/lead",
        "trail/",
        "a b+c%20d",
        "ä/ö",
        "\u{1}\r\n\u{7f}",
        "a\\b",
        "?&=#",
        "foo/bar",
        "foo/bar/xyzzy",
    ];
    for key in keys {
        let path = format!("/{volume}/{}", encode(key.as_bytes()));
        client.put(&path, key.as_bytes()).expect(200);
    }
    for key in keys {
        let path = format!("/{volume}/{}", encode(key.as_bytes()));
        assert_eq!(client.get(&path).expect(200).body, key.as_bytes(), "{key:?}");
    }
    let listed = client.get(&format!("/{volume}?list-type=2&encoding-type=url")).expect(200);
    let mut expected: Vec<String> = keys.iter().map(|key| encode(key.as_bytes())).collect();
    expected.sort_by_key(|key| {
        let at = keys.iter().position(|other| encode(other.as_bytes()) == *key).unwrap();
        keys[at].as_bytes().to_vec()
    });
    assert_eq!(listed.elements("Key"), expected);
    let plain = client.get(&format!("/{volume}?list-type=2")).expect(200);
    assert!(plain.elements("Key").contains(&"&#x1;&#xD;&#xA;\u{7f}".to_owned()), "{}", plain.text());
}

#[test]
fn a_host_below_the_domain_is_a_volume() {
    let (client, volume) = (client(), volume());
    let mut request = client.request("PUT", "/deep/key").body(b"virtual");
    request.host = Some(format!("{volume}.s3.test:9000"));
    client.send(request).expect(200);
    assert_eq!(client.get(&format!("/{volume}/deep/key")).expect(200).body, b"virtual");
    let mut request = client.request("GET", "/?list-type=2");
    request.host = Some(format!("{volume}.s3.test"));
    assert_eq!(client.send(request).expect(200).element("Key").as_deref(), Some("deep/key"));
}
