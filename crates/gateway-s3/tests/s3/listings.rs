//! ListObjects, both versions, and ListMultipartUploads with a delimiter.

use crate::client::Client;
use crate::rig::{client, volume};

fn filled(client: &Client, keys: &[&str]) -> String {
    let volume = volume();
    for key in keys {
        client
            .put(&format!("/{volume}/{}", crate::client::encode(key.as_bytes())), key.as_bytes())
            .expect(200);
    }
    volume
}

const KEYS: [&str; 7] = ["a", "dir/1", "dir/2", "dir/sub/3", "dir2", "e f", "z"];

#[test]
fn pages_follow_one_another() {
    let client = client();
    let volume = filled(&client, &KEYS);
    for limit in 1..=8 {
        let (mut found, mut token) = (Vec::new(), None::<String>);
        loop {
            let more = token
                .map(|token| format!("continuation-token={}&", crate::client::encode_all(&token)))
                .unwrap_or_default();
            let page = client.get(&format!("/{volume}?{more}list-type=2&max-keys={limit}")).expect(200);
            let keys = page.elements("Key");
            assert_eq!(page.element("KeyCount"), Some(keys.len().to_string()));
            assert!(keys.len() <= limit);
            found.extend(keys);
            token = page.element("NextContinuationToken");
            assert_eq!(
                page.element("IsTruncated").as_deref(),
                Some(if token.is_some() { "true" } else { "false" })
            );
            if token.is_none() {
                break;
            }
        }
        assert_eq!(found, KEYS, "{limit} at a time");
    }
}

#[test]
fn a_delimiter_makes_groups() {
    let client = client();
    let volume = filled(&client, &KEYS);
    let list = |query: &str| {
        let page = client.get(&format!("/{volume}?{query}list-type=2")).expect(200);
        (page.elements("Key"), page.elements("CommonPrefixes"))
    };
    let group = |name: &str| vec![format!("<Prefix>{name}</Prefix>")];
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    assert_eq!(list("delimiter=%2F&"), (keys(&["a", "dir2", "e f", "z"]), group("dir/")));
    assert_eq!(list("delimiter=%2F&prefix=dir%2F&"), (keys(&["dir/1", "dir/2"]), group("dir/sub/")));
    assert_eq!(list("delimiter=ir&"), (keys(&["a", "e f", "z"]), group("dir")));
    assert_eq!(list("start-after=dir2&"), (keys(&["e f", "z"]), vec![]));
    assert_eq!(list("prefix=nothing&"), (vec![], vec![]));

    let mut groups = Vec::new();
    let mut marker = String::new();
    loop {
        let page = client
            .get(&format!("/{volume}?delimiter=%2F&marker={}&max-keys=1", crate::client::encode_all(&marker)))
            .expect(200);
        groups.extend(page.elements("Key"));
        groups.extend(page.elements("CommonPrefixes"));
        match page.element("NextMarker") {
            Some(next) => marker = next,
            None => break,
        }
    }
    assert_eq!(groups, ["a", "<Prefix>dir/</Prefix>", "dir2", "e f", "z"]);
}

#[test]
fn limits_and_tokens_are_checked() {
    let client = client();
    let volume = filled(&client, &["a", "b"]);
    let empty = client.get(&format!("/{volume}?list-type=2&max-keys=0")).expect(200);
    assert_eq!((empty.elements("Key").len(), empty.element("IsTruncated").as_deref()), (0, Some("false")));
    let capped = client.get(&format!("/{volume}?list-type=2&max-keys=5000")).expect(200);
    assert_eq!(capped.element("MaxKeys").as_deref(), Some("1000"));
    for bad in ["max-keys=-1", "max-keys=x", "continuation-token=nonsense", "encoding-type=base64"] {
        client.get(&format!("/{volume}?{bad}&list-type=2")).refused(400, "InvalidArgument");
    }
    let first = client.get(&format!("/{volume}?list-type=2&max-keys=1")).expect(200);
    let token = first.element("NextContinuationToken").unwrap();
    let elsewhere = filled(&client, &[]);
    client
        .get(&format!("/{elsewhere}?continuation-token={token}&list-type=2"))
        .refused(400, "InvalidArgument");
}

#[test]
fn entries_tell_what_they_are() {
    let client = client();
    let volume = filled(&client, &["a"]);
    let v1 = client.get(&format!("/{volume}")).expect(200);
    let v2 = client.get(&format!("/{volume}?fetch-owner=true&list-type=2")).expect(200);
    let etag = client.get(&format!("/{volume}/a")).expect(200).header("etag").unwrap().to_owned();
    for page in [v1, v2] {
        assert_eq!(page.element("Size").as_deref(), Some("1"));
        assert_eq!(page.element("StorageClass").as_deref(), Some("STANDARD"));
        assert_eq!(page.element("ID").as_deref(), Some("stoker"));
        assert_eq!(page.element("ETag").map(|etag| etag.replace("&quot;", "\"")), Some(etag.clone()));
        assert!(page.element("LastModified").unwrap().ends_with('Z'));
        assert!(page.text().contains("ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""));
    }
    let without = client.get(&format!("/{volume}?list-type=2")).expect(200);
    assert_eq!(without.element("ID"), None);
}

#[test]
fn uploads_are_listed_like_keys() {
    let client = client();
    let volume = filled(&client, &[]);
    for key in ["a", "dir/1", "dir/2", "z"] {
        client.send(client.request("POST", &format!("/{volume}/{key}?uploads"))).expect(200);
    }
    let all = client.get(&format!("/{volume}?uploads")).expect(200);
    assert_eq!(all.elements("UploadId").len(), 4);
    let grouped = client.get(&format!("/{volume}?delimiter=%2F&uploads")).expect(200);
    assert_eq!(grouped.elements("Key"), ["a", "z"]);
    assert_eq!(grouped.elements("CommonPrefixes"), ["<Prefix>dir/</Prefix>"]);
    let (mut found, mut marker) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("/{volume}?{marker}max-uploads=1&uploads")).expect(200);
        found.extend(page.elements("Key"));
        if page.element("IsTruncated").as_deref() != Some("true") {
            break;
        }
        marker = format!(
            "key-marker={}&upload-id-marker={}&",
            crate::client::encode_all(&page.element("NextKeyMarker").unwrap()),
            page.element("NextUploadIdMarker").unwrap()
        );
    }
    assert_eq!(found, ["a", "dir/1", "dir/2", "z"]);
}
