//! Versions and locks on the wire: codes, headers, conditions, and who may.

use stoker_store::Access;

use crate::client::{Body, Client, Response};
use crate::rig::{Rig, client, volume};

const FAR: &str = "2999-01-01T00:00:00Z";

fn ask(client: &Client, method: &'static str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let request = client.request(method, path).body(body.as_bytes()).kind(Body::Sha256);
    client.send(headers.iter().fold(request, |request, (name, value)| request.header(name, value)))
}

fn status(client: &Client, volume: &str, status: &str) -> Response {
    let document = format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
    ask(client, "PUT", &format!("/{volume}?versioning"), &[], &document)
}

/// Right after the start of a node its cluster is at a lower level for a moment.
fn enable(client: &Client, volume: &str) {
    while status(client, volume, "Enabled").status == 503 {
        std::thread::yield_now();
    }
    let text = client.get(&format!("/{volume}?versioning")).expect(200);
    assert_eq!(text.element("Status").as_deref(), Some("Enabled"));
}

fn put(client: &Client, path: &str, body: &str, headers: &[(&str, &str)]) -> String {
    let answer = ask(client, "PUT", path, headers, body).expect(200);
    answer.header("x-amz-version-id").unwrap().to_owned()
}

#[test]
fn versions_are_told_apart_by_their_ids() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/dir/a");
    ask(&client, "PUT", &path, &[], "before").expect(200);
    enable(&client, &volume);
    let first = put(&client, &path, "first", &[("x-amz-meta-n", "1")]);
    let second = put(&client, &path, "second", &[]);
    let at = |id: &str| client.get(&format!("{path}?versionId={id}"));
    assert_eq!(at("null").expect(200).text(), "before");
    let found = at(&first).expect(200);
    assert_eq!((found.text().as_str(), found.header("x-amz-meta-n")), ("first", Some("1")));
    assert_eq!(found.header("x-amz-version-id"), Some(first.as_str()));
    assert_eq!(client.get(&path).expect(200).header("x-amz-version-id"), Some(second.as_str()));
    at("nonsense").refused(404, "NoSuchVersion");
    at(&"0".repeat(40)).refused(404, "NoSuchVersion");
    // Conditions and ranges are of the version that is asked for.
    let etag = found.header("etag").unwrap();
    ask(&client, "GET", &format!("{path}?versionId={first}"), &[("if-none-match", etag)], "").expect(304);
    ask(&client, "GET", &format!("{path}?versionId={second}"), &[("if-match", etag)], "")
        .refused(412, "PreconditionFailed");
    let part =
        ask(&client, "GET", &format!("{path}?versionId={first}"), &[("range", "bytes=1-2")], "").expect(206);
    assert_eq!(part.text(), "ir");
    let source = format!("{volume}/dir/a?versionId={first}");
    let copy =
        ask(&client, "PUT", &format!("/{volume}/copy"), &[("x-amz-copy-source", &source)], "").expect(200);
    assert_eq!(copy.header("x-amz-copy-source-version-id"), Some(first.as_str()));
    assert_eq!(client.get(&format!("/{volume}/copy")).expect(200).text(), "first");
    let size = ask(
        &client,
        "GET",
        &format!("{path}?attributes&versionId={first}"),
        &[("x-amz-object-attributes", "ObjectSize")],
        "",
    );
    assert_eq!(size.expect(200).element("ObjectSize").as_deref(), Some("5"));

    let marker = ask(&client, "DELETE", &path, &[], "").expect(204);
    assert_eq!(marker.header("x-amz-delete-marker"), Some("true"));
    let marker = marker.header("x-amz-version-id").unwrap();
    let hidden = client.get(&path);
    assert_eq!(
        (hidden.header("x-amz-delete-marker"), hidden.header("x-amz-version-id")),
        (Some("true"), Some(marker))
    );
    hidden.refused(404, "NoSuchKey");
    let there = at(marker);
    assert_eq!(there.header("x-amz-delete-marker"), Some("true"));
    there.refused(405, "MethodNotAllowed");
    let source = format!("{volume}/dir/a?versionId={marker}");
    ask(&client, "PUT", &format!("/{volume}/b"), &[("x-amz-copy-source", &source)], "")
        .refused(400, "InvalidRequest");
    client.get(&format!("/{volume}/never")).refused(404, "NoSuchKey");
    let list = client.get(&format!("/{volume}?versions&prefix=dir%2F")).expect(200);
    assert_eq!(list.elements("VersionId"), [marker, second.as_str(), first.as_str(), "null"]);
    assert_eq!(list.elements("IsLatest"), ["true", "false", "false", "false"]);
    // Names of the history are nobody's to write, and what lies there is read by who may read versions of the key.
    let inside = format!("/{volume}/.stoker-versions/dir/a/{first}");
    ask(&client, "PUT", &inside, &[], "x").refused(400, "InvalidArgument");
    let access = Access { prefixes: vec![format!("{volume}/.stoker-versions/")], ..Access::default() };
    Rig::get().add_key("versions-inside", access).get(&inside).refused(403, "AccessDenied");
    let access = Access { prefixes: vec![format!("{volume}/dir/")], read_only: true, ..Access::default() };
    let reader = Rig::get().add_key("versions-reader", access);
    reader.get(&format!("{path}?versionId={first}")).expect(200);
    ask(&reader, "DELETE", &format!("{path}?versionId={first}"), &[], "").refused(403, "AccessDenied");
    reader.get(&format!("/{volume}/copy?versionId=null")).refused(403, "AccessDenied");
    status(&reader, &volume, "Suspended").refused(403, "AccessDenied");
    status(&client, &volume, "Off").refused(400, "IllegalVersioningConfigurationException");
}

