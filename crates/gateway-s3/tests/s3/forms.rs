//! Uploads from a browser's form, and the questions that a browser asks first.

use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use stoker_gateway_s3::GatewayOptions;

use crate::client::{Client, Response, amz_date, hex, now_s};
use crate::rig::{Rig, client, pattern, volume};

/// A form whose policy allows keys below `user/` of at most `size_max` bytes.
pub fn post(
    client: &Client,
    volume: &str,
    key: &str,
    body: &[u8],
    size_max: usize,
    more: &[(&str, &str)],
) -> Response {
    post_with(client, volume, key, body, size_max, more, "")
}

/// The same with more conditions in the policy.
pub fn post_with(
    client: &Client,
    volume: &str,
    key: &str,
    body: &[u8],
    size_max: usize,
    more: &[(&str, &str)],
    conditions: &str,
) -> Response {
    let time = amz_date(now_s());
    let credential = format!("{}/{}/{}/s3/aws4_request", client.access_key, &time[..8], client.region);
    let expires = amz_date(now_s() + 600);
    let expires = format!(
        "{}-{}-{}T{}:{}:{}.000Z",
        &expires[..4],
        &expires[4..6],
        &expires[6..8],
        &expires[9..11],
        &expires[11..13],
        &expires[13..15]
    );
    let policy = STANDARD.encode(format!(
        r#"{{"expiration":"{expires}","conditions":[{conditions}{{"bucket":"{volume}"}},["starts-with","$key","user/"],
        ["content-length-range",1,{size_max}],["starts-with","$success_action_status",""],["starts-with","$x-amz-meta-a",""],
        {{"x-amz-credential":"{credential}"}},{{"x-amz-date":"{time}"}},{{"x-amz-algorithm":"AWS4-HMAC-SHA256"}}]}}"#
    ));
    let signature =
        hex(sign(&Key::new(HMAC_SHA256, &client.signing_key(&time[..8])), policy.as_bytes()).as_ref());
    let mut fields = vec![
        ("key", key),
        ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
        ("x-amz-credential", &credential),
        ("x-amz-date", &time),
        ("policy", &policy),
        ("x-amz-signature", &signature),
        ("x-amz-meta-a", "b"),
        ("success_action_status", "201"),
    ];
    fields.extend_from_slice(more);
    let mut form = Vec::new();
    for (name, value) in fields {
        form.extend_from_slice(
            format!("--XyZ\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").as_bytes(),
        );
    }
    form.extend_from_slice(
        b"--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"photo.jpg\"\r\nContent-Type: image/jpeg\r\n\r\n",
    );
    form.extend_from_slice(body);
    form.extend_from_slice(b"\r\n--XyZ--\r\n");
    client.plain("POST", &format!("/{volume}"), "content-type: multipart/form-data; boundary=XyZ\r\n", &form)
}

#[test]
fn a_form_uploads_a_file() {
    let (client, volume) = (client(), volume());
    let body = pattern(4, 5_000_000);
    let answer = post(&client, &volume, "user/${filename}", &body, 10_000_000, &[]).expect(201);
    assert_eq!(answer.element("Key").as_deref(), Some("user/photo.jpg"));
    assert_eq!(answer.header("location"), Some(format!("/{volume}/user/photo.jpg").as_str()));
    let get = client.get(&format!("/{volume}/user/photo.jpg")).expect(200);
    assert!(get.body == body);
    assert_eq!(get.header("x-amz-meta-a"), Some("b"));
}

/// The policy is what is signed: a type that stands beside the file is not, and one in a field has to be allowed.
#[test]
fn only_a_field_sets_the_type_of_a_form_s_file() {
    let (client, volume) = (client(), volume());
    post(&client, &volume, "user/a", b"x", 10, &[]).expect(201);
    client.put(&format!("/{volume}/plain"), b"x").expect(200);
    let kind = |path: &str| client.get(path).expect(200).header("content-type").map(str::to_owned);
    assert_eq!(kind(&format!("/{volume}/user/a")), kind(&format!("/{volume}/plain")), "as if none was given");
    assert_ne!(kind(&format!("/{volume}/user/a")).as_deref(), Some("image/jpeg"));
    post(&client, &volume, "user/b", b"x", 10, &[("Content-Type", "text/html")]).refused(403, "AccessDenied");
    let allowed = r#"["starts-with","$Content-Type","image/"],"#;
    let png = [("Content-Type", "image/png")];
    post_with(&client, &volume, "user/c", b"x", 10, &png, allowed).expect(201);
    assert_eq!(kind(&format!("/{volume}/user/c")).as_deref(), Some("image/png"));
    let html = [("Content-Type", "text/html")];
    post_with(&client, &volume, "user/d", b"x", 10, &html, allowed).refused(403, "AccessDenied");
}

