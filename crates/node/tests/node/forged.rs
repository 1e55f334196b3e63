//! Metadata in our name that we did not write: refused at the door, ignored in the lake, never a reason to delete.

use std::sync::Arc;

use stoker_lake::{Lake, PutOptions, TwinLake};
use stoker_node::{LakeOpener, Node, NodeOptions};
use stoker_salvage::{SalvageOptions, SalvageReport, StoppedNode, Target, salvage};
use stoker_store::{
    Attributes, CopyRequest, ErrorKind, Finish, LakeMode, Store, VolumeOptions, VolumePolicy, WriteRequest,
};

use crate::harness::*;

fn with_meta(name: &str, value: &str) -> Attributes {
    let meta = vec![("colour".to_owned(), "red".to_owned()), (name.to_owned(), value.to_owned())];
    Attributes { meta, ..Attributes::default() }
}

#[tokio::test]
async fn nobody_gives_a_file_metadata_in_our_name() {
    let home = Home::new(eager());
    let node = home.start().await;
    put(&node, "plain", b"plain").await;
    for name in ["stoker-version", "stoker-mode", "stoker-mac", "Stoker-Name", "stoker-whatever"] {
        let forged = with_meta(name, "1");
        let refused = |what: &str, kind: Option<ErrorKind>| {
            assert_eq!(kind, Some(ErrorKind::Invalid), "{what} with {name}");
        };
        let request = WriteRequest { attributes: forged.clone(), ..WriteRequest::default() };
        refused("create", node.create("data", &key("a"), request).await.err().map(|fault| fault.kind));
        let begun = node.upload_create("data", &key("a"), forged.clone(), None).await;
        refused("an upload", begun.err().map(|fault| fault.kind));
        let copy = CopyRequest { attributes: Some(forged.clone()), ..copy_request("plain", "a") };
        refused("a copy", node.copy(copy).await.err().map(|fault| fault.kind));
    }
    let fine = WriteRequest { attributes: with_meta("stoker-seal", "1"), ..WriteRequest::default() };
    let mut writer = node.create("data", &key("sealed"), fine).await.unwrap();
    write(&mut writer, b"1").await.unwrap();
    writer.finish(Finish::default()).await.unwrap();
    assert_eq!(names(&node, "", None).await, ["plain", "sealed"]);
    node.stop().await;
}

/// A node whose lake others can write to.
struct Open {
    home: Home,
    lake: Arc<TwinLake>,
}

impl Open {
    fn new() -> Open {
        Open { home: Home::new(eager()), lake: Arc::new(TwinLake::new(1)) }
    }

    fn opener(&self) -> LakeOpener {
        let lake = self.lake.clone();
        LakeOpener(Arc::new(move |_| lake.clone() as Arc<dyn Lake>))
    }

    async fn start(&self) -> Arc<Node> {
        let node = NodeOptions {
            lake: Some("twin://lake".into()),
            lake_opener: Some(self.opener()),
            ..self.home.options()
        };
        Node::open(node).await.unwrap()
    }

    async fn foreign(&self, key: &str, body: &[u8], meta: &[(&str, &str)]) {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let meta = meta.iter().map(pair).collect();
        let attributes = stoker_lake::Attributes { meta, ..stoker_lake::Attributes::default() };
        let options = PutOptions { attributes, ..PutOptions::default() };
        self.lake.put(key.as_bytes(), vec![body.to_vec().into()], options).await.unwrap();
    }

    /// Takes the catalog away and builds it again.
    async fn salvage(&self) -> SalvageReport {
        let options = self.home.options();
        std::fs::remove_file(options.dir.join("catalog.redb")).unwrap();
        let drives = options.drives.iter().map(|drive| drive.path.clone()).collect();
        let options = SalvageOptions {
            home: StoppedNode {
                dir: options.dir.clone(),
                drives,
                secrets: stoker_node::secrets_kept(&options.dir).unwrap(),
            },
            others: Vec::new(),
            target: Target::Embedded,
            backup: None,
            lake_options: options.lake_options,
            lake_opener: Some(self.opener()),
        };
        salvage(&options, &|_, _| {}).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn salvage_deletes_nothing_on_the_word_of_metadata() {
    let open = Open::new();
    let node = open.start().await;
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    let request = WriteRequest {
        attributes: Attributes { mode: Some(0o100_640), owner: Some((7, 8)), ..Attributes::default() },
        ..WriteRequest::default()
    };
    let mut writer = node.create("data", &key("tenant/victim"), request).await.unwrap();
    write(&mut writer, b"precious").await.unwrap();
    writer.finish(Finish::default()).await.unwrap();
    put(&node, "tenant/other", b"other").await;
    drained(&node, "tenant/victim").await;
    drained(&node, "tenant/other").await;
    // What a bucket tells of its objects anybody can copy, and say of another one.
    let victim = open.lake.head(b"tenant/victim").await.unwrap().unwrap();
    let told = victim.attributes.unwrap().meta;
    let name = &told.iter().find(|(name, _)| name == "stoker-name").unwrap().1;
    let later = format!("{}-{}", name.rsplit_once('-').unwrap().0, u64::MAX);
    let forged: Vec<(&str, &str)> = told
        .iter()
        .map(|(name, value)| match name.as_str() {
            "stoker-name" => ("stoker-name", later.as_str()),
            "stoker-mode" => ("stoker-mode", "104755"),
            "stoker-owner" => ("stoker-owner", "0:0"),
            name => (name, value.as_str()),
        })
        .collect();
    open.foreign("mallory/x", b"forged!!", &forged).await;
    node.stop().await;
    drop(node);
    let report = open.salvage().await;
    assert_eq!(report.deletes, 0, "{report:?}");
    let node = open.start().await;
    let all = ["mallory/x", "tenant/other", "tenant/victim"];
    assert_eq!(names(&node, "", None).await, all);
    assert_eq!(get(&node, "tenant/victim").await.unwrap(), b"precious");
    let attributes = node.stat("data", &key("tenant/victim")).await.unwrap().attributes;
    assert_eq!((attributes.mode, attributes.owner), (Some(0o100_640), Some((7, 8))));
    let attributes = node.stat("data", &key("mallory/x")).await.unwrap().attributes;
    assert_eq!((attributes.mode, attributes.owner, attributes.meta.len()), (None, None, 0));
    assert_eq!(get(&node, "mallory/x").await.unwrap(), b"forged!!");
    node.stop().await;
    drop(node);
    assert_eq!(open.lake.objects().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lake_gives_files_no_mode_and_no_owner_that_we_did_not_write() {
    let open = Open::new();
    let meta = [
        ("colour", "red"),
        ("stoker-mode", "104755"),
        ("stoker-owner", "0:0"),
        ("stoker-version", "000000000000000000000001"),
        ("stoker-etag", "e"),
    ];
    open.foreign("a", b"1", &meta).await;
    let node = open.start().await;
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    let check = async |what: &str| {
        let attributes = node.stat("data", &key("a")).await.unwrap().attributes;
        assert_eq!((attributes.mode, attributes.owner), (None, None), "{what}");
        assert_eq!(attributes.meta, [("colour".to_owned(), "red".to_owned())], "{what}");
        assert_eq!(get(&node, "a").await.unwrap(), b"1", "{what}");
    };
    check("read-only").await;
    node.volume_set("data", VolumePolicy { lake_mode: LakeMode::Owned, ..eager() }).await.unwrap();
    for _ in 0..600 {
        if node.volume("data").await.unwrap().files == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    check("owned").await;
    node.stop().await;
}
