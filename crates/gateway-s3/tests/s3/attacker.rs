//! Somebody with a valid key of one tenant looks for names, bytes, sizes and existence of another's data. Every answer is compared with that to
//! the same request about what nobody has: whoever cannot tell them apart learns nothing.

use std::sync::Arc;

use stoker_store::{
    Access, AccountName, ErrorKind, Order, PeopleChange, QuotaLimits, Store, UserName, UserRights,
    VolumeOptions, owner_entry,
};

use crate::client::{Client, Request, Response};
use crate::forms;
use crate::rig::Rig;

/// Of the victim: a bucket, a key, an upload, a presigned url.
struct Victim {
    client: Client,
    upload: String,
}

const BUCKET: &str = "patients";
const KEY: &str = "scan/7";
const SECRET: &[u8] = b"nobody else's bytes";
/// What nobody has, of the same length.
const NO_BUCKET: &str = "patientz";
const NO_UPLOAD: &str = "0000000000000000000000aa";

fn change(change: PeopleChange) {
    let rig = Rig::get();
    // The level of a new node rises within its first moments.
    while let Err(fault) = rig.runtime.block_on(rig.node.operate(Order::PeopleChange(change.clone()))) {
        assert_eq!(fault.kind, ErrorKind::Invalid, "{fault}");
        std::thread::yield_now();
    }
}

fn tenant(name: &str, access_key: &str) -> Client {
    change(PeopleChange::TenantCreate { tenant: name.into() });
    let user = UserName { tenant: name.into(), user: "user".into() };
    change(PeopleChange::UserCreate { name: user.clone(), rights: UserRights::default() });
    let client =
        Rig::get().add_key(access_key, Access { prefixes: vec![owner_entry(&user)], ..Access::default() });
    // What was changed beside the endpoint is known to it within seconds.
    while client.send(client.request("GET", "/")).status == 403 {
        std::thread::yield_now();
    }
    client
}

fn victim() -> Victim {
    let rig = Rig::get();
    let client = tenant("victim", "VICTIM");
    let name = format!("victim_{BUCKET}");
    rig.runtime.block_on(Arc::clone(&rig.node).volume_create(&name, VolumeOptions::default())).unwrap();
    client.put(&format!("/{BUCKET}/{KEY}"), SECRET).expect(200);
    let begun = client.send(client.request("POST", &format!("/{BUCKET}/{KEY}?uploads"))).expect(200);
    let upload = begun.element("UploadId").unwrap();
    client.put(&format!("/{BUCKET}/{KEY}?partNumber=1&uploadId={upload}"), SECRET).expect(200);
    Victim { client, upload }
}

/// An answer without what every answer has of its own.
fn plain(answer: &Response, words: &[&str]) -> (u16, Vec<(String, String)>, String) {
    let own = ["date", "x-amz-request-id", "x-amz-id-2", "content-length", "etag", "last-modified"];
    let mut headers: Vec<(String, String)> = answer
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
        .filter(|(name, _)| !own.contains(&name.as_str()))
        .collect();
    headers.sort();
    let mut text = answer.text();
    for tag in ["RequestId", "HostId", "LastModified", "ETag"] {
        for value in answer.elements(tag) {
            text = text.replace(&value, "");
        }
    }
    words.iter().for_each(|word| text = text.replace(word, "WORD"));
    (answer.status, headers, text)
}

/// The same request about what is there and what is not is answered the same.
fn same(attacker: &Client, words: [&str; 2], request: impl Fn(&str) -> Request) {
    let [there, missing] = words.map(|word| attacker.send(request(word)));
    let [found, expect] = [plain(&there, &words), plain(&missing, &words)];
    assert_eq!(found, expect, "{}", words[0]);
    silent(&there, &words);
}

/// An answer has nothing of the victim but what the attacker asked for by these words.
fn silent(answer: &Response, words: &[&str]) {
    let (status, _, text) = plain(answer, words);
    for word in ["victim", "nobody else", &format!(">{}<", SECRET.len())] {
        assert!(!text.contains(word), "{text}");
    }
    assert!(status != 200 || !text.contains(KEY), "{text}");
}

