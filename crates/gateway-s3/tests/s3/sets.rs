//! Checkpoint sets with plain S3 requests.

use serde_json::Value;
use stoker_store::Access;

use crate::client::{Body, Client, Response};
use crate::rig::{Rig, client, pattern, volume};

fn act(client: &Client, dir: &str, document: &str) -> Response {
    client.put(&format!("{dir}.stoker-set"), document.as_bytes())
}

fn abort(client: &Client, dir: &str) -> Response {
    client.send(client.request("DELETE", &format!("{dir}.stoker-set")))
}

fn status(client: &Client, dir: &str) -> Value {
    let answer = client.get(&format!("{dir}.stoker-set")).expect(200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    serde_json::from_slice(&answer.body).unwrap()
}

fn shard(client: &Client, path: &str, set: &str, number: &str, body: &[u8]) -> Response {
    let request = client.request("PUT", path).body(body);
    client.send(request.header("x-amz-meta-stoker-set", set).header("x-amz-meta-stoker-shard", number))
}

#[test]
fn shards_are_put_and_published() {
    let (client, volume) = (client(), volume());
    let dir = format!("/{volume}/run/step-1/");
    client.get(&format!("{dir}.stoker-set")).refused(404, "NoSuchKey");
    let begun =
        act(&client, &dir, r#"{"action":"begin","shards":3,"deadline_s":600,"owner":"job"}"#).expect(200);
    let id = begun.header("x-stoker-set").unwrap().to_owned();
    assert_eq!(begun.header("etag").unwrap(), format!("\"{id}-open\""));
    let again = act(&client, &dir, r#"{"action":"begin","shards":3,"owner":"job"}"#).expect(200);
    assert_eq!(again.header("x-stoker-set").unwrap(), id);
    act(&client, &dir, r#"{"action":"begin","shards":3,"owner":"other"}"#).refused(409, "OperationAborted");

    // Named by its id, or by its directory.
    let bytes = pattern(1, 700_000);
    let put = shard(&client, &format!("{dir}a"), &id, "0", &bytes).expect(200);
    assert!(put.header("x-stoker-receipt").unwrap().contains("\"copies\":1"));
    shard(&client, &format!("{dir}b"), "run/step-1/", "2", b"b").expect(200);
    client.get(&format!("{dir}a")).refused(404, "NoSuchKey");
    let listed = client.get(&format!("/{volume}?list-type=2")).expect(200);
    assert!(listed.elements("Key").is_empty());
    let told = act(&client, &dir, r#"{"action":"publish"}"#).refused(409, "OperationAborted");
    assert!(told.element("Message").unwrap().contains("1 of 3 shards are missing: 1;"));
    let seen = status(&client, &dir);
    assert_eq!(
        (&seen["state"], &seen["present"], &seen["missing"]),
        (&"open".into(), &2.into(), &vec![1].into())
    );
    client.get(&format!("/{volume}/run/.stoker-latest")).refused(404, "NoSuchKey");

    shard(&client, &format!("{dir}deep/c"), &id, "1", b"c").expect(200);
    act(&client, &dir, r#"{"action":"publish","set":1}"#).refused(404, "NoSuchKey");
    act(&client, &dir, &format!(r#"{{"action":"publish","set":{id}}}"#)).expect(200);
    act(&client, &dir, r#"{"action":"publish"}"#).expect(200);
    let listed = client.get(&format!("/{volume}?list-type=2")).expect(200);
    assert_eq!(listed.elements("Key"), ["run/step-1/a", "run/step-1/b", "run/step-1/deep/c"]);
    let got = client.get(&format!("{dir}a")).expect(200);
    assert!(got.body == bytes);
    assert_eq!(got.header("x-amz-meta-stoker-set"), None);
    shard(&client, &format!("{dir}a"), &id, "0", b"late").refused(409, "OperationAborted");
    abort(&client, &dir).refused(409, "OperationAborted");
    let latest = client.get(&format!("/{volume}/run/.stoker-latest")).expect(200);
    let latest: Value = serde_json::from_slice(&latest.body).unwrap();
    assert_eq!((&latest["path"], &latest["state"]), (&"run/step-1/".into(), &"published".into()));
    client.get(&format!("/{volume}/.stoker-latest")).expect(200);
    let head = client.send(client.request("HEAD", &format!("{dir}.stoker-set"))).expect(200);
    assert_eq!(head.header("x-stoker-set").unwrap(), id);
}

#[test]
fn a_shard_in_parts() {
    let (client, volume) = (client(), volume());
    let dir = format!("/{volume}/s/");
    let path = format!("{dir}big");
    let begin = |set: &str| {
        let request = client.request("POST", &format!("{path}?uploads"));
        let request = request.header("x-amz-meta-stoker-set", set).header("x-amz-meta-stoker-shard", "0");
        client.send(request.header("x-amz-meta-kept", "yes"))
    };
    begin("s/").refused(404, "NoSuchKey");
    act(&client, &dir, r#"{"action":"begin","shards":1}"#).expect(200);
    let upload = begin("s/").expect(200).element("UploadId").unwrap();
    let bodies = [pattern(4, 5 << 20), pattern(5, 100)];
    let mut document = String::new();
    for (number, body) in [1, 2].into_iter().zip(&bodies) {
        let part = client.put(&format!("{path}?partNumber={number}&uploadId={upload}"), body).expect(200);
        let etag = part.header("etag").unwrap();
        document.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"));
    }
    let document = format!("<CompleteMultipartUpload>{document}</CompleteMultipartUpload>");
    let complete = || {
        let request = client.request("POST", &format!("{path}?uploadId={upload}")).body(document.as_bytes());
        client.send(request.kind(Body::Sha256)).expect(200).element("ETag")
    };
    let etag = complete();
    assert!(etag.is_some() && complete() == etag, "the answer to the first one was lost");
    client.get(&path).refused(404, "NoSuchKey");
    assert_eq!(status(&client, &dir)["present"], 1);
    act(&client, &dir, r#"{"action":"publish"}"#).expect(200);
    let got = client.get(&path).expect(200);
    assert!(got.body == bodies.concat());
    assert_eq!((got.header("x-amz-meta-kept"), got.header("x-amz-meta-stoker-shard")), (Some("yes"), None));
    begin("s/").refused(409, "OperationAborted");
}

#[test]
fn a_set_is_aborted_by_a_delete() {
    let (client, volume) = (client(), volume());
    let dir = format!("/{volume}/s/");
    abort(&client, &dir).expect(204);
    let id = act(&client, &dir, r#"{"action":"begin","shards":2}"#).expect(200);
    let id = id.header("x-stoker-set").unwrap().to_owned();
    shard(&client, &format!("{dir}a"), &id, "0", b"1").expect(200);
    abort(&client, &dir).expect(204);
    shard(&client, &format!("{dir}b"), &id, "1", b"1").refused(409, "OperationAborted");
    client.get(&format!("{dir}.stoker-set")).refused(404, "NoSuchKey");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (client, volume) = (client(), volume());
    let dir = format!("/{volume}/s/");
    for document in ["", "x", "[]", r#"{"action":"begin"}"#, r#"{"action":"begin","shards":1,"x":1}"#] {
        act(&client, &dir, document).refused(400, "InvalidRequest");
    }
    act(&client, &dir, r#"{"action":"begin","shards":0}"#).refused(400, "InvalidArgument");
    act(&client, &dir, &" ".repeat(100_000)).refused(400, "EntityTooLarge");
    act(&client, &dir, r#"{"action":"publish"}"#).refused(404, "NoSuchKey");
    let id = act(&client, &dir, r#"{"action":"begin","shards":1}"#).expect(200);
    let id = id.header("x-stoker-set").unwrap().to_owned();
    let path = format!("{dir}a");
    shard(&client, &path, "x", "0", b"1").refused(400, "InvalidArgument");
    shard(&client, &path, &id, "-1", b"1").refused(400, "InvalidArgument");
    shard(&client, &path, &id, "1", b"1").refused(400, "InvalidArgument");
    shard(&client, &format!("/{volume}/elsewhere"), &id, "0", b"1").refused(400, "InvalidArgument");
    shard(&client, &format!("{dir}_STOKER_SET.json"), &id, "0", b"1").refused(400, "InvalidArgument");
    let half = client.request("PUT", &path).body(b"1").header("x-amz-meta-stoker-set", &id);
    client.send(half).refused(400, "InvalidArgument");
    // Only what works on a set works on its key.
    client.send(client.request("POST", &format!("{dir}.stoker-set?uploads"))).refused(400, "InvalidRequest");
    client.put(&format!("/{volume}/plain"), b"1").expect(200);
    let copy = client.request("PUT", &path).header("x-amz-copy-source", &format!("{volume}/plain"));
    let copy = copy.header("x-amz-metadata-directive", "REPLACE").header("x-amz-meta-stoker-set", &id);
    client.send(copy).refused(501, "NotImplemented");
}

#[test]
fn keys_that_are_limited_stay_so() {
    let volume = volume();
    let limited = Access { prefixes: vec![format!("{volume}/mine/")], ..Access::default() };
    let client = Rig::get().add_key("AKIASETS", limited);
    act(&client, &format!("/{volume}/other/"), r#"{"action":"begin","shards":1}"#)
        .refused(403, "AccessDenied");
    act(&client, &format!("/{volume}/mine/s/"), r#"{"action":"begin","shards":1}"#).expect(200);
    shard(&client, &format!("/{volume}/mine/s/a"), "mine/s/", "0", b"1").expect(200);
    client.get(&format!("/{volume}/.stoker-latest")).refused(403, "AccessDenied");
    let reader = Access { read_only: true, ..Access::default() };
    let reader = Rig::get().add_key("AKIASETSREAD", reader);
    assert_eq!(status(&reader, &format!("/{volume}/mine/s/"))["present"], 1);
    act(&reader, &format!("/{volume}/mine/s/"), r#"{"action":"publish"}"#).refused(403, "AccessDenied");
    abort(&client, &format!("/{volume}/mine/s/")).expect(204);
}

/// As clients send small bodies by themselves: in signed chunks, and with a checksum behind them.
#[test]
fn documents_come_in_every_kind_of_body() {
    let (client, volume) = (client(), volume());
    let document = br#"{"action":"begin","shards":1}"#;
    for (at, kind) in [Body::Unsigned, Body::Sha256, Body::Signed(8), Body::UnsignedTrailer(8, Vec::new())]
        .into_iter()
        .enumerate()
    {
        let request = client.request("PUT", &format!("/{volume}/{at}/.stoker-set"));
        client.send(request.body(document).kind(kind)).expect(200);
    }
    let request = client.request("PUT", &format!("/{volume}/x/.stoker-set")).body(document);
    client.send(request.header("x-amz-checksum-crc32", "AAAAAA==")).refused(400, "BadDigest");
}
