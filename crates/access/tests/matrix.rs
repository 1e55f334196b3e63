//! Every action of everybody: nothing passes that should not, and nobody hears of what is not theirs.

mod calls;

use std::sync::Arc;

use calls::call;
use stoker_access::{Action, Guard, Guarded, Kind, Member, SessionFault, SessionRequest};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{
    Access, AccessKey, DrainPolicy, ErrorKind, Filler, Finish, Key, Order, PeopleChange, Principal, Result,
    Store, StoreError, UserName, UserRights, VolumeOptions, VolumePolicy, WriteRequest, owner_entry,
};
use tempfile::TempDir;

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

impl Rig {
    async fn new() -> Rig {
        let dir = TempDir::new().unwrap();
        let mut options = NodeOptions::new(dir.path().join("node"));
        options.drives = vec![DriveOptions { path: dir.path().join("ring"), size_bytes: Some(256 << 20) }];
        options.memory_bytes = 256 << 20;
        options.volume_defaults = VolumePolicy { drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
        let node = Node::open(options).await.unwrap();
        let guard = Guard::new(node.clone() as Arc<dyn Store>);
        let rig = Rig { node, guard, _dir: dir };
        rig.level_rises().await;
        for tenant in ["acme", "beta"] {
            rig.change(PeopleChange::TenantCreate { tenant: tenant.into() }).await.unwrap();
        }
        rig.change(PeopleChange::ProjectCreate { tenant: "acme".into(), project: "vision".into() })
            .await
            .unwrap();
        for (user, rights) in [
            ("acme/alice", UserRights::default()),
            ("acme/reader", UserRights { read_only: true, ..UserRights::default() }),
            ("acme/member", UserRights { projects: vec!["vision".into()], ..UserRights::default() }),
            ("beta/bob", UserRights::default()),
            ("default/dora", UserRights::default()),
        ] {
            rig.change(PeopleChange::UserCreate { name: name(user), rights }).await.unwrap();
        }
        rig.node.volume_create("acme_data", VolumeOptions::default()).await.unwrap();
        rig.put("acme_data", "a/b").await;
        rig
    }

    /// A node alone raises it by itself, within its first moments.
    async fn level_rises(&self) {
        loop {
            let probe = PeopleChange::UserDelete { name: name("default/nobody") };
            match self.node.operate(Order::PeopleChange(probe)).await {
                Err(fault) if fault.kind == ErrorKind::NotFound => return,
                _ => tokio::task::yield_now().await,
            }
        }
    }

    async fn change(&self, change: PeopleChange) -> Result<()> {
        self.guard.operator("test").operate(Order::PeopleChange(change)).await.map(drop)
    }

    async fn put(&self, volume: &str, file: &str) {
        let mut filler =
            Filler::new(self.node.create(volume, &key(file), WriteRequest::default()).await.unwrap());
        filler.put(b"bytes").await.unwrap();
        filler.finish(Finish::default()).await.unwrap();
    }

    /// What a temporary key of a user opens, at another node of the cluster than the one that gave it.
    async fn session(&self, text: &str, is_read_only: bool, places: &[&[&str]]) -> Arc<Guarded> {
        let guards = [(); 2].map(|()| {
            let guard = Guard::new(self.node.clone() as Arc<dyn Store>);
            guard.seal_sessions_with(&[7; 32]);
            guard
        });
        let list = |list: &&[&str]| list.iter().map(|place| (*place).to_owned()).collect();
        let request = SessionRequest {
            label: "test".to_owned(),
            arn: "arn".to_owned(),
            is_read_only,
            places: places.iter().map(list).collect(),
            duration_s: 900,
            now_ms: 0,
        };
        let session = guards[0].session_of_user(&name(text), request).await.unwrap().unwrap();
        let found = guards[1].session(&session.access_key, &session.token, 1, "test").await.unwrap();
        found.ok().unwrap().view
    }

    fn user(&self, text: &str) -> Arc<Guarded> {
        self.guard.user(name(text), "test")
    }
}

fn kind(answer: &Result<()>) -> Option<ErrorKind> {
    answer.as_ref().err().map(|fault| fault.kind)
}

/// An error with the name of the volume left out.
fn plain(answer: Result<()>, volume: &str) -> std::result::Result<(), StoreError> {
    answer.map_err(|fault| StoreError { message: fault.message.replace(volume, "VOLUME"), ..fault })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_passes_that_should_not() {
    let rig = Rig::new().await;
    let before = rig.node.stat("acme_data", &key("a/b")).await.unwrap();
    let nobody = rig.guard.anonymous("test");
    let viewer = rig.guard.viewer("test");
    let denied = Some(ErrorKind::Denied);
    // Each stands beside the one whose rights it has.
    let temporary_bob = rig.session("beta/bob", false, &[]).await;
    let temporary_reader = rig.session("acme/alice", true, &[]).await;
    let temporary_member = rig.session("acme/alice", false, &[&["acme/vision/"], &["acme", "data"]]).await;
    let temporary_alice = rig.session("acme/alice", false, &[]).await;

    for action in Action::ALL.iter().copied() {
        let about = |who: &str| format!("{who}: {action:?}");
        let is_members = !matches!(action.kind(), Kind::Watch | Kind::Operate);

        for volume in ["data", "acme_data", "acme_acme"] {
            assert_eq!(kind(&call(&*nobody, action, volume).await), denied, "{}", about("anonymous"));
        }
        let looks = matches!(action.kind(), Kind::Glimpse | Kind::Look | Kind::Watch);
        let seen = kind(&call(&*viewer, action, "acme_data").await);
        assert_eq!(seen == denied, !looks, "{}", about("viewer"));

        // To others it is as if there were no such volume: the same answer as for a name that nobody has.
        for (who, user, volumes) in [
            ("beta/bob", rig.user("beta/bob"), ["data", "acme_data"]),
            ("beta/bob, temporary", Arc::clone(&temporary_bob), ["data", "acme_data"]),
            ("default/dora", rig.user("default/dora"), ["acme_data", "acme_acme"]),
        ] {
            for volume in volumes {
                if action == Action::VolumeCreate {
                    continue;
                }
                let answer = plain(call(&*user, action, volume).await, volume);
                let as_missing = plain(call(&*user, action, "no-such").await, "no-such");
                let is_same = match (&answer, &as_missing) {
                    (Err(one), Err(other)) => (one.kind, one.subject) == (other.kind, other.subject),
                    (one, other) => one.is_ok() && other.is_ok(),
                };
                assert!(is_same, "{}: {answer:?}, {as_missing:?}", about(who));
                assert!(
                    !is_members || matches!(action, Action::Volumes | Action::Inodes) || answer.is_err(),
                    "{}",
                    about(who)
                );
            }
        }

        for (who, view) in [("reader", &rig.user("acme/reader")), ("temporary reader", &temporary_reader)] {
            let reader = kind(&call(&**view, action, "data").await);
            let is_refused = !is_members || action.kind() == Kind::Write;
            assert_eq!(reader == denied, is_refused, "{}: {reader:?}", about(who));
        }

        let is_placeless = matches!(action, Action::Volumes | Action::Inodes | Action::JobLook);
        for (who, view) in
            [("member of a project", &rig.user("acme/member")), ("temporary member", &temporary_member)]
        {
            let elsewhere = kind(&call(&**view, action, "data").await);
            assert_eq!(elsewhere == denied, !is_placeless, "{}: {elsewhere:?}", about(who));
        }

        for (who, view) in [("right", &rig.user("acme/alice")), ("temporary and right", &temporary_alice)] {
            let right = call(&**view, action, "data").await;
            assert_eq!(kind(&right) == denied, !is_members, "{}: {right:?}", about(who));
            if let Err(fault) = &right {
                assert!(!fault.message.contains("acme_"), "{}: {}", about(who), fault.message);
            }
        }
    }
    let after = rig.node.stat("acme_data", &key("a/b")).await.unwrap();
    assert_eq!(before.etag, after.etag);

    // Who runs the cluster does everything, by full names.
    let operator = rig.guard.operator("test");
    for action in Action::ALL {
        assert_ne!(kind(&call(&*operator, *action, "acme_data").await), denied, "operator: {action:?}");
    }
}

/// A view that is open when its user is kept out, or gone and back, decides by what is true then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_keys_end_with_their_users() {
    let rig = Rig::new().await;
    let guard = &rig.guard;
    let request = || SessionRequest {
        label: "test".to_owned(),
        arn: "arn".to_owned(),
        is_read_only: false,
        places: Vec::new(),
        duration_s: 900,
        now_ms: 0,
    };
    let alice = name("acme/alice");
    let session = guard.session_of_user(&alice, request()).await.unwrap().unwrap();
    let open =
        async |now_ms| guard.session(&session.access_key, &session.token, now_ms, "test").await.unwrap();
    let view = open(1).await.ok().unwrap().view;
    assert!(view.stat("data", &key("a/b")).await.is_ok());
    assert!(open(899_999).await.is_ok());
    assert!(matches!(open(900_000).await, Err(SessionFault::Expired)));
    // This guard hears of changes that go through it at once, others within three seconds.
    let rights = |disabled| UserRights { disabled, ..UserRights::default() };
    rig.change(PeopleChange::UserSet { name: alice.clone(), rights: rights(true) }).await.unwrap();
    assert_eq!(kind(&view.stat("data", &key("a/b")).await.map(drop)), Some(ErrorKind::Denied));
    assert!(matches!(open(1).await, Err(SessionFault::Invalid)));
    assert!(guard.session_of_user(&alice, request()).await.unwrap().is_none());
    rig.change(PeopleChange::UserSet { name: alice.clone(), rights: rights(false) }).await.unwrap();
    assert!(view.stat("data", &key("a/b")).await.is_ok());
    rig.change(PeopleChange::UserDelete { name: alice.clone() }).await.unwrap();
    assert_eq!(kind(&view.stat("data", &key("a/b")).await.map(drop)), Some(ErrorKind::Denied));
    rig.change(PeopleChange::UserCreate { name: alice.clone(), rights: rights(false) }).await.unwrap();
    assert_eq!(
        kind(&view.stat("data", &key("a/b")).await.map(drop)),
        Some(ErrorKind::Denied),
        "somebody else"
    );
    assert!(matches!(open(1).await, Err(SessionFault::Invalid)));
    assert!(guard.session_of_user(&name("acme/none"), request()).await.unwrap().is_none());
}

/// NFS says itself who its callers are; its view is of the default tenant, and of what an export names in full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_without_users_sees_what_was_opened_to_it() {
    let rig = Rig::new().await;
    rig.node.volume_create("plain", VolumeOptions::default()).await.unwrap();
    rig.put("plain", "a/b").await;
    let denied = Some(ErrorKind::Denied);
    let nothing = rig.guard.service("nfs", Vec::new());
    let opened = rig.guard.service("nfs", vec!["acme_data".into()]);
    let lookup = rig.guard.lookup("s3");
    // What makes and deletes volumes comes last, since it is about those that the others are about.
    let ends = |action: &Action| matches!(action, Action::VolumeDelete | Action::VolumeCreate);
    let (last, first): (Vec<Action>, Vec<Action>) = Action::ALL.iter().copied().partition(ends);
    for action in first.into_iter().chain(last) {
        let is_members = !matches!(action.kind(), Kind::Watch | Kind::Operate);
        for (view, volume, fine) in [
            (&nothing, "plain", is_members),
            (&opened, "plain", is_members),
            (&opened, "acme_data", is_members),
            (&lookup, "plain", is_members && action.kind() != Kind::Write),
        ] {
            let answer = call(&**view, action, volume).await;
            assert_eq!(kind(&answer) != denied, fine, "{action:?} {volume}: {answer:?}");
        }
        for (view, volume) in [(&nothing, "acme_data"), (&opened, "acme_acme"), (&opened, "beta_beta")] {
            if matches!(action, Action::Volumes | Action::Inodes | Action::VolumeCreate) || !is_members {
                continue;
            }
            let answer = plain(call(&**view, action, volume).await, volume);
            let as_missing = plain(call(&**view, action, "no-such").await, "no-such");
            let answer = answer.expect_err("is another tenant's");
            assert!(answer.kind != ErrorKind::Conflict, "{action:?} {volume}: {answer}");
            if let Err(missing) = as_missing {
                assert_eq!((answer.kind, answer.subject), (missing.kind, missing.subject), "{action:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_see_their_own_volumes_by_their_own_names() {
    let rig = Rig::new().await;
    rig.node.volume_create("plain", VolumeOptions::default()).await.unwrap();
    let names = async |store: &dyn Store| -> Vec<String> {
        store.volumes().await.unwrap().into_iter().map(|volume| volume.name).collect()
    };
    assert_eq!(names(&*rig.user("acme/alice")).await, ["acme", "data"]);
    assert_eq!(names(&*rig.user("beta/bob")).await, ["beta"]);
    assert_eq!(names(&*rig.user("default/dora")).await, ["plain"]);
    assert_eq!(names(&*rig.user("acme/member")).await, ["acme"]);
    assert!(rig.user("acme/alice").volume("data").await.unwrap().lake.is_none());

    // Two tenants with a volume of one name.
    let bob = rig.user("beta/bob");
    bob.volume_create("data", VolumeOptions::default()).await.unwrap();
    assert_eq!(bob.stat("data", &key("a/b")).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(
        names(&*rig.guard.operator("test")).await,
        ["acme_acme", "acme_data", "beta_beta", "beta_data", "plain"]
    );
    // Where a volume drains is for operators: a lake URL would show the bytes of others.
    let lake = VolumeOptions { lake: Some("file:///elsewhere".into()), policy: None };
    assert_eq!(bob.volume_create("mine", lake).await.unwrap_err().kind, ErrorKind::Denied);

    // A project is a folder.
    let member = rig.user("acme/member");
    let write = async |file: &str| member.create("acme", &key(file), WriteRequest::default()).await.map(drop);
    write("vision/run-1/x").await.unwrap();
    for file in ["speech/x", "vision", "visionary/x"] {
        assert_eq!(write(file).await.unwrap_err().kind, ErrorKind::Denied, "{file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_do_what_their_users_may_and_no_more() {
    let rig = Rig::new().await;
    let put = async |access_key: &str, user: &str, prefixes: &[&str], read_only: bool| {
        let owner = owner_entry(&name(user));
        let prefixes =
            std::iter::once(owner).chain(prefixes.iter().map(|prefix| (*prefix).to_owned())).collect();
        let access = Access { read_only, prefixes, ..Access::default() };
        let key =
            AccessKey { access_key: access_key.into(), secret_key: "secret".into(), access, created_ms: 1 };
        rig.node.access_key_put(key).await.unwrap();
        rig.guard.credential(access_key, "test").await.unwrap().unwrap().view
    };
    let alice = put("ALICE", "acme/alice", &[], false).await;
    let narrow = put("NARROW", "acme/alice", &["acme_data/logs/"], false).await;
    let reading = put("READING", "acme/alice", &[], true).await;
    let gone = put("GONE", "acme/nobody", &[], false).await;

    assert!(alice.stat("data", &key("a/b")).await.is_ok());
    assert!(reading.stat("data", &key("a/b")).await.is_ok());
    let denied = async |view: &Guarded, file: &str| {
        let answer = view.create("data", &key(file), WriteRequest::default()).await.map(drop);
        kind(&answer) == Some(ErrorKind::Denied)
    };
    assert!(!denied(&alice, "x").await && denied(&reading, "x").await && denied(&gone, "x").await);
    assert!(denied(&narrow, "x").await && !denied(&narrow, "logs/x").await);

    // What changes for the user changes for the keys, also for views that are there already.
    let rights = UserRights { disabled: true, ..UserRights::default() };
    rig.change(PeopleChange::UserSet { name: name("acme/alice"), rights }).await.unwrap();
    assert!(denied(&alice, "x").await && denied(&narrow, "logs/x").await);
    rig.change(PeopleChange::UserDelete { name: name("acme/alice") }).await.unwrap();
    assert!(rig.guard.credential("ALICE", "test").await.unwrap().is_none(), "keys go with their user");
    rig.change(PeopleChange::UserCreate { name: name("acme/alice"), rights: UserRights::default() })
        .await
        .unwrap();
    assert!(rig.guard.credential("NARROW", "test").await.unwrap().is_none());

    // A key that is nobody's does what it did: everything of the default tenant.
    let access = Access::default();
    let old = AccessKey { access_key: "OLD".into(), secret_key: "secret".into(), access, created_ms: 1 };
    rig.node.access_key_put(old).await.unwrap();
    let old = rig.guard.credential("OLD", "test").await.unwrap().unwrap().view;
    old.volume_create("mine", VolumeOptions::default()).await.unwrap();
    assert_eq!(old.volumes().await.unwrap().len(), 1);
    assert_eq!(old.stat("acme_data", &key("a/b")).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_go_when_they_are_empty() {
    let rig = Rig::new().await;
    let delete = async || rig.change(PeopleChange::TenantDelete { tenant: "beta".into() }).await;
    assert_eq!(delete().await.unwrap_err().kind, ErrorKind::Conflict, "it has a volume");
    rig.node.volume_delete("beta_beta").await.unwrap();
    assert_eq!(delete().await.unwrap_err().kind, ErrorKind::Conflict, "it has a user");
    rig.change(PeopleChange::UserDelete { name: name("beta/bob") }).await.unwrap();
    delete().await.unwrap();
    assert_eq!(delete().await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(
        rig.node.volume_create("beta_data", VolumeOptions::default()).await.unwrap_err().kind,
        ErrorKind::NotFound
    );
    for (change, expect) in [
        (PeopleChange::TenantCreate { tenant: "default".into() }, ErrorKind::Invalid),
        (PeopleChange::TenantCreate { tenant: "A_B".into() }, ErrorKind::Invalid),
        (
            PeopleChange::UserCreate { name: name("gamma/carl"), rights: UserRights::default() },
            ErrorKind::NotFound,
        ),
        (
            PeopleChange::ProjectDelete { tenant: "acme".into(), project: "vision".into() },
            ErrorKind::Conflict,
        ),
    ] {
        assert_eq!(rig.change(change.clone()).await.unwrap_err().kind, expect, "{change:?}");
    }
    // An endpoint that says itself who its callers are sees the default tenant, and what an operator named.
    let service = rig.guard.service("nfs", vec!["acme_data".into()]);
    assert!(service.stat("acme_data", &key("a/b")).await.is_ok());
    assert_eq!(service.volume("acme_acme").await.unwrap_err().kind, ErrorKind::NotFound);
    let uid = rig.guard.member(Principal::Uid(1000), "test", Member::of("default"));
    assert_eq!(uid.access_keys().await.unwrap_err().kind, ErrorKind::Denied);
}

/// The methods of the trait and those that are decided are the same. A default of the trait would go past the decision.
#[test]
fn every_method_of_the_store_is_decided() {
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
    let decided = methods(include_str!("../src/guarded/calls.rs"), "impl Store for Decided");
    assert!(wanted.len() > 40);
    assert_eq!(wanted, decided);
}
