//! Policies of volumes, through views of a real node: what they take away, what they give, and who decides about them.

use std::sync::Arc;

use stoker_access::{Guard, Guarded, Origin, POLICY_SETTING};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{
    Condition, DrainPolicy, ErrorKind, Filler, Finish, Key, ListRequest, Order, PeopleChange, RenameMode,
    Result, Store, UserName, UserRights, VolumeOptions, VolumePolicy, WriteRequest,
};
use tempfile::TempDir;

struct Rig {
    node: Arc<Node>,
    guard: Guard,
    _dir: TempDir,
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

impl Rig {
    /// The tenant acme has the volume data; alice may do everything, member sees a project alone, reader changes nothing.
    async fn new() -> Rig {
        let dir = TempDir::new().unwrap();
        let mut options = NodeOptions::new(dir.path().join("node"));
        options.drives = vec![DriveOptions { path: dir.path().join("ring"), size_bytes: Some(256 << 20) }];
        options.memory_bytes = 256 << 20;
        options.volume_defaults = VolumePolicy { drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
        let node = Node::open(options).await.unwrap();
        let guard = Guard::new(node.clone() as Arc<dyn Store>);
        let rig = Rig { node, guard, _dir: dir };
        let tenant = PeopleChange::TenantCreate { tenant: "acme".into() };
        // A node alone raises its level by itself, within its first moments.
        while rig.change(tenant.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
        rig.change(PeopleChange::ProjectCreate { tenant: "acme".into(), project: "vision".into() })
            .await
            .unwrap();
        for (user, rights) in [
            ("acme/alice", UserRights::default()),
            ("acme/bob", UserRights::default()),
            ("acme/reader", UserRights { read_only: true, ..UserRights::default() }),
            ("acme/member", UserRights { projects: vec!["vision".into()], ..UserRights::default() }),
        ] {
            let name = UserName::parse(user).unwrap();
            rig.change(PeopleChange::UserCreate { name, rights }).await.unwrap();
        }
        rig.node.volume_create("acme_data", VolumeOptions::default()).await.unwrap();
        for file in ["open/a", "kept/a", "kept/b", "shared/x"] {
            put(&*rig.user("alice"), file).await.unwrap();
        }
        rig
    }

    async fn change(&self, change: PeopleChange) -> Result<()> {
        self.guard.operator("test").operate(Order::PeopleChange(change)).await.map(drop)
    }

    fn user(&self, name: &str) -> Arc<Guarded> {
        self.guard.user(UserName::parse(&format!("acme/{name}")).unwrap(), "test")
    }

    async fn set(&self, statements: &str) {
        let document = format!(r#"{{"Version": "2012-10-17", "Statement": {statements}}}"#);
        set(&*self.user("alice"), Some(&document)).await.unwrap();
    }
}

async fn set(view: &dyn Store, document: Option<&str>) -> Result<()> {
    let document = document.map(|document| document.as_bytes().to_vec());
    view.set_volume_setting("data", POLICY_SETTING, document).await
}

async fn put(view: &dyn Store, file: &str) -> Result<()> {
    let mut filler = Filler::new(view.create("data", &key(file), WriteRequest::default()).await?);
    filler.put(b"bytes").await?;
    filler.finish(Finish::default()).await.map(drop)
}

async fn get(view: &dyn Store, file: &str) -> Result<()> {
    view.open("data", &key(file)).await.map(drop)
}

async fn delete(view: &dyn Store, file: &str) -> Result<()> {
    view.delete("data", vec![(key(file), Condition::default())]).await?.remove(0).map(drop)
}

async fn rename(view: &dyn Store, from: &str, to: &str) -> Result<()> {
    view.rename("data", &key(from), &key(to), RenameMode::Replace).await
}

async fn list(view: &dyn Store, prefix: &str) -> Result<usize> {
    let request = ListRequest { prefix: prefix.into(), limit: 100, ..ListRequest::default() };
    view.list("data", request).await.map(|page| page.entries.len())
}

fn denied<T: std::fmt::Debug>(answer: Result<T>) {
    assert_eq!(answer.unwrap_err().kind, ErrorKind::Denied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_takes_away_whichever_way_one_tries() {
    let rig = Rig::new().await;
    rig.set(
        r#"{"Sid": "keep", "Effect": "Deny", "Principal": "*", "Action": ["s3:PutObject", "s3:DeleteObject"],
            "Resource": "arn:aws:s3:::data/kept/*"}"#,
    )
    .await;
    for who in ["alice", "bob"] {
        let view = rig.user(who);
        denied(put(&*view, "kept/new").await);
        denied(delete(&*view, "kept/a").await);
        denied(rename(&*view, "kept/a", "open/stolen").await);
        denied(rename(&*view, "open/a", "kept/a").await);
        // The folder takes along what is in it.
        denied(rename(&*view, "kept/", "gone/").await);
        denied(rename(&*view, "kept", "gone").await);
        denied(view.link("data", &key("open/a"), &key("kept/linked")).await);
        let keys = ["kept/b", "open/none"].map(|file| (key(file), Condition::default())).to_vec();
        let answers = view.delete("data", keys).await.unwrap();
        assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
        get(&*view, "kept/a").await.unwrap();
        put(&*view, &format!("open/{who}")).await.unwrap();
    }
    // Whoever runs the cluster is not bound by it.
    let operator = rig.guard.operator("test");
    operator
        .delete("acme_data", vec![(key("kept/b"), Condition::default())])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    // Nor is the policy itself: it can be taken back by those who may do everything.
    set(&*rig.user("bob"), None).await.unwrap();
    put(&*rig.user("bob"), "kept/new").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_gives_what_a_user_lacks_and_no_more() {
    let rig = Rig::new().await;
    let (member, reader) = (rig.user("member"), rig.user("reader"));
    denied(get(&*member, "shared/x").await);
    denied(member.volume("data").await);
    rig.set(
        r#"[{"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::acme:user/member"},
             "Action": ["s3:GetObject", "s3:DeleteObject"], "Resource": "arn:aws:s3:::data/shared/*"},
            {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::acme:user/member"},
             "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::data",
             "Condition": {"StringLike": {"s3:prefix": "shared/*"}}},
            {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::acme:user/reader"},
             "Action": "s3:PutObject", "Resource": "arn:aws:s3:::data/inbox/${aws:username}/*"}]"#,
    )
    .await;
    get(&*member, "shared/x").await.unwrap();
    assert_eq!(member.volume("data").await.unwrap().name, "data");
    assert_eq!(list(&*member, "shared/").await.unwrap(), 1);
    denied(list(&*member, "").await);
    denied(get(&*member, "open/a").await);
    denied(put(&*member, "shared/y").await);
    denied(delete(&*member, "open/a").await);
    delete(&*member, "shared/x").await.unwrap();
    put(&*rig.user("alice"), "shared/x").await.unwrap();
    put(&*reader, "inbox/reader/1").await.unwrap();
    denied(put(&*reader, "inbox/other/1").await);
    denied(delete(&*reader, "inbox/reader/1").await);
    // Only who may change all of the volume decides who may what.
    denied(set(&*member, None).await);
    denied(set(&*reader, None).await);
    let wrong = set(&*rig.user("alice"), Some(r#"{"Statement": [], "Foo": 1}"#)).await.unwrap_err();
    assert_eq!(wrong.kind, ErrorKind::Invalid);
    assert!(wrong.message.contains("unknown field `Foo`") && wrong.message.contains("line 1"), "{wrong:?}");
    get(&*member, "shared/x").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_asks_where_a_request_comes_from() {
    let rig = Rig::new().await;
    rig.set(
        r#"[{"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*",
             "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
            {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*",
             "Condition": {"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}]"#,
    )
    .await;
    let alice = rig.user("alice");
    let from = |address: &str, is_tls| Origin { address: address.into(), is_tls, ..Origin::default() };
    from("10.1.2.3:999", true).scope(get(&*alice, "open/a")).await.unwrap();
    denied(from("10.1.2.3:999", false).scope(get(&*alice, "open/a")).await);
    denied(from("192.0.2.1:999", true).scope(get(&*alice, "open/a")).await);
    denied(from("", true).scope(get(&*alice, "open/a")).await);
    denied(get(&*alice, "open/a").await);
    // A view of one connection knows where that comes from.
    let connected = rig.user("alice");
    connected.comes_from(from("10.9.9.9:1", true));
    get(&*connected, "open/a").await.unwrap();
    assert_eq!(list(&*connected, "").await.unwrap(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_cannot_be_read_closes_the_volume_to_tenants() {
    let rig = Rig::new().await;
    rig.node.set_volume_setting("acme_data", POLICY_SETTING, Some(b"{\"Later\": 1}".to_vec())).await.unwrap();
    // Nobody has asked about it lately on this view of the cluster.
    let guard = Guard::new(rig.node.clone() as Arc<dyn Store>);
    let alice = guard.user(UserName::parse("acme/alice").unwrap(), "test");
    denied(get(&*alice, "open/a").await);
    guard.operator("test").open("acme_data", &key("open/a")).await.unwrap();
    set(&*alice, None).await.unwrap();
    get(&*alice, "open/a").await.unwrap();
}
