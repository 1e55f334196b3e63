//! The first bytes of a connection: who speaks which versions, and proof of the token without showing it.
//!
//! Client hello, server hello, proof of the client, verdict. Both proofs are HMAC-SHA256 with the token over both
//! hellos, or for the token of a user what [`stoker_access::token`] says; each hello carries a fresh nonce, so a recorded proof is worth nothing and the server proves itself too.
//! A server that wants no token proves nothing; over TCP a client that has one turns away from it.
//! The token does not cross the wire. The bytes after the hello are neither encrypted nor signed unless all of it goes in TLS.

use std::io;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use stoker_access::token::{self, UserToken};
use stoker_format::{ClusterId, crc32c};
use stoker_store::{ErrorKind, StoreError, TokenCheck};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::fault::Fault;

/// The protocol that this release speaks. 2: leases, and volumes say whether they allow them. 3: checkpoint
/// sets, and orders of operators. 4: changes in the middle of files, and what names are. 5: names that swap, files with
/// several names. 6: bytes of writers without a checksum of each frame, edits that
/// learn at their end what they go on with. 7: bytes of writers through memory that both sides share. 8: holes.
/// 9: errors say more of what they are about. 10: tenants and users. 11: locks. 12: jobs, and the job of a connection; versions, settings of volumes. (D23)
pub const VERSION: u16 = 12;
/// The oldest protocol that this release understands.
pub const VERSION_MIN: u16 = 1;

/// Length of a client hello.
pub const CLIENT_HELLO_LEN: usize = 68;
/// Length of a server hello.
pub const SERVER_HELLO_LEN: usize = 68;
/// Length of a proof.
pub const PROOF_LEN: usize = 32;
/// Length of a verdict.
pub const VERDICT_LEN: usize = 48;

const CLIENT_MAGIC: [u8; 8] = *b"STOKER?\n";
const SERVER_MAGIC: [u8; 8] = *b"STOKER!\n";
const FLAG_TOKEN: u16 = 1;

/// What a client says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientHello {
    /// Newest version that it speaks.
    pub version: u16,
    /// Oldest version that it speaks.
    pub version_min: u16,
    /// Whose token it has: 0 for the operator's, else the number of a user's.
    pub token: u32,
    /// Drawn anew for each connection.
    pub nonce: [u8; 32],
    /// Cluster that it wants; zero for any.
    pub cluster: ClusterId,
}

/// What a server answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerHello {
    /// The version that both will speak; 0 if there is none.
    pub version: u16,
    /// Oldest version that it speaks.
    pub version_min: u16,
    /// Newest version that it speaks.
    pub version_max: u16,
    /// It wants a proof of the token.
    pub token_wanted: bool,
    /// Drawn anew for each connection.
    pub nonce: [u8; 32],
    /// Its cluster; zero where clusters have no name yet.
    pub cluster: ClusterId,
}

/// Whether the client may go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// 0: welcome. Else a reason to close.
    pub status: u8,
    /// Requests that may be under way at once.
    pub requests_max: u32,
    /// Files and writers that may be open at once.
    pub handles_max: u32,
    /// Proof of the server; zeros if no token was wanted.
    pub proof: [u8; PROOF_LEN],
}

impl Verdict {
    pub(crate) const WELCOME: u8 = 0;
    pub(crate) const TOKEN_WRONG: u8 = 1;
    pub(crate) const CONNECTIONS_FULL: u8 = 2;
    pub(crate) const CLUSTER_OTHER: u8 = 3;
    pub(crate) const TLS_WANTED: u8 = 4;

    /// Reads a verdict.
    pub fn decode(bytes: &[u8; VERDICT_LEN]) -> Result<Verdict, Fault> {
        check_crc(bytes)?;
        Ok(Verdict {
            status: bytes[0],
            requests_max: u32_at(bytes, 4),
            handles_max: u32_at(bytes, 8),
            proof: array_at(bytes, 12),
        })
    }

    /// The verdict as bytes.
    pub fn encode(&self) -> [u8; VERDICT_LEN] {
        let mut bytes = [0; VERDICT_LEN];
        bytes[0] = self.status;
        bytes[4..8].copy_from_slice(&self.requests_max.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.handles_max.to_le_bytes());
        bytes[12..44].copy_from_slice(&self.proof);
        put_crc(&mut bytes);
        bytes
    }
}

