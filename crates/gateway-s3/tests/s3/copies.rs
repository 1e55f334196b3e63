//! CopyObject, UploadPartCopy, tags and attributes.

use stoker_store::{Key, Store};

use crate::client::{Client, Response, encode};
use crate::rig::{Rig, client, pattern, volume};

fn copy(client: &Client, to: &str, from: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = client.request("PUT", to).header("x-amz-copy-source", from);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    client.send(request)
}

#[test]
fn a_copy_is_the_same_or_as_told() {
    let (client, volume) = (client(), volume());
    let body = pattern(5, 6 << 20);
    let from = format!("/{volume}/from%20here");
    let put =
        client.request("PUT", &from).body(&body).header("content-type", "a/b").header("x-amz-meta-m", "1");
    client.send(put.header("x-amz-tagging", "t=1")).expect(200);
    let to = format!("/{volume}/to");
    let copied = copy(&client, &to, &from, &[]).expect(200);
    let get = client.get(&to).expect(200);
    assert!(get.body == body);
    assert_eq!(
        copied.element("ETag").map(|etag| etag.replace("&quot;", "\"")).as_deref(),
        get.header("etag")
    );
    assert!(copied.element("LastModified").is_some());
    assert_eq!((get.header("content-type"), get.header("x-amz-meta-m")), (Some("a/b"), Some("1")));
    assert_eq!(get.header("x-amz-tagging-count"), Some("1"));

    let replace = [("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-n", "2"), ("content-type", "c/d")];
    copy(&client, &to, &from, &replace).expect(200);
    let get = client.get(&to).expect(200);
    assert_eq!(
        (get.header("content-type"), get.header("x-amz-meta-m"), get.header("x-amz-meta-n")),
        (Some("c/d"), None, Some("2"))
    );
    assert_eq!(get.header("x-amz-tagging-count"), Some("1"));
    let tags = [("x-amz-tagging-directive", "REPLACE"), ("x-amz-tagging", "a=1&b=2")];
    copy(&client, &to, &from, &tags).expect(200);
    assert_eq!(client.get(&to).expect(200).header("x-amz-tagging-count"), Some("2"));
}

/// A key as clients write it into the header: a space as `+` or as `%20`, everything else but a slash encoded.
fn spelled(key: &str, space: &str) -> String {
    encode(key.as_bytes()).replace("%20", space)
}

#[test]
fn the_source_is_the_one_that_is_meant_whatever_is_beside_it() {
    let (client, volume) = (client(), volume());
    let keys = [
        "a b",
        "a+b",
        "a%20b",
        "a%2Bb",
        "a%b",
        "ä b+c",
        "dir/x y",
        "dir/x+y",
        "a?versionId=null",
        "q?x=1&y=2",
    ];
    for key in keys {
        client.put(&format!("/{volume}/{}", encode(key.as_bytes())), key.as_bytes()).expect(200);
    }
    let to = format!("/{volume}/to");
    for key in keys {
        for space in ["+", "%20"] {
            for slash in ["/", ""] {
                let from = format!("{slash}{volume}/{}", spelled(key, space));
                copy(&client, &to, &from, &[]).expect(200);
                assert_eq!(client.get(&to).expect(200).body, key.as_bytes(), "{from}");

                let begun = client.send(client.request("POST", &format!("{to}?uploads"))).expect(200);
                let upload = begun.element("UploadId").unwrap();
                let part =
                    copy(&client, &format!("{to}?partNumber=1&uploadId={upload}"), &from, &[]).expect(200);
                let etag = part.element("ETag").unwrap();
                let document = format!(
                    "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
                     </CompleteMultipartUpload>"
                );
                let done = client.request("POST", &format!("{to}?uploadId={upload}"));
                client.send(done.body(document.as_bytes())).expect(200);
                assert_eq!(client.get(&to).expect(200).body, key.as_bytes(), "{from} as a part");
            }
        }
    }
    for bad in ["", "x", &format!("/{volume}/"), &format!("/{volume}/%zz"), &format!("/{volume}/%ff")] {
        copy(&client, &to, bad, &[]).refused(400, "InvalidArgument");
    }
}

#[test]
fn metadata_in_our_name_is_the_users_and_comes_back_as_sent() {
    let (client, volume) = (client(), volume());
    let (from, to) = (format!("/{volume}/from"), format!("/{volume}/to"));
    client.put(&from, b"x").expect(200);
    for name in ["x-amz-meta-stoker-version", "x-amz-meta-stoker-owner", "x-amz-meta-x-stoker-mac"] {
        let put = client.request("PUT", &to).body(b"x").header(name, "0:0");
        client.send(put).expect(200);
        assert_eq!(client.get(&to).expect(200).header(name), Some("0:0"));
        let replace = [("x-amz-metadata-directive", "REPLACE"), (name, "1:1")];
        copy(&client, &to, &from, &replace).expect(200);
        assert_eq!(client.get(&to).expect(200).header(name), Some("1:1"));
        // Kept under another name, which is nobody's word but theirs.
        let file =
            Rig::get().runtime.block_on(Rig::get().node.stat(&volume, &Key::new("to").unwrap())).unwrap();
        let kept: Vec<&str> = file.attributes.meta.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(kept, [name.replacen("x-amz-meta-", "x-", 1)]);
    }
}