#[test]
fn a_form_sends_the_browser_on_and_sets_tags() {
    let (client, volume) = (client(), volume());
    let allowed = r#"["starts-with","$success_action_redirect","http"],["starts-with","$tagging",""],"#;
    let send = |key: &str, url: &str, tags: &str| {
        let more = [("success_action_redirect", url), ("tagging", tags)];
        post_with(&client, &volume, key, b"x", 10, &more, allowed)
    };
    let tags = "<Tagging><TagSet><Tag><Key>a b</Key><Value>1&amp;2</Value></Tag><Tag><Key>c</Key><Value/></Tag></TagSet></Tagging>";
    for (url, joined) in [("https://app.test/done", "?"), ("http://app.test/done?x=1", "&")] {
        let answer = send("user/a b", url, tags).expect(303);
        let etag = answer.header("etag").unwrap().trim_matches('"').to_owned();
        let target = format!("{url}{joined}bucket={volume}&key=user%2Fa%20b&etag=%22{etag}%22");
        assert_eq!(answer.header("location"), Some(target.as_str()));
    }
    let got = client.get(&format!("/{volume}/user/a%20b?tagging")).expect(200);
    assert_eq!(
        (got.elements("Key"), got.element("Value")),
        (vec!["a b".to_owned(), "c".to_owned()], Some("1&amp;2".to_owned()))
    );
    // No address: as if none was given.
    send("user/b", "https//app.test", tags).expect(201);
    send("user/c", "http://app.test/", "<Tagging>").refused(400, "MalformedXML");
    post(&client, &volume, "user/d", b"x", 10, &[("success_action_redirect", "http://app.test/")])
        .refused(403, "AccessDenied");
    client.get(&format!("/{volume}/user/c")).refused(404, "NoSuchKey");
}

#[test]
fn a_form_may_only_what_its_policy_says() {
    let (client, volume) = (client(), volume());
    post(&client, &volume, "other/a", b"x", 10, &[]).refused(403, "AccessDenied");
    post(&client, &volume, "${filename}", b"x", 10, &[]).refused(403, "AccessDenied");
    let named = r#"["starts-with","$key","photo"],"#;
    post_with(&client, &volume, "${filename}", b"x", 10, &[], named).refused(403, "AccessDenied");
    post(&client, &volume, "user/a", b"too long for it", 10, &[]).refused(400, "EntityTooLarge");
    post(&client, &volume, "user/a", b"", 10, &[]).refused(400, "EntityTooSmall");
    post(&client, &volume, "user/a", b"x", 10, &[("x-amz-meta-extra", "1")]).refused(403, "AccessDenied");
    let mode = [("x-amz-meta-stoker-mode", "4755")];
    let allowed = r#"["starts-with","$x-amz-meta-stoker-mode",""],"#;
    post_with(&client, &volume, "user/b", b"x", 10, &mode, allowed).expect(201);
    let got = client.get(&format!("/{volume}/user/b")).expect(200);
    assert_eq!(got.header("x-amz-meta-stoker-mode"), Some("4755"));
    client.send(client.request("DELETE", &format!("/{volume}/user/b"))).expect(204);
    let liar = Client { secret_key: "guess".to_owned(), ..client.clone() };
    post(&liar, &volume, "user/a", b"x", 10, &[]).refused(403, "SignatureDoesNotMatch");
    let form = b"--XyZ\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\na\r\n--XyZ\r\nContent-Disposition: form-data; \
        name=\"file\"\r\n\r\nx\r\n--XyZ--\r\n";
    let kind = "content-type: multipart/form-data; boundary=XyZ\r\n";
    client.plain("POST", &format!("/{volume}"), kind, form).refused(403, "AccessDenied");
    client.plain("POST", &format!("/{volume}"), kind, b"nonsense").refused(400, "MalformedPOSTRequest");
    assert_eq!(
        client.get(&format!("/{volume}?list-type=2")).expect(200).element("KeyCount").as_deref(),
        Some("0")
    );
}

#[test]
fn browsers_get_their_answer_before_they_sign() {
    let rig = Rig::get();
    let ask = "origin: https://app.test\r\naccess-control-request-method: PUT\r\n";
    client().plain("OPTIONS", "/vol/a", ask, b"").refused(403, "AccessForbidden");
    let options =
        GatewayOptions { cors_origins: vec!["https://app.test".to_owned()], ..GatewayOptions::default() };
    let gateway = rig.other_gateway(options);
    let client = Client { address: gateway.addresses()[0], ..client() };
    let answer = client.plain("OPTIONS", "/vol/a", ask, b"").expect(200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.test"));
    let other = ask.replace("app", "evil");
    client.plain("OPTIONS", "/vol/a", &other, b"").refused(403, "AccessForbidden");
    let refused =
        client.plain("GET", "/vol/a", "origin: https://app.test\r\n", b"").refused(403, "AccessDenied");
    assert_eq!(refused.header("access-control-allow-origin"), Some("https://app.test"));
}