impl ClientHello {
    /// Reads a hello.
    pub fn decode(bytes: &[u8; CLIENT_HELLO_LEN]) -> Result<ClientHello, Fault> {
        if bytes[..8] != CLIENT_MAGIC {
            return Err(Fault::broken("this is no client of Stoker"));
        }
        check_crc(bytes)?;
        Ok(ClientHello {
            version: u16_at(bytes, 8),
            version_min: u16_at(bytes, 10),
            token: u32_at(bytes, 12),
            nonce: array_at(bytes, 16),
            cluster: ClusterId(array_at(bytes, 48)),
        })
    }

    /// The hello as bytes.
    pub fn encode(&self) -> [u8; CLIENT_HELLO_LEN] {
        let mut bytes = [0; CLIENT_HELLO_LEN];
        bytes[..8].copy_from_slice(&CLIENT_MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.version_min.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.token.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.nonce);
        bytes[48..64].copy_from_slice(&self.cluster.0);
        put_crc(&mut bytes);
        bytes
    }
}

impl ServerHello {
    /// Reads a hello.
    pub fn decode(bytes: &[u8; SERVER_HELLO_LEN]) -> Result<ServerHello, Fault> {
        if bytes[..8] != SERVER_MAGIC {
            return Err(Fault::broken("what listens there is no node of Stoker, or not its client port"));
        }
        check_crc(bytes)?;
        Ok(ServerHello {
            version: u16_at(bytes, 8),
            version_min: u16_at(bytes, 10),
            version_max: u16_at(bytes, 12),
            token_wanted: u16_at(bytes, 14) & FLAG_TOKEN != 0,
            nonce: array_at(bytes, 16),
            cluster: ClusterId(array_at(bytes, 48)),
        })
    }

    /// The hello as bytes.
    pub fn encode(&self) -> [u8; SERVER_HELLO_LEN] {
        let mut bytes = [0; SERVER_HELLO_LEN];
        bytes[..8].copy_from_slice(&SERVER_MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.version_min.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.version_max.to_le_bytes());
        bytes[14..16].copy_from_slice(&(FLAG_TOKEN * u16::from(self.token_wanted)).to_le_bytes());
        bytes[16..48].copy_from_slice(&self.nonce);
        bytes[48..64].copy_from_slice(&self.cluster.0);
        put_crc(&mut bytes);
        bytes
    }
}

/// The version that both sides speak; none if their ranges do not meet.
pub(crate) fn choose_version(client: &ClientHello) -> Option<u16> {
    let version = client.version.min(VERSION);
    (version >= VERSION_MIN && version >= client.version_min && version > 0).then_some(version)
}

/// What a client that knows the token sends.
pub fn proof_of_client(token: &str, client: &ClientHello, server: &ServerHello) -> [u8; PROOF_LEN] {
    let tag = hmac::sign(&key(token), &transcript(b"stoker client", client, server));
    let mut proof = [0; PROOF_LEN];
    proof.copy_from_slice(tag.as_ref());
    proof
}

fn proof_of_server(token: &str, client: &ClientHello, server: &ServerHello) -> [u8; PROOF_LEN] {
    let tag = hmac::sign(&key(token), &transcript(b"stoker server", client, server));
    let mut proof = [0; PROOF_LEN];
    proof.copy_from_slice(tag.as_ref());
    proof
}

/// Compares in constant time.
fn proves(
    token: &str,
    who: &[u8],
    client: &ClientHello,
    server: &ServerHello,
    proof: &[u8; PROOF_LEN],
) -> bool {
    hmac::verify(&key(token), &transcript(who, client, server), proof).is_ok()
}

fn key(token: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes())
}

fn transcript(who: &[u8], client: &ClientHello, server: &ServerHello) -> Vec<u8> {
    [who, &client.encode(), &server.encode()].concat()
}

/// What proves a client, and the server to it.
pub(crate) enum Known {
    /// A word that both know.
    Word(String),
    /// What checks the token of a user.
    User(TokenCheck),
}

impl Known {
    fn is_proved(&self, client: &ClientHello, server: &ServerHello, proof: &[u8; PROOF_LEN]) -> bool {
        match self {
            Known::Word(word) => proves(word, b"stoker client", client, server, proof),
            Known::User(check) => {
                token::is_right(check, &transcript(b"stoker client", client, server), proof)
            }
        }
    }

    fn prove(&self, client: &ClientHello, server: &ServerHello) -> [u8; PROOF_LEN] {
        match self {
            Known::Word(word) => proof_of_server(word, client, server),
            Known::User(check) => token::prove_node(check, &transcript(b"stoker server", client, server)),
        }
    }
}

/// What a server wants of its clients.
pub(crate) struct Terms {
    /// Proof of a token.
    pub token_wanted: bool,
    pub cluster: ClusterId,
    pub requests_max: u32,
    pub handles_max: u32,
    /// The client came without TLS to a port that takes nothing else.
    pub tls_wanted: bool,
}

