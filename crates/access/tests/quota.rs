//! Quotas as those meet them who write: exact, said clearly, and nobody else's business.

use std::sync::Arc;

use bytes::Bytes;
use stoker_access::{Guard, Guarded};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{
    AccountInfo, AccountName, Attributes, Condition, CopyRequest, DrainPolicy, ErrorKind, Filler, Finish,
    Key, Order, PartChoice, PeopleChange, QuotaLimits, RenameMode, Report, Result, Store, StoreError,
    Subject, UserName, UserRights, VolumeOptions, VolumePolicy, WriteRequest,
};
use tempfile::TempDir;

const WRITERS: usize = 64;
const PART: u64 = 16 << 10;
const LIMIT: u64 = 40 * PART + PART / 2;

struct Rig {
    node: Arc<Node>,
    guard: Guard,
    _dir: TempDir,
}

fn name(text: &str) -> UserName {
    UserName::parse(text).unwrap()
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn tenant(name: &str) -> AccountName {
    AccountName::Tenant(name.into())
}

fn project(name: &str) -> AccountName {
    AccountName::Project { tenant: "acme".into(), project: name.into() }
}

fn bytes(limit: u64) -> QuotaLimits {
    QuotaLimits { bytes: limit, ..QuotaLimits::default() }
}

impl Rig {
    async fn new() -> Rig {
        let dir = TempDir::new().unwrap();
        let mut options = NodeOptions::new(dir.path().join("node"));
        options.drives = vec![DriveOptions { path: dir.path().join("ring"), size_bytes: Some(256 << 20) }];
        options.memory_bytes = 256 << 20;
        options.volume_defaults = VolumePolicy { drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
        let node = Node::open(options).await.unwrap();
        let rig = Rig { guard: Guard::new(node.clone() as Arc<dyn Store>), node, _dir: dir };
        // The level of a new node rises within its first moments.
        while let Err(fault) = rig.change(PeopleChange::TenantCreate { tenant: "acme".into() }).await {
            assert_eq!(fault.kind, ErrorKind::Invalid, "{fault}");
            tokio::task::yield_now().await;
        }
        rig.change(PeopleChange::ProjectCreate { tenant: "acme".into(), project: "vision".into() })
            .await
            .unwrap();
        for user in ["acme/alice", "acme/bob"] {
            let create = PeopleChange::UserCreate { name: name(user), rights: UserRights::default() };
            rig.change(create).await.unwrap();
        }
        rig.node.volume_create("acme_data", VolumeOptions::default()).await.unwrap();
        rig
    }

    async fn change(&self, change: PeopleChange) -> Result<()> {
        self.guard.operator("test").operate(Order::PeopleChange(change)).await.map(drop)
    }

    async fn limit(&self, account: AccountName, limits: QuotaLimits) -> Result<()> {
        self.change(PeopleChange::Quota { account, limits }).await
    }

    async fn account(&self, account: AccountName) -> AccountInfo {
        let Report::Accounts(all) = self.node.operate(Order::Accounts).await.unwrap() else { panic!() };
        all.into_iter().find(|info| info.account == account).expect("it is there")
    }

    fn user(&self, text: &str) -> Arc<Guarded> {
        self.guard.user(name(text), "test")
    }
}

async fn put(store: &dyn Store, volume: &str, file: &str, len: u64) -> Result<()> {
    let mut filler = Filler::new(store.create(volume, &key(file), WriteRequest::default()).await?);
    filler.put(&vec![7; len as usize]).await?;
    filler.finish(Finish::default()).await.map(drop)
}

fn full(answer: Result<()>) -> String {
    let fault = answer.expect_err("beyond the quota");
    assert_eq!((fault.kind, fault.subject), (ErrorKind::Full, Subject::Quota), "{fault}");
    fault.message
}

/// Of 64 writers who write until they are refused, together they have as much as they may.
async fn storm(rig: &Rig) {
    let alice = rig.user("acme/alice");
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let alice = alice.clone();
            let volume = if writer % 2 == 0 { "acme" } else { "data" };
            tokio::spawn(async move {
                let mut at = 0;
                loop {
                    match put(&*alice, volume, &format!("vision/{writer}/{at}"), PART).await {
                        Ok(()) => at += 1,
                        Err(fault) => return fault,
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        let StoreError { kind, subject, message } = writer.await.unwrap();
        assert_eq!((kind, subject), (ErrorKind::Full, Subject::Quota), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_get_exactly_what_there_is() {
    for account in [tenant("acme"), AccountName::User(name("acme/alice"))] {
        let rig = Rig::new().await;
        rig.limit(account.clone(), bytes(LIMIT)).await.unwrap();
        storm(&rig).await;
        let AccountInfo { files, bytes, .. } = rig.account(account.clone()).await;
        assert!(bytes <= LIMIT && bytes + PART > LIMIT, "{account}: {bytes} of {LIMIT}");
        assert_eq!(files, LIMIT / PART);
        let volumes = rig.node.volumes().await.unwrap();
        let all: u64 = volumes.iter().map(|volume| volume.bytes).sum();
        assert_eq!(all, bytes, "what is counted is what is there");
        rig.node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_write_counts() {
    let rig = Rig::new().await;
    let (alice, bob) = (rig.user("acme/alice"), rig.user("acme/bob"));
    rig.limit(project("vision"), bytes(10 * PART)).await.unwrap();
    put(&*alice, "acme", "vision/a", 6 * PART).await.unwrap();
    put(&*alice, "acme", "outside", 6 * PART).await.unwrap();

    let message = full(put(&*bob, "acme", "vision/b", 5 * PART).await);
    assert!(message.contains("project `acme/vision` has a quota of"), "{message}");
    let copy = |from: &str, to: &str| CopyRequest {
        from_volume: "acme".into(),
        from: key(from),
        from_condition: Condition::default(),
        to_volume: "acme".into(),
        to: key(to),
        condition: Condition::default(),
        attributes: None,
    };
    full(bob.copy(copy("vision/a", "vision/copy")).await.map(drop));
    full(bob.link("acme", &key("vision/a"), &key("vision/link")).await.map(drop));
    full(bob.rename("acme", &key("outside"), &key("vision/in"), RenameMode::Replace).await);
    let upload =
        bob.upload_create("acme", &key("vision/up"), Attributes::default(), None).await.unwrap().upload;
    let mut part = Filler::new(bob.upload_part("acme", &key("vision/up"), &upload, 1, None).await.unwrap());
    part.put(&vec![7; 5 * PART as usize]).await.unwrap();
    let etag = part.finish(Finish::default()).await.unwrap().etag;
    let choice = vec![PartChoice { number: 1, etag, checksum: None }];
    let (up, condition) = (key("vision/up"), Condition::default());
    let complete = bob.upload_complete("acme", &up, &upload, choice, condition, Finish::default());
    full(complete.await.map(drop));
    // Who says how much is told at once.
    let wish = WriteRequest { size: Some(5 * PART), ..WriteRequest::default() };
    full(bob.create("acme", &key("vision/c"), wish).await.map(drop));
    let piece = Bytes::from(vec![7; 5 * PART as usize]);
    let edit = stoker_store::EditRequest {
        pieces: vec![stoker_store::Piece::Rest],
        ..stoker_store::EditRequest::default()
    };
    full(bob.edit_now("acme", &key("vision/d"), edit, piece).await.map(drop));
    assert_eq!(rig.account(project("vision")).await.bytes, 6 * PART);

    // Elsewhere there is room, and what goes makes some.
    bob.copy(copy("vision/a", "copy")).await.unwrap();
    bob.rename("acme", &key("vision/a"), &key("b"), RenameMode::Replace).await.unwrap();
    put(&*bob, "acme", "vision/b", 10 * PART).await.unwrap();
    assert_eq!(rig.account(AccountName::User(name("acme/bob"))).await.bytes, 16 * PART);
    assert_eq!(rig.account(AccountName::User(name("acme/alice"))).await.bytes, 12 * PART);
    // A smaller quota than what is there takes nothing away, and stops what grows.
    rig.limit(project("vision"), bytes(PART)).await.unwrap();
    full(put(&*bob, "acme", "vision/c", 1).await);
    put(&*bob, "acme", "vision/b", 9 * PART).await.unwrap();
    rig.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_make_no_sense_are_refused() {
    let rig = Rig::new().await;
    let soft = QuotaLimits { bytes: 5, soft_bytes: 6, ..QuotaLimits::default() };
    for (account, limits, kind) in [
        (tenant("acme"), soft, ErrorKind::Invalid),
        (tenant("acme"), bytes(u64::MAX), ErrorKind::Invalid),
        (tenant("default"), bytes(5), ErrorKind::Invalid),
        (tenant("nobody"), bytes(5), ErrorKind::NotFound),
        (project("nothing"), bytes(5), ErrorKind::NotFound),
        (AccountName::User(name("acme/ghost")), bytes(5), ErrorKind::NotFound),
    ] {
        let fault = rig.limit(account.clone(), limits).await.expect_err("makes no sense");
        assert_eq!(fault.kind, kind, "{account}: {fault}");
    }
    // What is in a folder before it becomes a project would not be counted.
    put(&*rig.user("acme/alice"), "acme", "old/file", 1).await.unwrap();
    let create = || PeopleChange::ProjectCreate { tenant: "acme".into(), project: "old".into() };
    assert_eq!(rig.change(create()).await.unwrap_err().kind, ErrorKind::Conflict);
    rig.node.delete("acme_acme", vec![(key("old/file"), Condition::default())]).await.unwrap();
    rig.change(create()).await.unwrap();
    // Nobody of a tenant sees or changes any of it.
    let alice = rig.user("acme/alice");
    assert_eq!(alice.operate(Order::Accounts).await.unwrap_err().kind, ErrorKind::Denied);
    let raise = PeopleChange::Quota { account: tenant("acme"), limits: bytes(1 << 40) };
    assert_eq!(alice.operate(Order::PeopleChange(raise)).await.unwrap_err().kind, ErrorKind::Denied);
    rig.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_soft_limit_is_told_and_refuses_nothing() {
    let rig = Rig::new().await;
    let limits = QuotaLimits { soft_bytes: 2 * PART, soft_files: 10, ..QuotaLimits::default() };
    rig.limit(tenant("acme"), limits).await.unwrap();
    put(&*rig.user("acme/alice"), "data", "a", 3 * PART).await.unwrap();
    // The look at it is made in the background.
    loop {
        let counters = rig.node.counters().await.unwrap();
        let value =
            |name: &str| counters.iter().find(|counter| counter.name == name).map(|found| found.value);
        if value("quota_soft_exceeded") == Some(1.0) {
            assert_eq!(value("tenant_bytes"), Some((3 * PART) as f64));
            break;
        }
        // One that came before the write is made again by the next one.
        put(&*rig.user("acme/alice"), "data", "a", 3 * PART).await.unwrap();
        tokio::task::yield_now().await;
    }
    rig.node.stop().await;
}
