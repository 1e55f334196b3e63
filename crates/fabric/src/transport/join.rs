//! How a node without a certificate gets one: over TLS that it trusts by the fingerprint in its token.
//!
//! It proves the token by a signature over its request and over the keys of this very TLS connection. Somebody in between
//! would have other keys, and learns nothing that could be used again. Who admits knows only the public half of the token, and
//! whether it still may be used. The bytes are in `docs/wire.md`.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stoker_format::NodeId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::{TlsConnector, client, server};

use super::authority::{Issued, Issuer, PublicKey};
use super::credentials::{Credentials, Identity, JOIN_PROTOCOL, crypto, identity, new_key};
use super::end::End;
use super::message::BoxFuture;
use super::refusal::Reason;
use super::socket::{self, Below};
use super::tcp::tls_end;
use super::token::{PROOF_LEN, Token, TokenId, TokenKey};
use super::verifier::{PinnedVerifier, node_of};

/// Longest request or answer.
const LEN_MAX: usize = 256 << 10;
const EXPORTER_LABEL: &[u8] = b"EXPORTER-stoker-join";
/// The form of what is said here; it changes apart from the protocol between nodes.
const VERSION: u16 = 2;
/// What somebody is told who has no token of this cluster, whatever is wrong with it.
const UNKNOWN: &str =
    "the token is not known here; make one with `stoker join-token create` on any node of the cluster";

/// Where new nodes are admitted.
#[derive(Clone)]
pub struct JoinDesk {
    /// What this node shows to those who join.
    pub credentials: Arc<Credentials>,
    /// Who signs their certificates.
    pub issuer: Arc<dyn Issuer>,
    /// Who decides.
    pub service: Arc<dyn JoinService>,
}

/// Decides who may join.
pub trait JoinService: Send + Sync {
    /// What proves a token, if there is or was one of that name.
    fn key(&self, token: TokenId) -> BoxFuture<'_, Result<Option<TokenKey>, String>>;

    /// Admits a node that has proved a token, and counts that; or says why not. Both sides' payloads are of the caller's
    /// making.
    fn admit(&self, token: TokenId, node: NodeId, payload: Bytes) -> BoxFuture<'_, Result<Bytes, String>>;
}

/// The ends of the connection by which a node joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The address of this machine that it goes out from: one by which the cluster's network knows it.
    pub local: SocketAddr,
    /// The node that admits.
    pub peer: SocketAddr,
}

/// What a node that joined has.
pub struct Joined {
    /// By which way it joined.
    pub ends: Ends,
    /// To be kept, and made [`Credentials`] of.
    pub identity: Identity,
    /// From the service that admitted it.
    pub payload: Bytes,
}