/// What a client learned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Welcome {
    /// The protocol that both speak.
    pub version: u16,
    pub requests_max: u32,
    pub cluster: ClusterId,
}

/// Whether a server has to prove a token that its client has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proof {
    /// Always: anybody may listen at an address of the network, and would receive the files.
    Demanded,
    /// If the server wants the token; the mode of the socket's file says who may listen there.
    IfWanted,
}

/// The client's side of the hello.
pub(crate) async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    token: Option<&str>,
    proof_of_server: Proof,
) -> Result<Welcome, Fault> {
    let user = token.and_then(UserToken::parse);
    let client = ClientHello {
        version: VERSION,
        version_min: VERSION_MIN,
        token: user.as_ref().map_or(0, UserToken::id),
        nonce: nonce()?,
        cluster: ClusterId::ZERO,
    };
    stream.write_all(&client.encode()).await?;
    let mut raw = [0; SERVER_HELLO_LEN];
    stream.read_exact(&mut raw).await?;
    let server = ServerHello::decode(&raw)?;
    if !(VERSION_MIN..=VERSION).contains(&server.version) {
        let message = format!(
            "the node speaks protocol {} to {}, this program {VERSION_MIN} to {VERSION}; use the same release of both",
            server.version_min, server.version_max
        );
        return Err(Fault::Told(StoreError::new(ErrorKind::Invalid, message)));
    }
    let told = |kind, message: &str| Err(Fault::Told(StoreError::new(kind, message)));
    if token.is_some() && !server.token_wanted && proof_of_server == Proof::Demanded {
        return told(
            ErrorKind::Denied,
            "what listens there wants no token, so it cannot prove that it is your node; check the endpoint",
        );
    }
    let wanted = token.filter(|_| server.token_wanted);
    let proof = wanted.map_or([0; PROOF_LEN], |token| match &user {
        Some(user) => user.prove(&transcript(b"stoker client", &client, &server)),
        None => proof_of_client(token, &client, &server),
    });
    stream.write_all(&proof).await?;
    let mut raw = [0; VERDICT_LEN];
    stream.read_exact(&mut raw).await?;
    let verdict = Verdict::decode(&raw)?;
    match verdict.status {
        Verdict::WELCOME => {}
        Verdict::TOKEN_WRONG if token.is_none() => {
            return told(ErrorKind::Denied, "the node wants a token; give the one that it printed at start");
        }
        Verdict::TOKEN_WRONG => {
            return told(
                ErrorKind::Denied,
                "the node refuses this token; give the one that it printed at start",
            );
        }
        Verdict::CONNECTIONS_FULL => {
            return told(ErrorKind::Full, "the node has as many connections as it takes; try again later");
        }
        Verdict::CLUSTER_OTHER => {
            return told(ErrorKind::Invalid, "the node belongs to another cluster; check the endpoint");
        }
        Verdict::TLS_WANTED => {
            return told(
                ErrorKind::Invalid,
                "the node takes TLS alone at this port; connect to tls://HOST:PORT, with the cluster's certificate (`ca.pem` in \
                 the node's directory) in --ca or STOKER_CA",
            );
        }
        other => return Err(Fault::broken(format!("the node refuses the connection for reason {other}"))),
    }
    let is_proved = |token| match &user {
        Some(user) => user.is_proved(&transcript(b"stoker server", &client, &server), &verdict.proof),
        None => proves(token, b"stoker server", &client, &server, &verdict.proof),
    };
    if wanted.is_some_and(|token| !is_proved(token)) {
        return told(ErrorKind::Denied, "what listens there does not know the token; check the endpoint");
    }
    Ok(Welcome { version: server.version, requests_max: verdict.requests_max, cluster: server.cluster })
}

