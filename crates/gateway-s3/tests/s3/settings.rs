//! What buckets and objects are asked about themselves, and what cannot be set.

use stoker_store::Access;

use crate::client::{Body, Client, Response};
use crate::rig::{Rig, client, volume};

fn delete(client: &Client, path: &str) -> Response {
    client.send(client.request("DELETE", path))
}

#[test]
fn what_is_not_set_gets_the_code_that_s3_has_for_it() {
    let (client, volume) = (client(), volume());
    for (question, code) in [
        ("policy", "NoSuchBucketPolicy"),
        ("policyStatus", "NoSuchBucketPolicy"),
        ("lifecycle", "NoSuchLifecycleConfiguration"),
        ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("cors", "NoSuchCORSConfiguration"),
        ("tagging", "NoSuchTagSet"),
        ("website", "NoSuchWebsiteConfiguration"),
        ("replication", "ReplicationConfigurationNotFoundError"),
        ("publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
        ("ownershipControls", "OwnershipControlsNotFoundError"),
        ("object-lock", "ObjectLockConfigurationNotFoundError"),
        ("metrics&id=1", "NoSuchConfiguration"),
    ] {
        client.get(&format!("/{volume}?{question}")).refused(404, code);
        client.get(&format!("/no-such-volume?{question}")).refused(404, "NoSuchBucket");
    }
    for question in ["policy", "lifecycle", "encryption", "cors", "tagging", "website", "replication"] {
        delete(&client, &format!("/{volume}?{question}")).expect(204);
    }
    // The bucket itself is still there.
    client.send(client.request("HEAD", &format!("/{volume}"))).expect(200);
    for (question, root) in [
        ("notification", "<NotificationConfiguration "),
        ("logging", "<BucketLoggingStatus "),
        ("accelerate", "<AccelerateConfiguration "),
        ("analytics", "<IsTruncated>false<"),
        ("inventory", "<IsTruncated>false<"),
        ("metrics", "<IsTruncated>false<"),
        ("intelligent-tiering", "<IsTruncated>false<"),
        ("requestPayment", "<Payer>BucketOwner</Payer>"),
    ] {
        let text = client.get(&format!("/{volume}?{question}")).expect(200).text();
        assert!(text.contains(root), "{question}: {text}");
    }
    for question in ["encryption", "website", "replication"] {
        client.put(&format!("/{volume}?{question}"), b"<x/>").refused(501, "NotImplemented");
    }
    for question in ["versioning", "object-lock", "lifecycle"] {
        client.put(&format!("/{volume}?{question}"), b"<x/>").refused(400, "MalformedXML");
    }
}

#[test]
fn what_is_set_is_kept_and_goes_with_its_bucket() {
    let (client, volume) = (client(), volume());
    let cors = "<CORSConfiguration><CORSRule><AllowedMethod>PUT</AllowedMethod><AllowedMethod>GET</AllowedMethod>\
        <AllowedOrigin>https://*.app.test</AllowedOrigin><AllowedHeader>x-amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>\
        <MaxAgeSeconds>77</MaxAgeSeconds></CORSRule></CORSConfiguration>";
    let tags = "<Tagging><TagSet><Tag><Key>team</Key><Value>a &amp; b</Value></Tag></TagSet></Tagging>";
    let owner = "<OwnershipControls><Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>";
    let public = "<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>";
    let all = [
        ("cors", cors, 200, "NoSuchCORSConfiguration"),
        ("tagging", tags, 204, "NoSuchTagSet"),
        ("ownershipControls", owner, 200, "OwnershipControlsNotFoundError"),
        ("publicAccessBlock", public, 200, "NoSuchPublicAccessBlockConfiguration"),
    ];
    for (question, document, status, code) in all {
        let path = format!("/{volume}?{question}");
        client.put(&path, b"<nonsense/>").refused(400, "MalformedXML");
        client.get(&path).refused(404, code);
        client.put(&path, document.as_bytes()).expect(status);
        assert_eq!(client.get(&path).expect(200).text(), document);
        delete(&client, &path).expect(204);
        client.get(&path).refused(404, code);
        client.put(&path, document.as_bytes()).expect(status);
    }
    client.put(&format!("/{volume}?tagging"), &[b'x'; 60_000]).refused(400, "MalformedXML");
    let huge = tags.replace("</TagSet>", &format!("{}</TagSet>", " ".repeat(60_000)));
    client.put(&format!("/{volume}?tagging"), huge.as_bytes()).refused(400, "InvalidArgument");
    let reader = Rig::get().add_key("settings-looker", Access { read_only: true, ..Access::default() });
    reader.get(&format!("/{volume}?tagging")).expect(200);
    reader.put(&format!("/{volume}?tagging"), tags.as_bytes()).refused(403, "AccessDenied");

    // What the rules say is so.
    let ask = |origin: &str, method: &str, headers: &str| {
        let head = format!(
            "origin: {origin}\r\naccess-control-request-method: {method}\r\naccess-control-request-headers: {headers}\r\n"
        );
        client.plain("OPTIONS", &format!("/{volume}/a"), &head, b"")
    };
    let yes = ask("https://x.app.test", "PUT", "X-Amz-Date, x-amz-meta-a").expect(200);
    for (name, value) in [
        ("access-control-allow-origin", "https://x.app.test"),
        ("access-control-allow-methods", "PUT, GET"),
        ("access-control-allow-headers", "x-amz-date, x-amz-meta-a"),
        ("access-control-expose-headers", "ETag"),
        ("access-control-max-age", "77"),
    ] {
        assert_eq!(yes.header(name), Some(value), "{name}");
    }
    ask("https://app.test", "PUT", "").refused(403, "AccessForbidden");
    ask("https://x.app.test", "DELETE", "").refused(403, "AccessForbidden");
    ask("https://x.app.test", "PUT", "content-type").refused(403, "AccessForbidden");
    let page = |origin: &str| {
        client.send(client.request("PUT", &format!("/{volume}/a")).body(b"x").header("origin", origin))
    };
    let seen = page("https://x.app.test").expect(200);
    assert_eq!(seen.header("access-control-allow-origin"), Some("https://x.app.test"));
    assert_eq!(page("https://evil.test").expect(200).header("access-control-allow-origin"), None);

    // A bucket that is made again under the name has nothing of it.
    delete(&client, &format!("/{volume}/a")).expect(204);
    delete(&client, &format!("/{volume}")).expect(204);
    client.put(&format!("/{volume}"), b"").expect(200);
    for (question, _, _, code) in all {
        client.get(&format!("/{volume}?{question}")).refused(404, code);
    }
    ask("https://x.app.test", "PUT", "x-amz-date").refused(403, "AccessForbidden");
}

#[test]
fn there_is_one_owner_who_may_do_everything() {
    let (client, volume) = (client(), volume());
    let object = format!("/{volume}/a");
    client.get(&format!("{object}?acl")).refused(404, "NoSuchKey");
    client.put(&object, b"x").expect(200);
    for path in [&format!("/{volume}"), &object] {
        let acl = client.get(&format!("{path}?acl")).expect(200);
        assert_eq!(acl.elements("ID"), ["stoker", "stoker"]);
        assert_eq!(acl.elements("Permission"), ["FULL_CONTROL"]);
        let put = |canned: Option<&str>, body: &[u8]| {
            let mut request = client.request("PUT", &format!("{path}?acl")).body(body).kind(Body::Sha256);
            if let Some(canned) = canned {
                request = request.header("x-amz-acl", canned);
            }
            client.send(request)
        };
        put(None, &acl.body).expect(200);
        put(Some("private"), b"").expect(200);
        put(Some("public-read"), b"").refused(400, "AccessControlListNotSupported");
        let public = acl.text().replace("FULL_CONTROL", "READ");
        put(None, public.as_bytes()).refused(400, "AccessControlListNotSupported");
    }
    for question in ["retention", "legal-hold"] {
        client.get(&format!("{object}?{question}")).refused(400, "InvalidRequest");
    }
    client.send(client.request("POST", &format!("{object}?restore"))).refused(403, "InvalidObjectState");
    assert_eq!(client.get(&object).expect(200).body, b"x");
}

#[test]
fn questions_are_for_those_who_may_ask() {
    let (client, volume) = (client(), volume());
    client.put(&format!("/{volume}/in/a"), b"x").expect(200);
    client.put(&format!("/{volume}/out/a"), b"x").expect(200);
    let access = Access { prefixes: vec![format!("{volume}/in/")], read_only: true, ..Access::default() };
    let reader = Rig::get().add_key("settings-reader", access);
    reader.get(&format!("/{volume}?acl")).expect(200);
    reader.get(&format!("/{volume}/in/a?acl")).expect(200);
    reader.get(&format!("/{volume}/out/a?acl")).refused(403, "AccessDenied");
    reader.get("/no-such-volume?acl").refused(403, "AccessDenied");
    delete(&reader, &format!("/{volume}?policy")).refused(403, "AccessDenied");
    reader.put(&format!("/{volume}/in/a?acl"), b"").refused(403, "AccessDenied");
    reader.get(&format!("/{volume}?versions&prefix=in%2F")).expect(200);
    reader.get(&format!("/{volume}?versions")).refused(403, "AccessDenied");
    let unsigned = client.plain("GET", &format!("/{volume}?acl"), "", b"");
    unsigned.refused(403, "AccessDenied");
}

#[test]
fn every_file_is_its_only_version() {
    let (client, volume) = (client(), volume());
    for name in ["a", "b+c", "d/1", "d/2", "e"] {
        client.put(&format!("/{volume}/{}", name.replace('+', "%2B")), name.as_bytes()).expect(200);
    }
    let list = |query: &str| client.get(&format!("/{volume}?{query}&versions")).expect(200);
    let all = list("max-keys=1000");
    assert_eq!(all.elements("Key"), ["a", "b+c", "d/1", "d/2", "e"]);
    assert_eq!(all.elements("VersionId"), ["null"; 5]);
    assert_eq!(all.elements("IsLatest"), ["true"; 5]);
    assert!(all.elements("DeleteMarker").is_empty());
    let (mut keys, mut marker) = (Vec::new(), String::new());
    loop {
        let page = list(&format!("delimiter=%2F&encoding-type=url&key-marker={marker}&max-keys=1"));
        keys.extend(page.elements("Key"));
        let prefixes = page.text().split("<CommonPrefixes>").skip(1).map(str::to_owned).collect::<Vec<_>>();
        keys.extend(prefixes.iter().map(|text| text[8..text.find("</Prefix>").unwrap()].to_owned()));
        if page.element("IsTruncated").as_deref() == Some("false") {
            break;
        }
        marker = page.element("NextKeyMarker").unwrap().replace('/', "%2F");
    }
    assert_eq!(keys, ["a", "b%2Bc", "d/", "e"]);
    client.get(&format!("/{volume}?version-id-marker=null&versions")).refused(400, "InvalidArgument");
    // What a program does that empties a bucket by its versions.
    let document: String = all
        .elements("Key")
        .iter()
        .map(|key| format!("<Object><Key>{key}</Key><VersionId>null</VersionId></Object>"))
        .collect();
    let request = client.request("POST", &format!("/{volume}?delete"));
    let body = format!("<Delete>{document}</Delete>");
    let gone = client.send(request.body(body.as_bytes()).kind(Body::Sha256)).expect(200);
    assert_eq!(gone.elements("Key").len(), 5);
    assert!(list("prefix=").elements("Key").is_empty());
}

#[test]
fn keys_of_customers_are_refused_and_storage_classes_are_names() {
    let (client, volume) = (client(), volume());
    let path = format!("/{volume}/a");
    let header = "x-amz-server-side-encryption-customer-algorithm";
    let put =
        |name: &str, value: &str| client.send(client.request("PUT", &path).body(b"x").header(name, value));
    put(header, "AES256").refused(501, "NotImplemented");
    client.get(&path).refused(404, "NoSuchKey");
    put("x-amz-storage-class", "COLD").refused(400, "InvalidStorageClass");
    put("x-amz-storage-class", "STANDARD_IA").expect(200);
    client.send(client.request("GET", &path).header(header, "AES256")).refused(400, "InvalidRequest");
    let upload = client.send(client.request("POST", &format!("{path}?uploads"))).expect(200);
    let part = format!("{path}?partNumber=1&uploadId={}", upload.element("UploadId").unwrap());
    client
        .send(client.request("PUT", &part).body(b"x").header(header, "AES256"))
        .refused(400, "InvalidRequest");
    let listed = client.get(&format!("/{volume}?list-type=2")).expect(200);
    assert_eq!(listed.elements("StorageClass"), ["STANDARD"]);
}

#[test]
fn a_bucket_is_made_with_its_ownership() {
    let (client, path) = (client(), format!("/{}-owned", volume()));
    let make = |ownership: &str| {
        client.send(client.request("PUT", &path).header("x-amz-object-ownership", ownership))
    };
    make("ObjectWriter").refused(501, "NotImplemented");
    client.get(&path).refused(404, "NoSuchBucket");
    make("BucketOwnerEnforced").expect(200);
    let told = client.get(&format!("{path}?ownershipControls")).expect(200);
    assert_eq!(told.element("ObjectOwnership").as_deref(), Some("BucketOwnerEnforced"));
}

#[test]
fn a_policy_is_kept_and_followed() {
    let (client, volume) = (client(), volume());
    let policy = format!("/{volume}?policy");
    let put = |statements: &str| {
        let document = format!(r#"{{"Version": "2012-10-17", "Statement": [{statements}]}}"#);
        (client.put(&policy, document.as_bytes()), document)
    };
    for name in ["kept/a", "other"] {
        client.put(&format!("/{volume}/{name}"), b"x").expect(200);
    }
    let deny = format!(
        r#"{{"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::{volume}/kept/*"}}"#
    );
    let (answer, document) = put(&deny);
    answer.expect(204);
    let told = client.get(&policy).expect(200);
    assert_eq!((told.text(), told.header("content-type")), (document, Some("application/json")));
    let status = client.get(&format!("/{volume}?policyStatus")).expect(200).text();
    assert!(status.contains("<IsPublic>FALSE</IsPublic>"), "{status}");
    delete(&client, &format!("/{volume}/kept/a")).refused(403, "AccessDenied");
    delete(&client, &format!("/{volume}/other")).expect(204);
    let all = b"<Delete><Object><Key>kept/a</Key></Object><Object><Key>none</Key></Object></Delete>";
    let request = client.request("POST", &format!("/{volume}?delete")).body(all).kind(Body::Sha256);
    let told = client.send(request).expect(200).text();
    assert!(told.contains("<Code>AccessDenied</Code>") && told.contains("<Key>none</Key>"), "{told}");
    client.get(&format!("/{volume}/kept/a")).expect(200);

    // What is refused changes nothing.
    for (statement, what) in [
        (r#"{"Effect": "Deny"}"#, "no Principal"),
        (r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "*"}"#, "public"),
        (
            r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::other-bucket/*"}"#,
            "not in the bucket",
        ),
    ] {
        let refused = put(statement).0;
        assert!(refused.text().contains(what), "{}", refused.text());
        refused.refused(400, "MalformedPolicy");
    }
    delete(&client, &format!("/{volume}/kept/a")).refused(403, "AccessDenied");

    // This address is one without TLS. Whoever may change all of the bucket can take it back.
    let tls = r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*",
        "Condition": {"Bool": {"aws:SecureTransport": "false"}}}"#;
    put(tls).0.expect(204);
    client.get(&format!("/{volume}/kept/a")).refused(403, "AccessDenied");
    client.get(&format!("/{volume}")).refused(403, "AccessDenied");
    client.put(&format!("/{volume}/new"), b"x").refused(403, "AccessDenied");
    client.put(&format!("/{volume}?tagging"), b"<Tagging><TagSet/></Tagging>").refused(403, "AccessDenied");
    delete(&client, &policy).expect(204);
    client.get(&policy).refused(404, "NoSuchBucketPolicy");
    delete(&client, &format!("/{volume}/kept/a")).expect(204);
}
