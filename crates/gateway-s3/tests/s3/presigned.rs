//! Requests that somebody else signed: as SDKs of today make them, and as boto3 does for us-east-1.

use aws_lc_rs::hmac::{HMAC_SHA1_FOR_LEGACY_USE_ONLY, Key, sign};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use stoker_gateway_s3::GatewayOptions;

use crate::client::{Client, encode_all, now_s};
use crate::rig::{Rig, SECRET_KEY, client, volume};

/// A path presigned by Signature Version 2. `resource` is what is signed of the query, `lines` the headers in front of it.
fn presign_v2(client: &Client, method: &str, path: &str, query: &str, lines: &str, ends_s: i64) -> String {
    let resource = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    let text = format!("{method}\n\n\n{ends_s}\n{lines}{resource}");
    let key = Key::new(HMAC_SHA1_FOR_LEGACY_USE_ONLY, client.secret_key.as_bytes());
    let signature = encode_all(&STANDARD.encode(sign(&key, text.as_bytes()).as_ref()));
    let query = if query.is_empty() { String::new() } else { format!("{query}&") };
    format!(
        "{path}?{query}AWSAccessKeyId={}&Signature={signature}&Expires={ends_s}",
        encode_all(&client.access_key)
    )
}

#[test]
fn signature_version_2_is_taken_in_queries_where_it_may_be() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/a%20b");
    let url = |method: &str, query: &str, lines: &str| {
        presign_v2(&client, method, &path, query, lines, now_s() + 60)
    };
    let send =
        |method: &str, path: &str, headers: &str, body: &[u8]| client.plain(method, path, headers, body);
    send("PUT", &url("PUT", "", "x-amz-meta-a:b\n"), "x-amz-meta-a: b\r\n", b"x").expect(200);
    let got = send("GET", &url("GET", "", ""), "", b"").expect(200);
    assert_eq!((got.body.as_slice(), got.header("x-amz-meta-a")), (&b"x"[..], Some("b")));
    send("HEAD", &url("HEAD", "", ""), "", b"").expect(200);
    let begun = send("POST", &url("POST", "uploads", ""), "", b"").expect(200).element("UploadId").unwrap();
    send("PUT", &url("PUT", &format!("partNumber=1&uploadId={begun}"), ""), "", b"part").expect(200);
    send("DELETE", &url("DELETE", &format!("uploadId={begun}"), ""), "", b"").expect(204);
    let bucket = presign_v2(&client, "GET", &format!("/{volume}"), "", "", now_s() + 60);
    assert_eq!(send("GET", &format!("{bucket}&list-type=2"), "", b"").expect(200).elements("Key"), ["a b"]);

    let over = presign_v2(&client, "GET", &path, "", "", now_s() - 1);
    send("GET", &over, "", b"").refused(403, "AccessDenied");
    let good = url("GET", "", "");
    send("PUT", &good, "", b"y").refused(403, "SignatureDoesNotMatch");
    send("GET", &good, "x-amz-meta-b: c\r\n", b"").refused(403, "SignatureDoesNotMatch");
    send("GET", &format!("{good}&tagging"), "", b"").refused(403, "SignatureDoesNotMatch");
    send("GET", &good.replace("a%20b", "a"), "", b"").refused(403, "SignatureDoesNotMatch");
    let liar = Client { secret_key: format!("{SECRET_KEY}x"), ..client.clone() };
    let lie = presign_v2(&liar, "GET", &path, "", "", now_s() + 60);
    send("GET", &lie, "", b"").refused(403, "SignatureDoesNotMatch");
    let stranger = Client { access_key: "nobody".to_owned(), ..client.clone() };
    let strange = presign_v2(&stranger, "GET", &path, "", "", now_s() + 60);
    send("GET", &strange, "", b"").refused(403, "InvalidAccessKeyId");

    let options = GatewayOptions { signature_v2: false, ..GatewayOptions::default() };
    let gateway = Rig::get().other_gateway(options);
    let strict = Client { address: gateway.addresses()[0], ..client.clone() };
    strict.plain("GET", &good, "", b"").refused(400, "InvalidRequest");
}