#[test]
fn what_is_locked_is_refused_by_name() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/a");
    let lock = [("x-amz-object-lock-mode", "GOVERNANCE"), ("x-amz-object-lock-retain-until-date", FAR)];
    ask(&client, "PUT", &path, &lock, "x").refused(400, "InvalidRequest");
    let configure = |rule: &str| {
        let document = format!(
            "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>{rule}</ObjectLockConfiguration>"
        );
        ask(&client, "PUT", &format!("/{volume}?object-lock"), &[], &document)
    };
    configure("").refused(409, "InvalidBucketState");
    enable(&client, &volume);
    configure("").expect(200);
    status(&client, &volume, "Suspended").refused(409, "InvalidBucketState");
    ask(&client, "PUT", &path, &lock[..1], "x").refused(400, "InvalidArgument");
    let id = put(&client, &path, "x", &lock);
    let version = format!("{path}?versionId={id}");
    let head = ask(&client, "HEAD", &version, &[], "").expect(200);
    assert_eq!(head.header("x-amz-object-lock-mode"), Some("GOVERNANCE"));
    assert_eq!(head.header("x-amz-object-lock-retain-until-date"), Some("2999-01-01T00:00:00.000Z"));
    ask(&client, "DELETE", &version, &[], "").refused(403, "AccessDenied");
    let bypass = [("x-amz-bypass-governance-retention", "true")];
    let hold = |state: &str| {
        let document = format!("<LegalHold><Status>{state}</Status></LegalHold>");
        ask(&client, "PUT", &format!("{version}&legal-hold"), &[], &document)
    };
    hold("on").refused(400, "MalformedXML");
    hold("ON").expect(200);
    assert_eq!(
        client.get(&format!("{version}&legal-hold")).expect(200).element("Status").as_deref(),
        Some("ON")
    );
    ask(&client, "DELETE", &version, &bypass, "").refused(403, "AccessDenied");
    hold("OFF").expect(200);
    let retain = |mode: &str, until: &str, headers: &[(&str, &str)]| {
        let document =
            format!("<Retention><Mode>{mode}</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>");
        ask(&client, "PUT", &format!("{version}&retention"), headers, &document)
    };
    retain("GOVERNANCE", "2998-01-01T00:00:00Z", &[]).refused(403, "AccessDenied");
    retain("GOVERNANCE", "2001-01-01T00:00:00Z", &bypass).refused(400, "InvalidArgument");
    retain("COMPLIANCE", "2998-01-01T00:00:00Z", &bypass).expect(200);
    retain("COMPLIANCE", "2997-01-01T00:00:00Z", &bypass).refused(403, "AccessDenied");
    let document = format!("<Delete><Object><Key>a</Key><VersionId>{id}</VersionId></Object></Delete>");
    let answer = ask(&client, "POST", &format!("/{volume}?delete"), &bypass, &document).expect(200);
    assert_eq!(answer.elements("Code"), ["AccessDenied"]);
    assert_eq!(client.get(&version).expect(200).text(), "x");
    ask(&client, "DELETE", &format!("/{volume}"), &[], "").refused(409, "BucketNotEmpty");
    let unlocked = put(&client, &format!("/{volume}/b"), "y", &[]);
    client
        .get(&format!("/{volume}/b?retention&versionId={unlocked}"))
        .refused(404, "NoSuchObjectLockConfiguration");
}
