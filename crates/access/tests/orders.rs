//! Every order of everybody. An order without a line here does not compile.

use std::sync::Arc;

use stoker_access::{Action, Guard, Kind, Resource, Rights, decide, order_action};
use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{
    AccessKey, AccountName, ErrorKind, Order, PeopleChange, QosRequest, QosSpec, QosSubject, QuotaLimits,
    Store, TierOrder, UserName, UserRights, VolumeOptions,
};

/// Who may give an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum May {
    /// Whoever may look at the cluster.
    Viewers,
    /// Whoever runs it.
    Operators,
}

macro_rules! orders {
    ($($may:ident: $name:ident $({ $($fields:tt)* })? $(( $($inner:tt)* ))?,)*) => {
        /// One of each.
        fn orders() -> Vec<(Order, May)> {
            vec![$((Order::$name $({ $($fields)* })? $(( $($inner)* ))?, May::$may),)*]
        }

        /// Has no arm for others, so that a new order is entered above.
        fn is_listed(order: &Order) -> bool {
            match order { $(Order::$name { .. } => true,)* }
        }
    };
}

fn text() -> String {
    "nobody".to_owned()
}

fn key() -> AccessKey {
    AccessKey {
        access_key: "STKNEW".into(),
        secret_key: "secret".into(),
        access: Default::default(),
        created_ms: 0,
    }
}

orders! {
    Viewers: Catalog,
    Operators: CatalogPromote { accept_loss: false },
    Operators: CatalogDetach { node: text() },
    Viewers: CanStop { node: None },
    Viewers: Protection,
    Viewers: Nodes,
    Operators: Quarantine { node: text(), force: false },
    Operators: Rejoin { node: text() },
    Operators: Evacuate { node: text(), force: false },
    Viewers: Evacuation { node: text() },
    Viewers: Risk,
    Viewers: Lost,
    Viewers: Rebuild,
    Viewers: Drives { node: None },
    Operators: DriveAdd { node: text(), path: text(), size_bytes: None },
    Operators: DriveRemove { node: text(), drive: text(), force: false },
    Viewers: DriveLosses { node: text(), drive: text() },
    // Everything that there is, secrets included.
    Operators: CatalogRows { state: None, after: None },
    Operators: KeyRotate { access_key: text(), grace_ms: 0 },
    Operators: JoinTokenRotate,
    Viewers: Fabric { from: text(), to: text() },
    Viewers: Measures { node: None },
    Operators: DriveCordon { node: text(), drive: text(), cordoned: true },
    Viewers: Note { name: text() },
    Operators: NoteAdd { name: text(), line: text() },
    Operators: JoinTokenCreate { ttl_ms: 1_000, uses: 1 },
    // Without the tokens themselves.
    Viewers: JoinTokens,
    Operators: JoinTokenRevoke { id: None },
    Viewers: Unreachable,
    Operators: NodeRemove { node: text(), force: false, accept_loss: false },
    Viewers: Outages,
    Viewers: History { node: None, since_ms: 0, every_ms: 1_000 },
    Viewers: Removals { node: None },
    Viewers: Level,
    Operators: LevelHold { held: true },
    Operators: EncryptedVolume { name: text(), options: VolumeOptions::default() },
    Viewers: DataKeys,
    Operators: DataKeyRotate { volume: text() },
    Operators: DataKeyDestroy { volume: text() },
    Viewers: People,
    Operators: PeopleChange(PeopleChange::Quota {
        account: AccountName::Tenant("acme".into()),
        limits: QuotaLimits::default(),
    }),
    Viewers: Accounts,
    Operators: KeyCreate { key: key(), lifetime_ms: Some(1_000) },
    Viewers: KeyTimes,
    Viewers: Qos,
    Operators: QosSet(Box::new(QosRequest {
        subject: QosSubject { tenant: Some("acme".into()), ..QosSubject::default() },
        spec: QosSpec::default(),
        export: None,
        request: None,
        is_new: false,
    })),
    Operators: QosUnset { id: text() },
    Viewers: QosSeen,
    Operators: QosShares(Vec::new()),
    // It writes to the lake.
    Operators: Tiers(TierOrder::LakeCheck { name: text() }),
}

#[test]
fn every_order_needs_what_the_table_says() {
    for (order, may) in orders() {
        assert!(is_listed(&order));
        let expect = match may {
            May::Viewers => Kind::Watch,
            May::Operators => Kind::Operate,
        };
        let action = order_action(&order);
        assert_eq!(action.kind(), expect, "{order:?}");
        assert!(decide(&Rights::Operator, action, Resource::Cluster).is_allowed(), "{order:?}");
        assert_eq!(decide(&Rights::Viewer, action, Resource::Cluster).is_allowed(), may == May::Viewers);
    }
    assert!(Action::ALL.contains(&Action::Operate));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_but_operators_and_viewers_gives_any() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = NodeOptions::new(dir.path().join("node"));
    options.drives = vec![DriveOptions { path: dir.path().join("ring"), size_bytes: Some(256 << 20) }];
    options.memory_bytes = 256 << 20;
    let node = Node::open(options).await.unwrap();
    let guard = Guard::new(node.clone() as Arc<dyn Store>);
    let name = |text: &str| UserName::parse(text).unwrap();
    let boss = guard.operator("test");
    for (user, read_only) in [("default/dora", false), ("default/reader", true)] {
        let rights = UserRights { read_only, ..UserRights::default() };
        let create = Order::PeopleChange(PeopleChange::UserCreate { name: name(user), rights });
        // The level of a new node rises within its first moments.
        while let Err(fault) = boss.operate(create.clone()).await {
            assert_eq!(fault.kind, ErrorKind::Invalid, "{fault}");
            tokio::task::yield_now().await;
        }
    }
    let viewer = guard.viewer("test");
    let others = [
        ("anonymous", guard.anonymous("test")),
        ("a user", guard.user(name("default/dora"), "test")),
        ("who may read", guard.user(name("default/reader"), "test")),
        ("nobody's user", guard.user(name("acme/ghost"), "test")),
    ];
    for (order, may) in orders() {
        for (who, view) in &others {
            let fault = view.operate(order.clone()).await.expect_err("is for operators");
            assert_eq!(fault.kind, ErrorKind::Denied, "{who}: {order:?}: {fault}");
        }
        if may == May::Operators {
            let fault = viewer.operate(order.clone()).await.expect_err("is for operators");
            assert_eq!(fault.kind, ErrorKind::Denied, "viewer: {order:?}: {fault}");
        } else if let Err(fault) = viewer.operate(order.clone()).await {
            assert_ne!(fault.kind, ErrorKind::Denied, "viewer: {order:?}: {fault}");
        }
    }
    node.stop().await;
}