/// boto3's `generate_presigned_post` for us-east-1.
#[test]
fn forms_of_signature_version_2_are_taken() {
    let (client, volume) = (client(), volume());
    let policy = STANDARD.encode(format!(
        r#"{{"expiration":"2099-01-01T00:00:00Z","conditions":[{{"bucket":"{volume}"}},["starts-with","$key","up/"]]}}"#
    ));
    let key = Key::new(HMAC_SHA1_FOR_LEGACY_USE_ONLY, client.secret_key.as_bytes());
    let signature = STANDARD.encode(sign(&key, policy.as_bytes()).as_ref());
    let post = |client: &Client, key: &str, signature: &str| {
        let fields = [
            ("key", key),
            ("AWSAccessKeyId", &client.access_key),
            ("policy", &policy),
            ("signature", signature),
        ];
        let mut form = String::new();
        for (name, value) in fields {
            form.push_str(&format!(
                "--XyZ\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
            ));
        }
        form.push_str("--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"C:\\dir\\f.txt\"\r\n\r\nx\r\n--XyZ--\r\n");
        let kind = "content-type: multipart/form-data; boundary=XyZ\r\n";
        client.plain("POST", &format!("/{volume}"), kind, form.as_bytes())
    };
    post(&client, "up/${filename}", &signature).expect(204);
    assert_eq!(client.get(&format!("/{volume}/up/f.txt")).expect(200).body, b"x");
    post(&client, "down/a", &signature).refused(403, "AccessDenied");
    post(&client, "up/a", &signature.replace(&signature[..4], "AAAA")).refused(403, "SignatureDoesNotMatch");
    post(&client, "up/a", "none").refused(403, "SignatureDoesNotMatch");
    let options = GatewayOptions { signature_v2: false, ..GatewayOptions::default() };
    let gateway = Rig::get().other_gateway(options);
    let strict = Client { address: gateway.addresses()[0], ..client.clone() };
    post(&strict, "up/a", &signature).refused(400, "InvalidArgument");
    client.get(&format!("/{volume}/up/a")).refused(404, "NoSuchKey");
}

/// JavaScript SDKs since 3.729 sign the checksum of the body that they do not have yet.
#[test]
fn the_checksum_of_a_body_that_was_not_known_does_not_count() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/upload");
    let nothing = "x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32&x-id=PutObject";
    client.plain("PUT", &client.presign("PUT", &path, 60, nothing), "", b"hello world").expect(200);
    assert_eq!(client.get(&path).expect(200).body, b"hello world");
    // One that was known does.
    let known = |sum: &str| format!("x-amz-checksum-crc32={}", encode_all(sum));
    let put =
        |sum: &str| client.plain("PUT", &client.presign("PUT", &path, 60, &known(sum)), "", b"hello world");
    put("DUoRhQ==").expect(200);
    put("DUoRhA==").refused(400, "BadDigest");
    // A header is not a guess.
    let signed = client.request("PUT", &path).header("x-amz-checksum-crc32", "AAAAAA==");
    client.send(signed.body(b"hello world")).refused(400, "BadDigest");
}

#[test]
fn a_life_of_no_seconds_is_over() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/a");
    client.put(&path, b"x").expect(200);
    client.plain("GET", &client.presign("GET", &path, 0, ""), "", b"").refused(403, "AccessDenied");
    client.plain("GET", &client.presign("GET", &path, 60, ""), "", b"").expect(200);
}

#[test]
fn a_bucket_is_made_where_its_client_believes_to_be() {
    let client = Client { region: "eu-central-1".to_owned(), ..client() };
    let create = |name: &str, region: &str| {
        let body = format!(
            "<CreateBucketConfiguration><LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
        );
        client.send(client.request("PUT", &format!("/{name}")).body(body.as_bytes()))
    };
    create("bucket-in-europe", "eu-central-1").expect(200);
    create("bucket-at-home", "stoker").expect(200);
    create("bucket-elsewhere-too", "eu-west-1").refused(400, "IllegalLocationConstraintException");
    client.send(client.request("HEAD", "/bucket-in-europe")).expect(200);
}
