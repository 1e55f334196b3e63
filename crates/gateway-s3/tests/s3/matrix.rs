//! Every operation of everybody: nothing passes that should not, and to another tenant a bucket is as one that is not there.

use std::collections::BTreeSet;
use std::sync::Arc;

use stoker_access::{Guard, Session, SessionRequest};
use stoker_gateway_s3::{operations, questions};
use stoker_store::{
    Access, ErrorKind, Order, PeopleChange, Store, UserName, UserRights, VolumeOptions, owner_entry,
};

use crate::client::{Client, Response, now_s};
use crate::forms;
use crate::rig::{Rig, client};

/// A request of one operation.
struct Case {
    name: &'static str,
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: &'static [u8],
}

const DELETE: &[u8] = b"<Delete><Object><Key>a/none</Key></Object></Delete>";
const TAGS: &[u8] = b"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
const COMPLETE: &[u8] =
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"x\"</ETag></Part></CompleteMultipartUpload>";

/// One for each operation but those that are not signed; the form is sent on its own.
fn cases(bucket: &str) -> Vec<Case> {
    let upload = "partNumber=1&uploadId=000000000000000000000001";
    let rows: [(&str, &str, String, &[u8]); 27] = [
        ("ListBuckets", "GET", String::new(), b""),
        ("CreateBucket", "PUT", "{bucket}".into(), b""),
        ("DeleteBucket", "DELETE", "{bucket}".into(), b""),
        ("HeadBucket", "HEAD", "{bucket}".into(), b""),
        ("GetBucketLocation", "GET", "{bucket}?location".into(), b""),
        ("GetBucketVersioning", "GET", "{bucket}?versioning".into(), b""),
        ("ListObjects", "GET", "{bucket}".into(), b""),
        ("ListObjectsV2", "GET", "{bucket}?list-type=2".into(), b""),
        ("ListMultipartUploads", "GET", "{bucket}?uploads".into(), b""),
        ("DeleteObjects", "POST", "{bucket}?delete".into(), DELETE),
        ("GetObject", "GET", "{bucket}/a/b".into(), b""),
        ("HeadObject", "HEAD", "{bucket}/a/b".into(), b""),
        ("GetObjectAttributes", "GET", "{bucket}/a/b?attributes".into(), b""),
        ("GetObjectTagging", "GET", "{bucket}/a/b?tagging".into(), b""),
        ("PutObjectTagging", "PUT", "{bucket}/a/b?tagging".into(), TAGS),
        ("DeleteObjectTagging", "DELETE", "{bucket}/a/b?tagging".into(), b""),
        ("PutObject", "PUT", "{bucket}/a/new".into(), b"new"),
        ("CopyObject", "PUT", "{bucket}/a/copy".into(), b""),
        ("DeleteObject", "DELETE", "{bucket}/a/copy".into(), b""),
        ("CreateMultipartUpload", "POST", "{bucket}/a/up?uploads".into(), b""),
        ("UploadPart", "PUT", format!("{{bucket}}/a/up?{upload}"), b"part"),
        ("UploadPartCopy", "PUT", format!("{{bucket}}/a/up?{upload}"), b""),
        ("ListParts", "GET", format!("{{bucket}}/a/up?{}", &upload[13..]), b""),
        ("CompleteMultipartUpload", "POST", format!("{{bucket}}/a/up?{}", &upload[13..]), COMPLETE),
        ("AbortMultipartUpload", "DELETE", format!("{{bucket}}/a/up?{}", &upload[13..]), b""),
        // A set is begun and given up under a name that stands for it.
        ("PutObject", "PUT", "{bucket}/run/.stoker-set".into(), br#"{"action":"begin","shards":1}"#),
        ("DeleteObject", "DELETE", "{bucket}/run/.stoker-set".into(), b""),
    ];
    let asked = questions().into_iter().map(|(name, method, path)| {
        let method = ["GET", "PUT", "POST", "DELETE"].into_iter().find(|known| *known == method).unwrap();
        (name, method, path.trim_start_matches('/').to_owned(), &b""[..])
    });
    let case = |(name, method, path, body): (&'static str, &'static str, String, &'static [u8])| Case {
        name,
        method,
        path: format!("/{}", path.replace("{bucket}", bucket)),
        headers: match name.contains("Copy") {
            true => vec![("x-amz-copy-source".to_owned(), format!("{bucket}/a/b"))],
            false => Vec::new(),
        },
        body,
    };
    rows.into_iter().chain(asked).map(case).collect()
}

fn send(client: &Client, case: &Case) -> Response {
    let mut request = client.request(case.method, &case.path).body(case.body);
    for (name, value) in &case.headers {
        request = request.header(name, value);
    }
    client.send(request)
}

/// What an answer says, with the name of the bucket left out. A HEAD says its status alone.
fn said(answer: &Response, bucket: &str) -> (u16, Option<String>, Option<String>) {
    let message = answer.element("Message").map(|text| text.replace(bucket, "BUCKET"));
    (answer.status, answer.element("Code"), message)
}

/// Whether the caller may not. An object that cannot be restored answers 403, too.
fn is_denied(answer: &Response) -> bool {
    answer.status == 403 && answer.element("Code").is_none_or(|code| code == "AccessDenied")
}

/// Temporary keys, of which some open something and some do not.
struct Sessions {
    alice: Client,
    reader: Client,
    bob: Client,
    /// With the codes that they get.
    bad: Vec<(&'static str, Client, u16, &'static str)>,
}

pub fn session_request() -> SessionRequest {
    SessionRequest {
        label: "matrix".to_owned(),
        arn: "arn:aws:sts::acme:assumed-role/matrix/test".to_owned(),
        is_read_only: false,
        places: Vec::new(),
        duration_s: 900,
        now_ms: now_s() as u64 * 1_000,
    }
}

/// A client with a temporary key of a user.
pub fn session_of(guard: &Guard, user: &str, request: SessionRequest) -> Client {
    let name = UserName::parse(user).unwrap();
    let made = Rig::get().runtime.block_on(guard.session_of_user(&name, request)).unwrap().unwrap();
    let Session { access_key, secret_key, token, .. } = made;
    Client { access_key, secret_key, token: Some(token), ..client() }
}

fn sessions(alice: &Client) -> Sessions {
    // Another node of the cluster gave them.
    let guard = Rig::get().guard();
    let of = |user: &str, request| session_of(&guard, user, request);
    let read_only = SessionRequest { is_read_only: true, ..session_request() };
    let good = of("acme/alice", session_request());
    let token = good.token.clone().unwrap();
    let altered = format!("{}{}", &token[..token.len() - 1], if token.ends_with('A') { 'B' } else { 'A' });
    let over = SessionRequest { now_ms: session_request().now_ms - 901_000, ..session_request() };
    let foreign = Guard::new(Rig::get().node.clone());
    foreign.seal_sessions_with(&[8; 32]);
    let bad = vec![
        ("expired", of("acme/alice", over), 400, "ExpiredToken"),
        ("altered", Client { token: Some(altered), ..good.clone() }, 400, "InvalidToken"),
        ("missing", Client { token: None, ..good.clone() }, 403, "InvalidAccessKeyId"),
        ("of another key", Client { access_key: "ALICE".into(), ..good.clone() }, 400, "InvalidToken"),
        ("beside a lasting key", Client { token: Some(token), ..alice.clone() }, 400, "InvalidToken"),
        ("empty", Client { token: Some(String::new()), ..good.clone() }, 400, "InvalidToken"),
        (
            "huge",
            Client { token: Some("stss1-".to_owned() + &"A".repeat(9_000)), ..good.clone() },
            400,
            "InvalidToken",
        ),
        ("of another cluster", session_of(&foreign, "acme/alice", session_request()), 400, "InvalidToken"),
        (
            "with another secret",
            Client { secret_key: "guess".into(), ..good.clone() },
            403,
            "SignatureDoesNotMatch",
        ),
    ];
    Sessions { alice: good, reader: of("acme/alice", read_only), bob: of("beta/bob", session_request()), bad }
}

struct Tenants {
    alice: Client,
    reader: Client,
    bob: Client,
}

fn tenants() -> Tenants {
    let rig = Rig::get();
    let node = Arc::clone(&rig.node);
    let change = |change: PeopleChange| rig.runtime.block_on(node.operate(Order::PeopleChange(change)));
    let name = |text: &str| UserName::parse(text).unwrap();
    for tenant in ["acme", "beta"] {
        // The level of a new node rises within its first moments.
        while let Err(fault) = change(PeopleChange::TenantCreate { tenant: tenant.into() }) {
            assert_eq!(fault.kind, ErrorKind::Invalid, "{fault}");
            std::thread::yield_now();
        }
    }
    for (user, read_only) in [("acme/alice", false), ("acme/reader", true), ("beta/bob", false)] {
        let rights = UserRights { read_only, ..UserRights::default() };
        change(PeopleChange::UserCreate { name: name(user), rights }).unwrap();
    }
    rig.runtime.block_on(rig.node.volume_create("acme_data", VolumeOptions::default())).unwrap();
    let key = |access_key: &str, user: &str| {
        rig.add_key(access_key, Access { prefixes: vec![owner_entry(&name(user))], ..Access::default() })
    };
    Tenants {
        alice: key("ALICE", "acme/alice"),
        reader: key("READER", "acme/reader"),
        bob: key("BOB", "beta/bob"),
    }
}

#[test]
fn nothing_passes_that_should_not() {
    let Tenants { alice, reader, bob } = tenants();
    // What was changed beside the endpoint is known to it within seconds.
    for client in [&alice, &reader, &bob] {
        while client.send(client.request("GET", "/")).status == 403 {
            std::thread::yield_now();
        }
    }
    alice.put("/data/a/b", b"bytes").expect(200);
    let old = client();
    let temporary = sessions(&alice);

    let listed: BTreeSet<&str> = cases("data").iter().map(|case| case.name).collect();
    // The last three are of STS, which has tests of its own.
    let unsigned = [
        "PostObject",
        "Preflight",
        "Unknown",
        "AssumeRoleWithWebIdentity",
        "GetCallerIdentity",
        "GetSessionToken",
    ];
    let all: BTreeSet<&str> = operations().into_iter().filter(|name| !unsigned.contains(name)).collect();
    assert_eq!(listed, all, "an operation without a request, or the other way round");

    let (there, missing) = (cases("data"), cases("no-such-bucket"));
    for (case, missing) in there.iter().zip(&missing) {
        let about = format!("{} {} {}", case.name, case.method, case.path);
        let is_read = ["Get", "Head", "List"].iter().any(|verb| case.name.starts_with(verb));

        let mut headers = String::new();
        case.headers.iter().for_each(|(name, value)| headers += &format!("{name}: {value}\r\n"));
        let answer = old.plain(case.method, &case.path, &headers, case.body);
        assert_eq!(answer.status, 403, "anonymous: {about}");

        for (who, client) in [("read-only", &reader), ("temporary and read-only", &temporary.reader)] {
            let answer = send(client, case);
            assert_eq!(is_denied(&answer), !is_read, "{who}: {about}: {}", answer.text());
        }
        for (what, client, status, code) in &temporary.bad {
            let answer = send(client, case);
            assert_eq!(answer.status, *status, "temporary, {what}: {about}: {}", answer.text());
            assert!(
                answer.element("Code").is_none_or(|found| found == *code),
                "{what}: {about}: {}",
                answer.text()
            );
        }

        // A bucket that both could make; what they may do with their own is not asked here.
        if !matches!(case.name, "CreateBucket" | "ListBuckets") {
            let others = [
                ("another tenant", &bob),
                ("temporary, of another tenant", &temporary.bob),
                ("a key of the default tenant", &old),
            ];
            for (who, other) in others {
                let (answer, expect) = (send(other, case), send(other, missing));
                assert_eq!(said(&answer, "data"), said(&expect, "no-such-bucket"), "{who}: {about}");
                assert!(answer.status >= 400, "{who}: {about}");
            }
        }

        for (who, client) in [("right", &alice), ("temporary and right", &temporary.alice)] {
            let answer = send(client, case);
            assert!(!is_denied(&answer), "{who}: {about}: {}", answer.text());
            assert!(
                answer.status != 400 || answer.element("Code").is_none_or(|code| !code.contains("Token")),
                "{about}"
            );
            assert!(!answer.text().contains("acme_"), "{who}: {about}: {}", answer.text());
        }
    }
    assert_eq!(alice.get("/data/a/b").expect(200).body, b"bytes");
    // The full name is one that no bucket has.
    for other in [&alice, &bob, &old] {
        other.get("/acme_data/a/b").refused(400, "InvalidBucketName");
    }
    let buckets = |client: &Client| client.get("/").expect(200).elements("Name");
    assert_eq!(buckets(&bob), ["beta"]);
    assert_eq!(buckets(&temporary.bob), ["beta"]);
    assert!(!buckets(&old).iter().any(|name| name.contains("data") || name.contains('_')));
    let stolen = bob.request("PUT", "/beta/stolen").header("x-amz-copy-source", "data/a/b");
    bob.send(stolen).refused(404, "NoSuchBucket");
    let form = |client: &Client| forms::post(client, "data", "user/x", b"form", 100, &[]);
    form(&alice).expect(201);
    form(&reader).refused(403, "AccessDenied");
    form(&bob).refused(404, "NoSuchBucket");
}