#[test]
fn a_valid_key_of_one_tenant_finds_nothing_of_another() {
    let Victim { client: victim, upload } = victim();
    let attacker = tenant("attacker", "ATTACKER");
    attacker.put("/attacker/own", b"own").expect(200);
    let buckets = [BUCKET, NO_BUCKET];

    // The bucket itself, by every way to name it.
    for path in ["", "?location", "?versioning", "?list-type=2&prefix=scan", "?uploads", "?acl", "?policy"] {
        same(&attacker, buckets, |bucket| attacker.request("GET", &format!("/{bucket}{path}")));
        same(&attacker, buckets, |bucket| attacker.request("HEAD", &format!("/{bucket}{path}")));
    }
    for full in ["victim_patients", "victim_victim", "_patients", "attacker_victim_patients"] {
        let missing = full.replace("victim", "nobody");
        same(&attacker, [full, &missing], |name| attacker.request("GET", &format!("/{name}/{KEY}")));
        let source = |name: &str| {
            attacker.request("PUT", "/attacker/stolen").header("x-amz-copy-source", &format!("{name}/{KEY}"))
        };
        same(&attacker, [full, &missing], source);
    }

    // The object, as a source of copies and of parts, with conditions that would tell something of it.
    let own = attacker.send(attacker.request("POST", "/attacker/own?uploads")).expect(200);
    let own = own.element("UploadId").unwrap();
    for part in [String::new(), format!("?partNumber=1&uploadId={own}")] {
        for (name, value) in [
            ("x-amz-copy-source-range", "bytes=0-3"),
            ("x-amz-copy-source-if-match", "\"x\""),
            ("x-amz-copy-source-if-none-match", "*"),
            ("x-amz-copy-source-if-modified-since", "Thu, 01 Jan 2015 00:00:00 GMT"),
            ("x-amz-metadata-directive", "COPY"),
        ] {
            for source in ["{}/scan/7", "/{}/scan/7", "{}/scan/7?versionId=null", "own/../{}/scan/7"] {
                same(&attacker, buckets, |bucket| {
                    attacker
                        .request("PUT", &format!("/attacker/stolen{part}"))
                        .header("x-amz-copy-source", &source.replace("{}", bucket))
                        .header(name, value)
                });
            }
        }
    }
    for (method, more) in
        [("GET", ""), ("HEAD", ""), ("DELETE", ""), ("GET", "?attributes"), ("GET", "?tagging")]
    {
        same(&attacker, buckets, |bucket| attacker.request(method, &format!("/{bucket}/{KEY}{more}")));
    }

    // Its upload, in its bucket and in one's own.
    for bucket in [BUCKET, "attacker"] {
        for (method, query, body) in [
            ("GET", "uploadId={}", &b""[..]),
            ("PUT", "partNumber=2&uploadId={}", b"mine"),
            ("DELETE", "uploadId={}", b""),
            ("POST", "uploadId={}", b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"x\"</ETag></Part></CompleteMultipartUpload>"),
        ] {
            same(&attacker, [&upload, NO_UPLOAD], |id| {
                attacker.request(method, &format!("/{bucket}/{KEY}?{}", query.replace("{}", id))).body(body)
            });
        }
    }

    // A form, several deletes at once, a bucket of the same name, and what one's own lists say.
    let [form, expect] = buckets.map(|bucket| forms::post(&attacker, bucket, "user/x", b"form", 100, &[]));
    assert_eq!(plain(&form, &buckets), plain(&expect, &buckets));
    let delete = b"<Delete><Object><Key>scan/7</Key></Object></Delete>";
    same(&attacker, buckets, |bucket| attacker.request("POST", &format!("/{bucket}?delete")).body(delete));
    for path in ["/", "/attacker", "/attacker?list-type=2", "/attacker?uploads", "/attacker?versions"] {
        silent(&attacker.get(path), &[]);
    }
    attacker.put(&format!("/{NO_BUCKET}"), b"").expect(200);
    attacker.put(&format!("/{BUCKET}"), b"").expect(200);
    attacker.get(&format!("/{BUCKET}/{KEY}")).refused(404, "NoSuchKey");
    attacker.put(&format!("/{BUCKET}/{KEY}"), b"mine").expect(200);

    // A url that somebody signed is theirs; signed by the attacker it opens what is the attacker's.
    let url = attacker.presign("GET", &format!("/{BUCKET}/{KEY}"), 60, "");
    assert!(!url.contains("victim"));

    // Whose quota is full is said to those whom it is the quota of.
    let account = AccountName::Tenant("victim".into());
    change(PeopleChange::Quota { account, limits: QuotaLimits { bytes: 1, ..QuotaLimits::default() } });
    let refused = victim.put(&format!("/{BUCKET}/more"), SECRET).refused(403, "QuotaExceeded");
    assert!(refused.element("Message").unwrap().contains("tenant `victim` has a quota of 1 bytes"));
    attacker.put("/attacker/more", SECRET).expect(200);

    // All that time nothing of it changed.
    assert_eq!(victim.get(&format!("/{BUCKET}/{KEY}")).expect(200).body, SECRET);
    let parts = victim.get(&format!("/{BUCKET}/{KEY}?uploadId={upload}")).expect(200);
    assert_eq!(parts.elements("PartNumber"), ["1"]);
}
