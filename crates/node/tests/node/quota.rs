//! The quota of a volume.

use crate::harness::*;
use stoker_store::{
    Attributes, Condition, CopyRequest, ErrorKind, Finish, PartChoice, Result, Store, Subject, VolumePolicy,
    WriteRequest,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_publish_counts_against_the_quota() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let policy = VolumePolicy { quota_bytes: 1_000, ..lazy() };
    node.volume_set("data", policy).await.unwrap();
    let full = |result: Result<_>| {
        let fault = result.expect_err("beyond the quota");
        assert_eq!((fault.kind, fault.subject), (ErrorKind::Full, Subject::Quota), "{fault}");
    };
    // Streams of which nobody said how long they are.
    let stream = async |name: &str, len: usize| {
        let mut writer = node.create("data", &key(name), WriteRequest::default()).await?;
        write(&mut writer, &vec![7; len]).await?;
        writer.finish(Finish::default()).await
    };
    stream("x", 600).await.unwrap();
    full(stream("y", 401).await);
    // With a length that is known before: what takes the place of another needs no more than it has more.
    let sized =
        async |name: &str, len: usize| put_if(&node, "data", name, &vec![8; len], Condition::default()).await;
    full(sized("y", 401).await);
    full(sized("x", 1_001).await);
    sized("x", 1_000).await.unwrap();
    sized("x", 1_000).await.unwrap();
    sized("x", 600).await.unwrap();
    let copy = CopyRequest {
        from_volume: "data".into(),
        from: key("x"),
        from_condition: Condition::default(),
        to_volume: "data".into(),
        to: key("y"),
        condition: Condition::default(),
        attributes: None,
    };
    full(node.copy(copy).await);
    let upload = node.upload_create("data", &key("y"), Attributes::default(), None).await.unwrap().upload;
    let mut part = node.upload_part("data", &key("y"), &upload, 1, None).await.unwrap();
    write(&mut part, &[7; 500]).await.unwrap();
    let etag = part.finish(Finish::default()).await.unwrap().etag;
    let choice = vec![PartChoice { number: 1, etag, checksum: None }];
    let target = key("y");
    full(
        node.upload_complete(
            "data",
            &target,
            &upload,
            choice.clone(),
            Condition::default(),
            Finish::default(),
        )
        .await,
    );
    assert_eq!(names(&node, "", None).await, ["x"]);

    // What is replaced makes room, and so does what is deleted.
    stream("x", 900).await.unwrap();
    delete(&node, "x").await.unwrap();
    node.upload_complete("data", &target, &upload, choice, Condition::default(), Finish::default())
        .await
        .unwrap();
    assert_eq!(node.volume("data").await.unwrap().bytes, 500);
    node.stop().await;
}