/// The server's side of the hello; returns the protocol that both speak, and the token that the client proved, if it had to. `known` is told the
/// number of a token, and `admit` is asked last, when the client has proved itself; `None` says that there is no room.
pub(crate) async fn receive<T>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    terms: &Terms,
    known: impl AsyncFnOnce(u32) -> Option<Known>,
    admit: impl FnOnce() -> Option<T>,
) -> Result<(T, u16, u32), Fault> {
    let mut raw = [0; CLIENT_HELLO_LEN];
    stream.read_exact(&mut raw).await?;
    let client = ClientHello::decode(&raw)?;
    let version = choose_version(&client);
    let server = ServerHello {
        version: version.unwrap_or(0),
        version_min: VERSION_MIN,
        version_max: VERSION,
        token_wanted: terms.token_wanted,
        nonce: nonce()?,
        cluster: terms.cluster,
    };
    stream.write_all(&server.encode()).await?;
    let Some(version) = version else {
        let (min, max) = (client.version_min, client.version);
        return Err(Fault::broken(format!("a client that speaks protocol {min} to {max}")));
    };
    let mut proof = [0; PROOF_LEN];
    stream.read_exact(&mut proof).await?;
    let known = if terms.token_wanted { known(client.token).await } else { None };
    let is_proved = known.as_ref().is_some_and(|known| known.is_proved(&client, &server, &proof));
    let denied = terms.token_wanted && !is_proved;
    let foreign = !client.cluster.is_zero() && client.cluster != terms.cluster;
    let (status, admitted, reason) = match (denied, foreign) {
        _ if terms.tls_wanted => (Verdict::TLS_WANTED, None, "a client without TLS"),
        (true, _) => (Verdict::TOKEN_WRONG, None, TOKEN_WRONG),
        (false, true) => (Verdict::CLUSTER_OTHER, None, "a client that looks for another cluster"),
        (false, false) => match admit() {
            Some(admitted) => (Verdict::WELCOME, Some(admitted), ""),
            None => (Verdict::CONNECTIONS_FULL, None, "a client beyond the limit on connections"),
        },
    };
    let proof = match &known {
        Some(known) if admitted.is_some() => known.prove(&client, &server),
        _ => [0; PROOF_LEN],
    };
    let verdict = Verdict { status, requests_max: terms.requests_max, handles_max: terms.handles_max, proof };
    stream.write_all(&verdict.encode()).await?;
    admitted.map(|admitted| (admitted, version, client.token)).ok_or_else(|| Fault::broken(reason))
}

/// What a client is that could not prove who it is.
pub(crate) const TOKEN_WRONG: &str = "a client without the right token";

fn nonce() -> Result<[u8; 32], Fault> {
    let mut nonce = [0; 32];
    SystemRandom::new().fill(&mut nonce).map_err(|_| io::Error::other("the system gives no random bytes"))?;
    Ok(nonce)
}

fn put_crc(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let crc = crc32c(&bytes[..at]);
    bytes[at..].copy_from_slice(&crc.to_le_bytes());
}

fn check_crc(bytes: &[u8]) -> Result<(), Fault> {
    let at = bytes.len() - 4;
    if crc32c(&bytes[..at]) == u32_at(bytes, at) {
        return Ok(());
    }
    Err(Fault::broken("the hello arrived damaged: its checksum does not fit"))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(version_min: u16, version: u16) -> ClientHello {
        ClientHello { version, version_min, token: 0, nonce: [3; 32], cluster: ClusterId([4; 16]) }
    }

    #[test]
    fn hellos_read_back() {
        let client = hello(1, 9);
        assert_eq!(ClientHello::decode(&client.encode()).unwrap(), client);
        let server = ServerHello {
            version: 1,
            version_min: 1,
            version_max: 2,
            token_wanted: true,
            nonce: [5; 32],
            cluster: ClusterId([6; 16]),
        };
        assert_eq!(ServerHello::decode(&server.encode()).unwrap(), server);
        let verdict = Verdict { status: 2, requests_max: 3, handles_max: 4, proof: [7; 32] };
        assert_eq!(Verdict::decode(&verdict.encode()).unwrap(), verdict);
    }

    #[test]
    fn ranges_of_versions_must_meet() {
        assert_eq!(choose_version(&hello(1, 1)), Some(1), "the release before");
        assert_eq!(choose_version(&hello(1, VERSION)), Some(VERSION));
        assert_eq!(choose_version(&hello(0, 0)), None);
        assert_eq!(choose_version(&hello(VERSION + 1, VERSION + 2)), None);
    }

    #[test]
    fn a_proof_holds_for_one_hello_and_one_side() {
        let (client, server) = (hello(1, 1), ServerHello::decode(&sample_server([1; 32]).encode()).unwrap());
        let proof = proof_of_client("secret", &client, &server);
        assert!(proves("secret", b"stoker client", &client, &server, &proof));
        assert!(!proves("other", b"stoker client", &client, &server, &proof));
        assert!(!proves("secret", b"stoker server", &client, &server, &proof));
        assert!(!proves("secret", b"stoker client", &client, &sample_server([2; 32]), &proof));
        assert!(!proves("secret", b"stoker client", &hello(1, 2), &server, &proof));
    }

    fn sample_server(nonce: [u8; 32]) -> ServerHello {
        ServerHello {
            version: 1,
            version_min: 1,
            version_max: 1,
            token_wanted: true,
            nonce,
            cluster: ClusterId::ZERO,
        }
    }
}
