//! Lifecycle rules on the wire: documents, codes, headers, and who may. That rules are carried out is shown in the tests of the node.

use stoker_store::Access;

use crate::client::{Client, Response};
use crate::rig::{Rig, client, volume};

fn set(client: &Client, volume: &str, rules: &str) -> Response {
    let document = format!(
        "<LifecycleConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{rules}</LifecycleConfiguration>"
    );
    client.put(&format!("/{volume}?lifecycle"), document.as_bytes())
}

#[test]
fn rules_come_back_as_they_were_given_and_objects_say_when_they_expire() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}?lifecycle");
    let rules = "<Rule><ID>soon &amp; gone</ID><Filter><Prefix>logs/</Prefix></Filter><Status>Enabled</Status>\
        <Expiration><Days>3</Days></Expiration></Rule>";
    client.put(&format!("/{volume}/logs/a"), b"bytes").expect(200);
    client.put(&format!("/{volume}/other"), b"bytes").expect(200);
    client.get(&path).refused(404, "NoSuchLifecycleConfiguration");
    set(&client, &volume, rules).expect(200);
    let text = client.get(&path).expect(200).text();
    assert!(text.ends_with(&format!("{rules}</LifecycleConfiguration>")), "{text}");
    for method in ["GET", "HEAD"] {
        let found = client.send(client.request(method, &format!("/{volume}/logs/a"))).expect(200);
        let expires = found.header("x-amz-expiration").unwrap();
        let (date, rule) = expires.split_once(", rule-id=").unwrap();
        assert!(date.starts_with("expiry-date=\"") && date.ends_with(" 00:00:00 GMT\""), "{expires}");
        assert_eq!(rule, "\"soon%20%26%20gone\"");
        let other = client.send(client.request(method, &format!("/{volume}/other"))).expect(200);
        assert_eq!(other.header("x-amz-expiration"), None);
    }
    // What is wrong changes nothing.
    for (wrong, status, code) in [
        ("", 400, "MalformedXML"),
        ("<Rule><Status>Enabled</Status></Rule>", 400, "MalformedXML"),
        ("<Rule><Filter/><Status>Enabled</Status></Rule>", 400, "InvalidRequest"),
        (
            "<Rule><Filter/><Status>Enabled</Status><Expiration><Days>0</Days></Expiration></Rule>",
            400,
            "InvalidArgument",
        ),
        (
            "<Rule><Filter/><Status>Enabled</Status><Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition></Rule>",
            501,
            "NotImplemented",
        ),
    ] {
        set(&client, &volume, wrong).refused(status, code);
    }
    assert_eq!(client.get(&path).expect(200).text(), text);
    client.send(client.request("DELETE", &path)).expect(204);
    client.send(client.request("DELETE", &path)).expect(204);
    client.get(&path).refused(404, "NoSuchLifecycleConfiguration");
    let found = client.get(&format!("/{volume}/logs/a")).expect(200);
    assert_eq!(found.header("x-amz-expiration"), None);
}

#[test]
fn who_may_not_write_sets_no_rules() {
    let (client, volume) = (client(), volume());
    let rules =
        "<Rule><ID>a</ID><Filter/><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>";
    let reader = Rig::get().add_key("lifecycle-reader", Access { read_only: true, ..Access::default() });
    set(&reader, &volume, rules).refused(403, "AccessDenied");
    set(&client, &volume, rules).expect(200);
    reader.get(&format!("/{volume}?lifecycle")).expect(200);
    reader.send(reader.request("DELETE", &format!("/{volume}?lifecycle"))).refused(403, "AccessDenied");
}

/// As many rules as S3 allows, and no more.
#[test]
fn a_thousand_rules_are_taken() {
    let (client, volume) = (client(), volume());
    let rule = |number: usize| {
        format!(
            "<Rule><ID>rule number {number}</ID><Filter><Prefix>runs/{number}/{}</Prefix></Filter><Status>Enabled</Status>\
             <Expiration><Days>1</Days></Expiration></Rule>",
            "p".repeat(200)
        )
    };
    let rules: Vec<String> = (0..1_001).map(rule).collect();
    set(&client, &volume, &rules.concat()).refused(400, "MalformedXML");
    let rules = rules[..1_000].concat();
    set(&client, &volume, &rules).expect(200);
    let text = client.get(&format!("/{volume}?lifecycle")).expect(200).text();
    assert!(text.ends_with(&format!("{rules}</LifecycleConfiguration>")));
}
