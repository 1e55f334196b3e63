//! How a node without a certificate gets one: over TLS that it trusts by the fingerprint in its token.
//!
//! It proves the token's secret by an HMAC over its request and over the keys of this very TLS connection. Somebody in
//! between would have other keys, and learns nothing that could be used again. The bytes are in `docs/wire.md`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
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
use super::token::Token;
use super::verifier::{PinnedVerifier, node_of};

/// Longest request or answer.
const LEN_MAX: usize = 256 << 10;
const PROOF_LEN: usize = 32;
const EXPORTER_LABEL: &[u8] = b"EXPORTER-stoker-join";
/// The form of what is said here; it changes apart from the protocol between nodes.
const VERSION: u16 = 1;

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
    /// The secrets of the tokens that are good now.
    fn secrets(&self) -> Vec<[u8; 16]>;

    /// Admits a node that has proved a secret, or says why not; both sides' payloads are of the caller's making.
    fn admit(&self, node: NodeId, payload: Bytes) -> BoxFuture<'_, Result<Bytes, String>>;
}

/// What a node that joined has.
pub struct Joined {
    /// To be kept, and made [`Credentials`] of.
    pub identity: Identity,
    /// From the service that admitted it.
    pub payload: Bytes,
}

#[derive(Serialize, Deserialize)]
struct Ask {
    version: u16,
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
    let joining = async {
        let mut last = JoinError::Unreachable(format!("{address}: no such host"));
        let found = lookup_host(address).await.map_err(|error| unreachable(address, &error))?;
        for place in found {
            match socket::dial(place, None).await {
                Ok(stream) => return join_over(stream, token, node, &payload).await,
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
    token: &Token,
    node: NodeId,
    payload: &[u8],
) -> Result<Joined, JoinError> {
    let mut stream = connect(stream, token).await?;
    let key = new_key().map_err(|error| JoinError::Broken(error.to_string()))?;
    let ask = Ask { version: VERSION, node: node.0, key: PublicKey::of(&key), payload: payload.to_vec() };
    let body = postcard::to_stdvec(&ask).expect("plain values encode");
    if body.len() > LEN_MAX {
        return Err(JoinError::Broken(format!("a request of {} bytes; the limit is {LEN_MAX}", body.len())));
    }
    let proof = proof(&token.secret, &exporter(stream.get_ref().1)?, &body);
    write(&mut stream, &[&body, proof.as_ref()]).await?;
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
    Ok(Joined { identity, payload: payload.into() })
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

/// The desk's side, after the TLS handshake.
pub(super) async fn receive(stream: &mut server::TlsStream<Below>, desk: &JoinDesk) -> Result<(), End> {
    let asked = read(stream, LEN_MAX + PROOF_LEN).await?;
    let at = asked.len().checked_sub(PROOF_LEN).ok_or(End::Refused(Reason::Garbage))?;
    let (body, given) = asked.split_at(at);
    let exporter = exporter(stream.get_ref().1)?;
    let known = desk.service.secrets().iter().any(|secret| proves(secret, &exporter, body, given));
    let reply = if known {
        admit(desk, decode(body)?).await.unwrap_or_else(Reply::Refused)
    } else {
        Reply::Refused("the token is not valid, or not valid any more; ask for a new one".into())
    };
    write(stream, &[&postcard::to_stdvec(&reply).expect("plain values encode")]).await?;
    // The other side has all it wants; how it ends does not matter.
    let _ = stream.shutdown().await;
    if known { Ok(()) } else { Err(End::Refused(Reason::Secret)) }
}

async fn admit(desk: &JoinDesk, ask: Ask) -> Result<Reply, String> {
    if ask.version != VERSION {
        return Err(format!("this node admits by form {VERSION}, not {}; use the same release", ask.version));
    }
    let node = NodeId(ask.node);
    if node.is_zero() {
        return Err("the id of the node is zero".into());
    }
    let payload = desk.service.admit(node, ask.payload.into()).await?.to_vec();
    let issued = desk.issuer.issue(node, ask.key).await?;
    Ok(Reply::Admitted { authority: desk.credentials.authority().to_vec(), issued, payload })
}

/// Key material that both ends of one TLS connection have, and nobody else.
fn exporter<Data>(connection: &rustls::ConnectionCommon<Data>) -> Result<[u8; 32], End> {
    let exported = connection.export_keying_material([0; 32], EXPORTER_LABEL, None);
    exported.map_err(|error| End::broken(error.to_string()))
}

fn proof(secret: &[u8], exporter: &[u8], body: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &[exporter, body].concat())
}

fn proves(secret: &[u8], exporter: &[u8], body: &[u8], given: &[u8]) -> bool {
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), &[exporter, body].concat(), given).is_ok()
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
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, End> {
    postcard::from_bytes(bytes).map_err(|_| End::broken("what was said is not understood"))
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
