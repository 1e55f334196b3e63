//! Who may do what.

use stoker_store::Access;

use crate::client::Client;
use crate::rig::{Rig, client, volume};

#[test]
fn a_reader_only_reads() {
    let volume = volume();
    let path = format!("/{volume}/a");
    client().put(&path, b"x").expect(200);
    let reader = Rig::get().add_key("reader", Access { read_only: true, ..Access::default() });
    reader.get(&path).expect(200);
    reader.get(&format!("/{volume}?list-type=2")).expect(200);
    reader.put(&path, b"y").refused(403, "AccessDenied");
    for (method, path) in [
        ("DELETE", path.clone()),
        ("PUT", "/bucket-of-reader".to_owned()),
        ("DELETE", format!("/{volume}")),
        ("POST", format!("{path}?uploads")),
        ("DELETE", format!("{path}?tagging")),
    ] {
        reader.send(reader.request(method, &path)).refused(403, "AccessDenied");
    }
    let copy = reader.request("PUT", &format!("/{volume}/b")).header("x-amz-copy-source", &path);
    reader.send(copy).refused(403, "AccessDenied");
    let delete = reader.request("POST", &format!("/{volume}?delete"));
    reader.send(delete.body(b"<Delete><Object><Key>a</Key></Object></Delete>")).refused(403, "AccessDenied");
    assert_eq!(client().get(&path).expect(200).body, b"x");
}

#[test]
fn prefixes_are_walls() {
    let (volume, other) = (volume(), volume());
    let boss = client();
    for key in ["in/a", "out/a"] {
        boss.put(&format!("/{volume}/{key}"), b"x").expect(200);
    }
    boss.put(&format!("/{other}/a"), b"x").expect(200);
    let access = Access { prefixes: vec![format!("{volume}/in/")], ..Access::default() };
    let limited = Rig::get().add_key("limited", access);
    limited.get(&format!("/{volume}/in/a")).expect(200);
    limited.put(&format!("/{volume}/in/b"), b"y").expect(200);
    limited.get(&format!("/{volume}?list-type=2&prefix=in%2F")).expect(200);
    limited.send(limited.request("HEAD", &format!("/{volume}"))).expect(200);
    assert_eq!(limited.get("/").expect(200).elements("Name"), std::slice::from_ref(&volume));

    for path in [format!("/{volume}/out/a"), format!("/{volume}/in"), format!("/{other}/a")] {
        limited.get(&path).refused(403, "AccessDenied");
        limited.put(&path, b"y").refused(403, "AccessDenied");
    }
    for query in ["list-type=2", "list-type=2&prefix=in", "prefix=out%2F", "uploads"] {
        limited.get(&format!("/{volume}?{query}")).refused(403, "AccessDenied");
    }
    limited.get(&format!("/{other}?location")).refused(403, "AccessDenied");
    limited.send(limited.request("DELETE", &format!("/{volume}"))).refused(403, "AccessDenied");
    let copy = |from: &str, to: &str| {
        let request = limited.request("PUT", &format!("/{volume}/{to}"));
        limited.send(request.header("x-amz-copy-source", &format!("{volume}/{from}")))
    };
    copy("in/a", "in/c").expect(200);
    copy("out/a", "in/c").refused(403, "AccessDenied");
    copy("in/a", "out/c").refused(403, "AccessDenied");
    let delete = limited
        .request("POST", &format!("/{volume}?delete"))
        .body(b"<Delete><Object><Key>in/a</Key></Object><Object><Key>out/a</Key></Object></Delete>");
    let answer = limited.send(delete).expect(200);
    assert_eq!(
        (answer.elements("Deleted").len(), answer.elements("Code")),
        (1, vec!["AccessDenied".to_owned()])
    );
    boss.get(&format!("/{volume}/out/a")).expect(200);
}

#[test]
fn any_region_is_signed_for() {
    let path = format!("/{}/a", volume());
    for region in ["us-east-1", "eu-west-1", "stoker"] {
        let client = Client { region: region.to_owned(), ..client() };
        client.put(&path, region.as_bytes()).expect(200);
        assert_eq!(client.get(&path).expect(200).body, region.as_bytes());
    }
    let nameless = Client { region: String::new(), ..client() };
    nameless.get(&path).refused(400, "AuthorizationHeaderMalformed");
}

#[test]
fn strangers_stay_outside() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/a");
    let stranger = Client { access_key: "nobody".to_owned(), ..client.clone() };
    stranger.get(&path).refused(403, "InvalidAccessKeyId");
    stranger.get("/").refused(403, "InvalidAccessKeyId");
    let liar = Client { secret_key: "guess".to_owned(), ..client.clone() };
    liar.get(&path).refused(403, "SignatureDoesNotMatch");
    liar.get(&format!("/{volume}?list-type=2")).refused(403, "SignatureDoesNotMatch");
    for ahead_s in [901, -1000] {
        let skewed = Client { clock_ahead_s: ahead_s, ..client.clone() };
        skewed.get(&path).refused(403, "RequestTimeTooSkewed");
        skewed.get("/").refused(403, "RequestTimeTooSkewed");
    }
    client.plain("GET", &path, "", b"").refused(403, "AccessDenied");
    client.plain("GET", "/", "", b"").refused(403, "AccessDenied");
    client.plain("GET", &path, "authorization: AWS k:c2ln\r\n", b"").refused(400, "InvalidRequest");
    client
        .plain("GET", &path, "authorization: AWS4-HMAC-SHA256 nonsense\r\n", b"")
        .refused(400, "AuthorizationHeaderMalformed");
    let owner = client.request("GET", &path).header("x-amz-expected-bucket-owner", "111122223333");
    client.send(owner).refused(403, "AccessDenied");
}