#[derive(Serialize, Deserialize)]
struct Ask {
    version: u16,
    token: [u8; 8],
    node: [u8; 16],
    key: PublicKey,
    payload: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
enum Reply {
    Admitted { authority: Vec<u8>, issued: Issued, payload: Vec<u8> },
    Refused(String),
}

/// Joins the cluster of a token through one of its nodes, given as `HOST:PORT`.
pub async fn join(
    address: &str,
    token: &Token,
    node: NodeId,
    payload: Bytes,
    deadline: Duration,
) -> Result<Joined, JoinError> {
    join_knowing(address, token, node, |_| Ok(payload.clone()), deadline).await
}

/// The same with a payload that depends on the way there. One that cannot be made ends it before anything is said.
pub async fn join_knowing(
    address: &str,
    token: &Token,
    node: NodeId,
    payload: impl Fn(Ends) -> Result<Bytes, String>,
    deadline: Duration,
) -> Result<Joined, JoinError> {
    let joining = async {
        let mut last = JoinError::Unreachable(format!("{address}: no such host"));
        let found = lookup_host(address).await.map_err(|error| unreachable(address, &error))?;
        for place in found {
            match socket::dial(place, None).await {
                Ok(stream) => {
                    let ends = |stream: &TcpStream| -> std::io::Result<Ends> {
                        Ok(Ends { local: stream.local_addr()?, peer: stream.peer_addr()? })
                    };
                    let ends = ends(&stream).map_err(|error| unreachable(address, &error))?;
                    let payload = payload(ends).map_err(JoinError::Unfit)?;
                    return join_over(stream, ends, token, node, &payload).await;
                }
                Err(error) => last = unreachable(address, &error),
            }
        }
        Err(last)
    };
    let late = || Err(JoinError::Unreachable(format!("{address}: no answer in time")));
    tokio::time::timeout(deadline, joining).await.unwrap_or_else(|_| late())
}

async fn join_over(
    stream: TcpStream,
    ends: Ends,
    token: &Token,
    node: NodeId,
    payload: &[u8],
) -> Result<Joined, JoinError> {
    let mut stream = connect(stream, token).await?;
    let key = new_key().map_err(|error| JoinError::Broken(error.to_string()))?;
    let ask = Ask {
        version: VERSION,
        token: token.key().id().0,
        node: node.0,
        key: PublicKey::of(&key),
        payload: payload.to_vec(),
    };
    let body = postcard::to_stdvec(&ask).expect("plain values encode");
    if body.len() > LEN_MAX {
        return Err(JoinError::Broken(format!("a request of {} bytes; the limit is {LEN_MAX}", body.len())));
    }
    let proof = token.sign(&[&exporter(stream.get_ref().1)?, &body[..]].concat());
    write(&mut stream, &[&body, &proof]).await?;
    let reply = read(&mut stream, LEN_MAX).await?;
    let (authority, issued, payload) = match decode(&reply)? {
        Reply::Refused(why) => return Err(JoinError::Refused(why)),
        Reply::Admitted { authority, issued, payload } => (authority, issued, payload),
    };
    if super::authority::fingerprint(&authority) != token.fingerprint {
        return Err(JoinError::Untrusted);
    }
    let certified = node_of(&issued.certificate.as_slice().into());
    let Some((cluster, _)) = certified.filter(|(_, certified)| *certified == node) else {
        return Err(JoinError::Broken("the certificate is of another node".into()));
    };
    let identity = identity(cluster, node, &authority, issued, &key);
    Ok(Joined { ends, identity, payload: payload.into() })
}

async fn connect(stream: TcpStream, token: &Token) -> Result<client::TlsStream<Below>, JoinError> {
    let provider = Arc::new(crypto());
    let verifier = PinnedVerifier { fingerprint: token.fingerprint, provider: provider.clone() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| JoinError::Broken(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![JOIN_PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    let name = ServerName::IpAddress(stream.peer_addr().map_err(End::Io)?.ip().into());
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, socket::below_tls(stream));
    Ok(connecting.await.map_err(|error| tls_end(End::Io(error)))?)
}

/// What a node that wants to join says, after the TLS handshake.
pub(super) async fn read_request(stream: &mut server::TlsStream<Below>) -> Result<Vec<u8>, End> {
    read(stream, LEN_MAX + PROOF_LEN).await
}

/// Answers what it says.
pub(super) async fn receive(
    stream: &mut server::TlsStream<Below>,
    asked: &[u8],
    desk: &JoinDesk,
) -> Result<(), End> {
    let at = asked.len().checked_sub(PROOF_LEN).ok_or(End::Refused(Reason::Garbage))?;
    let (body, given) = asked.split_at(at);
    let signed = [&exporter(stream.get_ref().1)?, body].concat();
    let reply = answer(desk, body, &signed, given).await?;
    let is_unknown = matches!(&reply, Reply::Refused(why) if why == UNKNOWN);
    write(stream, &[&postcard::to_stdvec(&reply).expect("plain values encode")]).await?;
    // The other side has all it wants; how it ends does not matter.
    let _ = stream.shutdown().await;
    if is_unknown { Err(End::Refused(Reason::Secret)) } else { Ok(()) }
}

/// What a request gets. Whoever has not proved a token learns nothing of it.
async fn answer(desk: &JoinDesk, body: &[u8], signed: &[u8], proof: &[u8]) -> Result<Reply, End> {
    let (version, _) = postcard::take_from_bytes::<u16>(body).map_err(|_| garbled())?;
    if version != VERSION {
        let why = format!("this node admits by form {VERSION}, not {version}; use the same release");
        return Ok(Reply::Refused(why));
    }
    let ask: Ask = decode(body)?;
    let reply = match desk.service.key(TokenId(ask.token)).await {
        Ok(Some(key)) if key.id() == TokenId(ask.token) && key.verifies(signed, proof) => {
            admit(desk, ask).await
        }
        Ok(_) => Err(UNKNOWN.to_owned()),
        Err(why) => Err(why),
    };
    Ok(reply.unwrap_or_else(Reply::Refused))
}

async fn admit(desk: &JoinDesk, ask: Ask) -> Result<Reply, String> {
    let node = NodeId(ask.node);
    if node.is_zero() {
        return Err("the id of the node is zero".into());
    }
    // Before the use is counted, so that a key which cannot be signed costs none.
    let issued = desk.issuer.issue(node, ask.key).await?;
    let payload = desk.service.admit(TokenId(ask.token), node, ask.payload.into()).await?.to_vec();
    Ok(Reply::Admitted { authority: desk.credentials.authority().to_vec(), issued, payload })
}

/// Key material that both ends of one TLS connection have, and nobody else.
fn exporter<Data>(connection: &rustls::ConnectionCommon<Data>) -> Result<[u8; 32], End> {
    let exported = connection.export_keying_material([0; 32], EXPORTER_LABEL, None);
    exported.map_err(|error| End::broken(error.to_string()))
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), parts: &[&[u8]]) -> Result<(), End> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    stream.write_all(&(len as u32).to_le_bytes()).await?;
    for part in parts {
        stream.write_all(part).await?;
    }
    Ok(stream.flush().await?)
}

async fn read(stream: &mut (impl AsyncRead + Unpin), len_max: usize) -> Result<Vec<u8>, End> {
    let len = stream.read_u32_le().await? as usize;
    if len > len_max {
        return Err(End::broken(format!("{len} bytes; the limit is {len_max}")));
    }
    // As long as what came, not as what was announced.
    let mut bytes = Vec::new();
    let read = stream.take(len as u64).read_to_end(&mut bytes).await?;
    if read < len { Err(End::Io(std::io::ErrorKind::UnexpectedEof.into())) } else { Ok(bytes) }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, End> {
    postcard::from_bytes(bytes).map_err(|_| garbled())
}

fn garbled() -> End {
    End::broken("what was said is not understood")
}

fn unreachable(address: &str, error: &std::io::Error) -> JoinError {
    JoinError::Unreachable(format!("{address}: {error}"))
}

/// Why a node did not join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JoinError {
    /// Nobody answers there. Check the address.
    Unreachable(String),
    /// What answers is not of the cluster that the token is for. Check the address, or ask for a new token.
    Untrusted,
    /// What it shows is not valid by the clock of this machine. Set the clocks of both.
    Clock,
    /// Where this node listens does not fit the way to the cluster; says why.
    Unfit(String),
    /// The cluster does not want it; says why.
    Refused(String),
    /// Something else than a node that admits others answers there.
    Broken(String),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Unreachable(why) => write!(f, "nobody answers: {why}"),
            JoinError::Untrusted => f.write_str("what answers there is not of the token's cluster"),
            JoinError::Clock => f.write_str(
                "the certificate that is shown there has expired or is not valid yet by the clock of this machine; are the \
                 clocks of both right?",
            ),
            JoinError::Unfit(why) => f.write_str(why),
            JoinError::Refused(why) => write!(f, "refused: {why}"),
            JoinError::Broken(why) => write!(f, "what answers there admits no nodes: {why}"),
        }
    }
}

impl std::error::Error for JoinError {}

impl From<End> for JoinError {
    fn from(end: End) -> JoinError {
        match end {
            End::Refused(Reason::Certificate) => JoinError::Untrusted,
            End::Refused(Reason::Clock) => JoinError::Clock,
            End::Io(error) => JoinError::Unreachable(error.to_string()),
            other => JoinError::Broken(other.to_string()),
        }
    }
}
