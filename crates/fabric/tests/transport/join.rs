//! How nodes get their certificates.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use stoker_fabric::transport::{
    BoxFuture, Config, Credentials, JoinDesk, JoinError, JoinService, Reason, Security, Token, TokenId,
    TokenKey, join,
};
use stoker_format::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::proxy::Proxy;
use crate::rig::*;

/// Admits by a list of tokens; refuses one node.
struct Door {
    tokens: Mutex<Vec<TokenKey>>,
}

const UNWANTED: NodeId = NodeId([0xee; 16]);

impl JoinService for Door {
    fn key(&self, token: TokenId) -> BoxFuture<'_, Result<Option<TokenKey>, String>> {
        let found = self.tokens.lock().unwrap().iter().find(|key| key.id() == token).copied();
        Box::pin(async move { Ok(found) })
    }

    fn admit(&self, _: TokenId, node: NodeId, payload: Bytes) -> BoxFuture<'_, Result<Bytes, String>> {
        Box::pin(async move {
            if node == UNWANTED {
                return Err("that id is taken".into());
            }
            Ok([&b"welcome "[..], &payload].concat().into())
        })
    }
}

struct Desk {
    node: Node,
    token: Token,
    door: Arc<Door>,
}

fn desk(rig: &Rig) -> Desk {
    desk_with(rig, |_| ())
}

fn desk_with(rig: &Rig, change: impl FnOnce(&mut Config)) -> Desk {
    let token = Token::create(rig.authority.fingerprint()).unwrap();
    let door = Arc::new(Door { tokens: Mutex::new(vec![TokenKey([0; 32]), token.key()]) });
    let mut config = rig.config(2);
    config.join = Some(JoinDesk {
        credentials: rig.credentials(2),
        issuer: rig.authority.clone(),
        service: door.clone(),
    });
    change(&mut config);
    Desk { node: start(config), token, door }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_with_a_token_and_then_calls() {
    for rig in Rig::both() {
        let desk = desk(&rig);
        let address = desk.node.address().to_string();
        let token: Token = desk.token.to_string().parse().unwrap();
        let joined = join(&address, &token, node_id(1), "me".into(), PATIENCE).await.unwrap();
        assert_eq!(&joined.payload[..], b"welcome me");
        let credentials = Credentials::from_identity(joined.identity).unwrap();
        let mut config = rig.config(1);
        if let Security::Tls(_) = config.security {
            config = Config { security: Security::Tls(credentials), ..config };
        }
        let near = start(config);
        near.knows(&desk.node);
        assert_eq!(near.ask(desk.node.id, WHO).await.unwrap(), format!("{} 1", node_id(1)));
    }
}

/// Those who connect and say nothing, or begin and go no further, keep nobody out, however long they stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_peers_do_not_delay_a_join() {
    let rig = Rig::tls();
    // Nobody is cut off for being late.
    let desk = desk_with(&rig, |config| config.dial_timeout = Duration::from_secs(3_600));
    let mut silent = Vec::new();
    for at in 0..600 {
        let mut stream = TcpStream::connect(desk.node.address()).await.unwrap();
        if at % 2 == 0 {
            // The begin of TLS, and then nothing.
            stream.write_all(&[22, 3, 1]).await.unwrap();
        }
        silent.push(stream);
    }
    let address = desk.node.address().to_string();
    let joined = join(&address, &desk.token, node_id(1), "me".into(), PATIENCE).await.unwrap();
    assert_eq!(&joined.payload[..], b"welcome me");
    // A node of the cluster gets through, too.
    let near = rig.node(3);
    near.knows(&desk.node);
    assert_eq!(near.ask(desk.node.id, WHO).await.unwrap(), format!("{} 1", node_id(3)));
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_are_wrong() {
    let rig = Rig::tls();
    let desk = desk(&rig);
    let address = desk.node.address().to_string();
    let try_with = async |token: &Token, node: NodeId, address: &str| {
        join(address, token, node, "me".into(), PATIENCE).await.err().expect("refused")
    };
    let other_secret = Token { secret: [7; 16], ..desk.token.clone() };
    let refused = try_with(&other_secret, node_id(1), &address).await;
    assert!(matches!(refused, JoinError::Refused(ref why) if why.contains("token")), "{refused}");
    assert_eq!(desk.node.transport.refusals(), [(Reason::Secret, 1)]);
    let other_cluster = Token { fingerprint: [7; 32], ..desk.token.clone() };
    assert_eq!(try_with(&other_cluster, node_id(1), &address).await, JoinError::Untrusted);
    let taken = try_with(&desk.token, UNWANTED, &address).await;
    assert_eq!(taken, JoinError::Refused("that id is taken".into()));
    // A token that is no longer good.
    desk.door.tokens.lock().unwrap().clear();
    assert!(matches!(try_with(&desk.token, node_id(1), &address).await, JoinError::Refused(_)));
    // A node that admits nobody, something else, and nobody at all.
    let closed = rig.node(3);
    let refused = try_with(&desk.token, node_id(1), &closed.address().to_string()).await;
    assert!(matches!(refused, JoinError::Broken(_)), "{refused}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let web = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut first = [0; 10];
        stream.read_exact(&mut first).await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    assert!(matches!(try_with(&desk.token, node_id(1), &web).await, JoinError::Broken(_)));
    assert!(matches!(try_with(&desk.token, node_id(1), "127.0.0.1:1").await, JoinError::Unreachable(_)));
}

/// Somebody in between who has a certificate of the cluster's form, but not the authority, learns nothing and is noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_in_between_is_noticed() {
    let rig = Rig::tls();
    let honest = desk(&rig);
    let impostor = desk(&Rig::tls());
    let proxy = Proxy::to(impostor.node.address()).await;
    let address = proxy.address.to_string();
    let noticed = join(&address, &honest.token, node_id(1), "me".into(), PATIENCE).await.err().unwrap();
    assert_eq!(noticed, JoinError::Untrusted);
    assert!(proxy.passed() > 0);
}