#[test]
fn a_copy_onto_itself_must_change_something() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/self");
    client.put(&path, b"x").expect(200);
    copy(&client, &path, &path, &[]).refused(400, "InvalidRequest");
    copy(&client, &path, &path, &[("x-amz-storage-class", "STANDARD_IA")]).expect(200);
    copy(&client, &path, &path, &[("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-a", "b")])
        .expect(200);
    let get = client.get(&path).expect(200);
    assert_eq!((get.body.as_slice(), get.header("x-amz-meta-a")), (&b"x"[..], Some("b")));
}

#[test]
fn sources_and_conditions_are_checked() {
    let (client, volume) = (client(), volume());
    let (from, to) = (format!("{volume}/from"), format!("/{volume}/to"));
    let etag = client.put(&format!("/{from}"), b"x").expect(200).header("etag").unwrap().to_owned();
    let with = |name: &str, value: &str| copy(&client, &to, &from, &[(name, value)]);
    with("x-amz-copy-source-if-match", "\"other\"").refused(412, "PreconditionFailed");
    with("x-amz-copy-source-if-none-match", &etag).refused(412, "PreconditionFailed");
    with("x-amz-copy-source-if-unmodified-since", "Fri, 24 May 2013 00:00:00 GMT")
        .refused(412, "PreconditionFailed");
    with("x-amz-copy-source-if-match", etag.trim_matches('"')).expect(200);
    with("if-none-match", "*").refused(412, "PreconditionFailed");
    with("x-amz-metadata-directive", "MAYBE").refused(400, "InvalidArgument");
    with("x-amz-server-side-encryption", "AES256").refused(501, "NotImplemented");
    copy(&client, &to, &format!("{volume}/nothing"), &[]).refused(404, "NoSuchKey");
    copy(&client, &to, "no-such-volume/a", &[]).refused(404, "NoSuchBucket");
    copy(&client, &to, "nonsense", &[]).refused(400, "InvalidArgument");
}

#[test]
fn parts_are_copied_from_ranges() {
    let (client, volume) = (client(), volume());
    let body = pattern(9, 6 << 20);
    let (from, to) = (format!("/{volume}/from"), format!("/{volume}/to"));
    client.put(&from, &body).expect(200);
    let upload = client
        .send(client.request("POST", &format!("{to}?uploads")))
        .expect(200)
        .element("UploadId")
        .unwrap();
    let part = |number: u32, range: &str| {
        let path = format!("{to}?partNumber={number}&uploadId={upload}");
        copy(&client, &path, &from, &[("x-amz-copy-source-range", range)])
    };
    let first = part(1, "bytes=0-5242879").expect(200).element("ETag").unwrap();
    let second = part(2, "bytes=100-199").expect(200).element("ETag").unwrap();
    part(3, "bytes=0-99999999").refused(400, "InvalidArgument");
    part(3, "bytes=-5").refused(400, "InvalidArgument");
    let document = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{first}</ETag></Part>\
         <Part><PartNumber>2</PartNumber><ETag>{second}</ETag></Part></CompleteMultipartUpload>"
    );
    client
        .send(client.request("POST", &format!("{to}?uploadId={upload}")).body(document.as_bytes()))
        .expect(200);
    assert!(client.get(&to).expect(200).body == [&body[..5_242_880], &body[100..200]].concat());
}

#[test]
fn tags_are_set_and_removed() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/tagged");
    client.put(&path, b"x").expect(200);
    let set = |document: &str| {
        client.send(client.request("PUT", &format!("{path}?tagging")).body(document.as_bytes()))
    };
    set("<Tagging><TagSet><Tag><Key>a&amp;</Key><Value>1</Value></Tag></TagSet></Tagging>").expect(200);
    let tags = client.get(&format!("{path}?tagging")).expect(200);
    assert_eq!(
        (tags.element("Key").as_deref(), tags.element("Value").as_deref()),
        (Some("a&amp;"), Some("1"))
    );
    let put = client.request("PUT", &path).body(b"x").header("x-amz-tagging", "foo=bar&bar");
    client.send(put).expect(200);
    let told = client.get(&format!("{path}?tagging")).expect(200).text();
    assert!(told.find("<Key>bar</Key>") < told.find("<Key>foo</Key>"), "{told}");
    let twice = "<Tag><Key>a</Key><Value>1</Value></Tag>".repeat(2);
    set(&format!("<Tagging><TagSet>{twice}</TagSet></Tagging>")).refused(400, "InvalidTag");
    set("<Tagging>").refused(400, "MalformedXML");
    client.send(client.request("DELETE", &format!("{path}?tagging"))).expect(204);
    assert_eq!(client.get(&format!("{path}?tagging")).expect(200).element("Key"), None);
    client.get(&format!("/{volume}/nothing?tagging")).refused(404, "NoSuchKey");
}

#[test]
fn attributes_are_told() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/attributes");
    client.put(&path, b"hello world").expect(200);
    let ask = |names: &str| {
        client.send(
            client.request("GET", &format!("{path}?attributes")).header("x-amz-object-attributes", names),
        )
    };
    let told = ask("ETag,Checksum,ObjectSize,StorageClass").expect(200);
    assert_eq!(told.element("ObjectSize").as_deref(), Some("11"));
    assert_eq!(told.element("ChecksumCRC64NVME").as_deref(), Some("jSnVw/bqjr4="));
    assert!(told.header("last-modified").is_some());
    ask("Color").refused(400, "InvalidArgument");
    client.get(&format!("{path}?attributes")).refused(400, "InvalidRequest");
}
