//! Who connects is who they prove to be, and does what they may: every call through a socket, by each of them.

#[path = "../../../access/tests/calls.rs"]
mod calls;

use std::collections::HashMap;
use std::sync::Arc;

use calls::call;
use stoker_access::token::UserToken;
use stoker_access::{Action, Guard, Kind, Peers};
use stoker_client::{Client, Endpoint, Server, ServerOptions};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::*;

fn name(text: &str) -> UserName {
    UserName::parse(text).unwrap()
}

async fn change(operator: &dyn Store, change: PeopleChange) {
    // The level of a new node rises within its first moments.
    while let Err(fault) = operator.operate(Order::PeopleChange(change.clone())).await {
        assert_eq!(fault.kind, ErrorKind::Invalid, "{fault}");
        tokio::task::yield_now().await;
    }
}

async fn token(operator: &dyn Store, user: &str) -> String {
    let token = UserToken::random().unwrap();
    change(operator, PeopleChange::UserToken { name: name(user), token: Some(token.check()) }).await;
    token.text()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_makes_a_user_of_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = NodeOptions::new(folder.path().join("node"));
    options.drives = vec![DriveOptions { path: folder.path().join("ring"), size_bytes: Some(256 << 20) }];
    options.memory_bytes = 256 << 20;
    options.volume_defaults = VolumePolicy { drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
    let node = Node::open(options).await.unwrap();
    let guard = Guard::new(Arc::clone(&node) as Arc<dyn Store>);
    let boss = guard.operator("test");
    for tenant in ["acme", "beta"] {
        change(&*boss, PeopleChange::TenantCreate { tenant: tenant.into() }).await;
    }
    for (user, read_only) in [("acme/alice", false), ("acme/reader", true), ("beta/bob", false)] {
        let rights = UserRights { read_only, ..UserRights::default() };
        change(&*boss, PeopleChange::UserCreate { name: name(user), rights }).await;
    }
    node.volume_create("acme_data", VolumeOptions::default()).await.unwrap();
    let listen = vec![Endpoint::Tcp("127.0.0.1:0".into())];
    let server =
        Server::start(guard, listen, Some("operators-word".into()), ServerOptions::default()).unwrap();
    let at = server.addresses()[0].clone();
    let connect = async |token: &str| Client::connect(&at, Some(token)).await;

    let alice_token = token(&*boss, "acme/alice").await;
    let alice = connect(&alice_token).await.unwrap();
    let reader = connect(&token(&*boss, "acme/reader").await).await.unwrap();
    let bob = connect(&token(&*boss, "beta/bob").await).await.unwrap();
    let operator = connect("operators-word").await.unwrap();

    let file = Key::new("a/b").unwrap();
    let mut filler = Filler::new(alice.create("data", &file, WriteRequest::default()).await.unwrap());
    filler.put(b"bytes").await.unwrap();
    filler.finish(Finish::default()).await.unwrap();
    assert_eq!(operator.stat("acme_data", &file).await.unwrap().size, 5);

    // These do not cross the socket: parts, settings and versions are for the door of S3.
    let absent = [
        Action::UploadPartOpen,
        Action::PartChecksums,
        Action::UploadCreateFull,
        Action::VolumeSetting,
        Action::SetVolumeSetting,
        Action::Versions,
        Action::DeleteVersions,
        Action::SetVersionLock,
    ];
    for action in Action::ALL.iter().copied().filter(|action| !absent.contains(action)) {
        let is_members = !matches!(action.kind(), Kind::Watch | Kind::Operate);
        let denied =
            |answer: &Result<()>| answer.as_ref().is_err_and(|fault| fault.kind == ErrorKind::Denied);
        let answer = call(&reader, action, "data").await;
        assert_eq!(
            denied(&answer),
            !is_members || action.kind() == Kind::Write,
            "reader: {action:?}: {answer:?}"
        );
        let answer = call(&alice, action, "data").await;
        assert_eq!(denied(&answer), !is_members, "right: {action:?}: {answer:?}");
        if !matches!(action, Action::Volumes | Action::VolumeCreate | Action::Inodes) {
            let answer = call(&bob, action, "data").await;
            let fault = answer.expect_err("another tenant");
            let expect = if is_members { ErrorKind::NotFound } else { ErrorKind::Denied };
            // A volume that is there never says that a request makes no sense before it says that it is not.
            assert!(
                fault.kind == expect || fault.kind == ErrorKind::Invalid,
                "another tenant: {action:?}: {fault}"
            );
        }
    }
    assert!(operator.access_keys().await.is_ok());

    // Nobody comes in by what is not a token, by the number of somebody else's, or by one that is over.
    let others = alice_token.rsplit_once('-').unwrap().0.to_owned() + "-" + &"a".repeat(40);
    for wrong in ["wrong", others.as_str(), UserToken::random().unwrap().text().as_str()] {
        assert_eq!(connect(wrong).await.err().unwrap().kind, ErrorKind::Denied, "{wrong}");
    }
    change(&*boss, PeopleChange::UserToken { name: name("acme/alice"), token: None }).await;
    let again = token(&*boss, "acme/alice").await;
    assert_ne!(again, alice_token);
    // What an open connection may do ends with its user, a few seconds later at most; here the node is asked at once.
    operator.operate(Order::PeopleChange(PeopleChange::UserDelete { name: name("beta/bob") })).await.unwrap();
    assert_eq!(bob.volume("beta").await.unwrap_err().kind, ErrorKind::Denied);
    assert!(connect(&again).await.is_ok());
    assert_eq!(connect(&alice_token).await.err().unwrap().kind, ErrorKind::Denied);
}

#[tokio::test]
async fn users_of_a_machine_are_who_they_are_mapped_to() {
    let guard = Guard::new(Arc::new(crate::memory::Memory::new()) as Arc<dyn Store>);
    let peers = Peers { users: HashMap::from([(1000, name("acme/alice")), (0, name("acme/alice"))]) };
    let principal = |uid: u32| peers.view(&guard, uid, Some(998)).context().principal.clone();
    assert_eq!(principal(0), Principal::Operator, "root is who root is");
    assert_eq!(principal(998), Principal::Operator, "the user of the node");
    assert_eq!(principal(1000), Principal::User(name("acme/alice")));
    assert_eq!(principal(1001), Principal::Uid(1001));
    // Whom nobody mapped belongs to the default tenant, and sees no secret.
    let other = peers.view(&guard, 1001, Some(998));
    assert!(other.volumes().await.is_ok());
    assert_eq!(other.access_keys().await.unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(other.status().await.unwrap_err().kind, ErrorKind::Denied);
}
