//! Buckets are volumes.

use crate::client::{Body, Client};
use crate::rig::{client, volume};

fn create(client: &Client, name: &str, document: &str) -> crate::client::Response {
    client.send(client.request("PUT", &format!("/{name}")).body(document.as_bytes()).kind(Body::Sha256))
}

#[test]
fn a_bucket_lives_and_dies() {
    let client = client();
    let name = "bucket-that-lives";
    create(&client, name, "").expect(200);
    create(&client, name, "").refused(409, "BucketAlreadyOwnedByYou");
    let head = client.send(client.request("HEAD", &format!("/{name}"))).expect(200);
    assert_eq!(head.header("x-amz-bucket-region"), Some("stoker"));
    assert!(client.get("/").expect(200).elements("Name").contains(&name.to_owned()));
    client.put(&format!("/{name}/a"), b"x").expect(200);
    client.send(client.request("DELETE", &format!("/{name}"))).refused(409, "BucketNotEmpty");
    client.send(client.request("DELETE", &format!("/{name}/a"))).expect(204);
    // Uploads that nobody finishes keep no bucket.
    client.send(client.request("POST", &format!("/{name}/begun?uploads"))).expect(200);
    client.send(client.request("DELETE", &format!("/{name}"))).expect(204);
    assert_eq!(client.send(client.request("HEAD", &format!("/{name}"))).expect(404).body, b"");
    client.get(&format!("/{name}?list-type=2")).refused(404, "NoSuchBucket");
}

#[test]
fn names_and_places_are_checked() {
    let client = client();
    for name in ["ab", "Upper", "a..b", "192.168.0.1", "a.-b", "a-.b"] {
        create(&client, name, "").refused(400, "InvalidBucketName");
    }
    let elsewhere = "<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>";
    create(&client, "bucket-elsewhere", elsewhere).refused(400, "IllegalLocationConstraintException");
    create(&client, "bucket-broken", "<CreateBucket").refused(400, "MalformedXML");
}

#[test]
fn questions_about_a_bucket_are_answered() {
    let (client, volume) = (client(), volume());
    let location = client.get(&format!("/{volume}?location")).expect(200);
    assert!(location.text().contains("LocationConstraint"));
    let versioning = client.get(&format!("/{volume}?versioning")).expect(200);
    assert!(versioning.text().contains("VersioningConfiguration") && versioning.element("Status").is_none());
    client.get(&format!("/{volume}?location")).expect(200);
    client.send(client.request("PATCH", &format!("/{volume}"))).refused(405, "MethodNotAllowed");
}
