//! The audit log sees every change and every denied call, and with `full` every read, and never a secret.

mod calls;

use std::path::Path;
use std::sync::Arc;

use calls::call;
use stoker_access::{AUDIT_VOLUME, Action, Guard, Kind, Member, Origin};
use stoker_audit::{Entry, Log, LogOptions, Query, SigningKey, verify};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{
    Access, AccessKey, Condition, DrainPolicy, ErrorKind, Filler, Finish, Key, Order, Principal, Store,
    VolumeOptions, VolumePolicy, WriteRequest,
};
use tempfile::TempDir;

struct Rig {
    node: Arc<Node>,
    log: Arc<Log>,
    guard: Guard,
    dir: TempDir,
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

impl Rig {
    async fn new(set: impl FnOnce(&mut LogOptions)) -> Rig {
        let dir = TempDir::new().unwrap();
        let mut options = NodeOptions::new(dir.path().join("node"));
        options.drives = vec![DriveOptions { path: dir.path().join("ring"), size_bytes: Some(256 << 20) }];
        options.memory_bytes = 256 << 20;
        options.volume_defaults = VolumePolicy { drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
        let node = Node::open(options).await.unwrap();
        let signing = SigningKey::of_seed(&[3; 32]).unwrap();
        let mut options = LogOptions::new(&dir.path().join("audit"), "n1", vec![signing]);
        set(&mut options);
        let log = Arc::new(Log::open(options).unwrap());
        let guard = Guard::audited(node.clone() as Arc<dyn Store>, Arc::clone(&log));
        node.volume_create("data", VolumeOptions::default()).await.unwrap();
        Rig { node, log, guard, dir }
    }

    async fn put(&self, store: &dyn Store, file: &str) {
        let writer = store.create("data", &key(file), WriteRequest::default()).await.unwrap();
        let mut filler = Filler::new(writer);
        filler.put(b"some bytes").await.unwrap();
        filler.finish(Finish::default()).await.unwrap();
    }

    /// All lines but those of the log itself, oldest first.
    fn entries(&self) -> Vec<Entry> {
        let query = Query { limit: 1000, ..Query::default() };
        let mut entries = query.run(self.log.dir()).unwrap().entries;
        entries.retain(|entry| entry.event.principal != stoker_audit::SERVICE);
        entries.reverse();
        entries
    }

    fn told(&self) -> Vec<String> {
        let told = |entry: &Entry| {
            let event = &entry.event;
            format!("{} {} {} {} {}", event.principal, event.action, event.path, event.bytes, event.result)
        };
        self.entries().iter().map(told).collect()
    }

    fn whole(&self) -> String {
        let read = |path: &Path| String::from_utf8(std::fs::read(path).unwrap()).unwrap();
        stoker_audit::segment::list(self.log.dir()).unwrap().iter().map(|(_, path)| read(path)).collect()
    }

    async fn end(self) {
        self.log.stop();
        let found = verify(self.log.dir(), &self.log.public_keys()).unwrap();
        assert!(found.is_sound(), "{found:?}");
        self.node.stop().await;
        drop(self.dir);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_and_denials_have_lines_and_reads_have_none() {
    let rig = Rig::new(|_| {}).await;
    let member = rig.guard.member(Principal::Key("AKIA1".into()), "s3", Member::of("default"));
    let origin = Origin { address: "10.0.0.7:55".into(), request_id: "r-1".into(), ..Origin::default() };
    origin.clone().scope(rig.put(&*member, "a/b")).await;
    member.open("data", &key("a/b")).await.unwrap().read(0, 10).await.unwrap();
    member.stat("data", &key("a/b")).await.unwrap();
    let reader = Member { read_only: true, ..Member::of("default") };
    let reader = rig.guard.member(Principal::Key("AKIA2".into()), "s3", reader);
    assert!(reader.set_attributes("data", &key("a/b"), Default::default()).await.is_err());
    member.rename("data", &key("a/b"), &key("a/c"), Default::default()).await.unwrap();
    let both = vec![(key("a/c"), Condition::default()), (key("a/none"), Condition::default())];
    member.delete("data", both).await.unwrap();
    let absent = WriteRequest { condition: Condition::default(), ..WriteRequest::default() };
    drop(member.create("data", &key("given-up"), absent).await.unwrap());
    assert!(member.volume_delete("none").await.is_err());
    assert_eq!(
        rig.told(),
        [
            "key AKIA1 Create data/a/b 10 ok",
            "key AKIA2 SetAttributes data/a/b 0 denied",
            "key AKIA1 Rename data/a/b 0 ok",
            "key AKIA1 Delete data/a/c 0 ok",
            "key AKIA1 Delete data/a/none 0 ok",
            "key AKIA1 VolumeDelete none 0 failed: NotFound",
        ]
    );
    let entries = rig.entries();
    let first = &entries[0].event;
    assert_eq!((&*first.address, &*first.request_id, &*first.tenant), ("10.0.0.7:55", "r-1", "default"));
    assert_eq!(entries[2].event.detail, "to a/c");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_has_reads_too() {
    let rig = Rig::new(|options| options.is_full = true).await;
    let operator = rig.guard.operator("client");
    operator.comes_from(Origin { address: "unix".into(), ..Origin::default() });
    rig.put(&*operator, "a").await;
    let file = operator.open("data", &key("a")).await.unwrap();
    assert_eq!(&file.read(0, 100).await.unwrap()[..], b"some bytes");
    operator.stat("data", &key("a")).await.unwrap();
    assert!(operator.open("data", &key("none")).await.is_err());
    assert_eq!(
        rig.told(),
        [
            "operator Create data/a 10 ok",
            "operator Open data/a 10 ok",
            "operator Stat data/a 0 ok",
            "operator Open data/none 0 failed: NotFound",
        ]
    );
    assert!(rig.entries().iter().all(|entry| entry.event.address == "unix"));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_alone_can_be_full_and_operators_alone_say_so() {
    let rig = Rig::new(|_| {}).await;
    let operator = rig.guard.operator("client");
    let member = rig.guard.member(Principal::Key("AKIA1".into()), "s3", Member::of("default"));
    rig.put(&*operator, "a").await;
    member.stat("data", &key("a")).await.unwrap();
    let set = member.set_volume_setting("data", "audit", Some(b"full".to_vec())).await;
    assert_eq!(set.unwrap_err().kind, ErrorKind::Denied);
    operator.set_volume_setting("data", "audit", Some(b"full".to_vec())).await.unwrap();
    member.stat("data", &key("a")).await.unwrap();
    let told = rig.told();
    let stats = told.iter().filter(|line| line.contains("Stat")).count();
    assert_eq!(stats, 1, "{told:?}");
    assert!(told.contains(&"key AKIA1 VolumeSet data 0 denied".to_owned()), "{told:?}");
    assert!(told.contains(&"operator SetVolumeSetting data 0 ok".to_owned()), "{told:?}");
    rig.end().await;
}

/// Every action of a stranger is denied, and each has a line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_denied_call_goes_without_a_line() {
    let rig = Rig::new(|_| {}).await;
    let nobody = rig.guard.anonymous("s3");
    for action in Action::ALL.iter().copied() {
        let before = rig.log.counts().denied;
        assert_eq!(call(&*nobody, action, "data").await.unwrap_err().kind, ErrorKind::Denied, "{action:?}");
        assert!(rig.log.counts().denied > before, "{action:?}");
    }
    rig.end().await;
}

/// Every action that changes something has a line, whatever became of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_goes_without_a_line() {
    let rig = Rig::new(|_| {}).await;
    let operator = rig.guard.operator("client");
    rig.put(&*operator, "a/b").await;
    for action in Action::ALL.iter().copied() {
        let changes = matches!(action.kind(), Kind::Write | Kind::Operate);
        // Numbers are handed out, which changes no file; a key is only read; a drain of nothing is one.
        if !changes || matches!(action, Action::Inodes | Action::AccessKey) {
            continue;
        }
        let before = rig.log.counts().lines;
        let _ = call(&*operator, action, "data").await;
        let writes = matches!(action, Action::Create | Action::Edit | Action::UploadPart | Action::SetShard);
        if !writes {
            assert!(rig.log.counts().lines > before, "{action:?}");
        }
    }
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_in_a_line() {
    let rig = Rig::new(|options| options.is_full = true).await;
    let operator = rig.guard.operator("client");
    let secret = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY";
    let access = Access::default();
    let made = AccessKey { access_key: "AKIA2".into(), secret_key: secret.into(), created_ms: 0, access };
    operator.access_key_put(made).await.unwrap();
    operator.access_keys().await.unwrap();
    operator.operate(Order::JoinTokenRotate).await.ok();
    let whole = rig.whole();
    assert!(whole.contains("AccessKeyPut") && whole.contains("AKIA2") && !whole.contains(secret));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_written_down_is_not_done_if_the_log_says_so() {
    for refuses in [true, false] {
        let rig = Rig::new(|options| {
            (options.refuses, options.is_full) = (refuses, true);
            (options.disk_bytes_max, options.segment_bytes_max) = (16 << 10, 4 << 10);
        })
        .await;
        let operator = rig.guard.operator("client");
        rig.put(&*operator, "a").await;
        while rig.log.counts().lost == 0 {
            let _ = operator.stat("data", &key("a")).await;
        }
        let file = operator.open("data", &key("a")).await.map(drop);
        let made = operator.create("data", &key("b"), WriteRequest::default()).await.map(drop);
        assert_eq!((file.is_err(), made.is_err()), (refuses, refuses));
        if refuses {
            assert!(file.unwrap_err().message.contains("audit log cannot be written"));
            assert!(operator.volume_create("more", VolumeOptions::default()).await.is_err());
            assert!(rig.node.volume("more").await.is_err());
        }
        rig.log.stop();
        rig.node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_changes_the_volume_of_the_log() {
    let rig = Rig::new(|_| {}).await;
    rig.node.volume_create(AUDIT_VOLUME, VolumeOptions::default()).await.unwrap();
    let operator = rig.guard.operator("client");
    let member = rig.guard.member(Principal::Key("AKIA1".into()), "s3", Member::of("default"));
    assert_eq!(operator.volume_delete(AUDIT_VOLUME).await.unwrap_err().kind, ErrorKind::Denied);
    let made = operator.create(AUDIT_VOLUME, &key("n1/x"), WriteRequest::default()).await;
    assert_eq!(made.map(drop).unwrap_err().kind, ErrorKind::Denied);
    assert!(operator.volume(AUDIT_VOLUME).await.is_ok());
    assert!(member.volume(AUDIT_VOLUME).await.is_err());
    assert!(member.volumes().await.unwrap().iter().all(|volume| volume.name != AUDIT_VOLUME));
    rig.end().await;
}

/// A default of the trait would go past the log.
#[test]
fn every_method_of_the_store_is_looked_at() {
    let methods = |text: &str, from: &str| -> Vec<String> {
        let (_, body) = text.split_once(from).unwrap();
        let body = body.split_once("\n}").unwrap().0;
        let lines = body.lines().filter_map(|line| line.strip_prefix("    fn "));
        let mut names: Vec<String> =
            lines.map(|line| line.split(['(', '<']).next().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let wanted = methods(include_str!("../../store/src/store.rs"), "pub trait Store: ");
    let recorded = methods(include_str!("../src/guarded/recorded.rs"), "impl Store for Guarded");
    assert_eq!(wanted, recorded);
}
