//! The first bytes of a connection: which versions, which cluster, which nodes, and proof of it. Drawn in
//! `docs/wire.md`.
//!
//! Hello of the dialer; hello and verdict of the acceptor; verdict of the dialer; last verdict of the acceptor. Under TLS
//! the certificates are the proof. In plaintext both verdicts carry an HMAC-SHA256 with the cluster's secret over both
//! hellos, each of which has a fresh nonce, so a recorded proof is worth nothing; what follows is neither encrypted nor
//! signed.

use aws_lc_rs::hmac;
use stoker_format::{ClusterId, NodeId, crc32c};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::end::End;
use super::refusal::Reason;

/// The protocol that this release speaks. 2: feature bits in the hello.
pub const VERSION: u16 = 2;
/// The oldest protocol that this release understands.
pub const VERSION_MIN: u16 = 1;
/// What this release can do beyond its version; no bit has a meaning yet.
const FEATURES: u64 = 0;

pub(super) const HELLO_LEN: usize = 124;
const VERDICT_LEN: usize = 40;
const PROOF_LEN: usize = 32;
pub(super) const DIALER_MAGIC: [u8; 8] = *b"STOKER>\n";
const ACCEPTOR_MAGIC: [u8; 8] = *b"STOKER<\n";
const FLAG_SECRET: u16 = 1;

/// What a connection is used for, so that small requests never wait behind bulk bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Lane {
    /// Requests and answers without much of a body.
    Small = 1,
    /// The others.
    Bulk = 2,
}

/// What a node says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub version: u16,
    pub version_min: u16,
    /// It proves itself by the cluster's secret.
    pub by_secret: bool,
    pub lane: u8,
    pub features: u64,
    pub cluster: ClusterId,
    pub node: NodeId,
    /// Whom it believes to speak to; the acceptor leaves it zero.
    pub other: NodeId,
    pub session: u64,
    pub nonce: [u8; 32],
    /// Requests that it serves at once on this connection.
    pub requests_max: u32,
    /// Bytes of bodies, of requests or expected in answers, that may be under way to it on this connection.
    pub window: u32,
}

impl Hello {
    fn decode(bytes: &[u8; HELLO_LEN], magic: [u8; 8]) -> Result<Hello, End> {
        if bytes[..8] != magic {
            return Err(End::Refused(Reason::Garbage));
        }
        check_crc(bytes)?;
        Ok(Hello {
            version: u16::from_le_bytes(array_at(bytes, 8)),
            version_min: u16::from_le_bytes(array_at(bytes, 10)),
            by_secret: u16::from_le_bytes(array_at(bytes, 12)) & FLAG_SECRET != 0,
            lane: bytes[14],
            features: u64::from_le_bytes(array_at(bytes, 16)),
            cluster: ClusterId(array_at(bytes, 24)),
            node: NodeId(array_at(bytes, 40)),
            other: NodeId(array_at(bytes, 56)),
            session: u64::from_le_bytes(array_at(bytes, 72)),
            nonce: array_at(bytes, 80),
            requests_max: u32::from_le_bytes(array_at(bytes, 112)),
            window: u32::from_le_bytes(array_at(bytes, 116)),
        })
    }

    fn encode(&self, magic: [u8; 8]) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&magic);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.version_min.to_le_bytes());
        bytes[12..14].copy_from_slice(&(FLAG_SECRET * u16::from(self.by_secret)).to_le_bytes());
        bytes[14] = self.lane;
        bytes[16..24].copy_from_slice(&self.features.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.cluster.0);
        bytes[40..56].copy_from_slice(&self.node.0);
        bytes[56..72].copy_from_slice(&self.other.0);
        bytes[72..80].copy_from_slice(&self.session.to_le_bytes());
        bytes[80..112].copy_from_slice(&self.nonce);
        bytes[112..116].copy_from_slice(&self.requests_max.to_le_bytes());
        bytes[116..120].copy_from_slice(&self.window.to_le_bytes());
        put_crc(&mut bytes);
        bytes
    }
}

/// Whether the other side may go on.
struct Verdict {
    refused: Option<Reason>,
    proof: [u8; PROOF_LEN],
}

impl Verdict {
    async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Verdict, End> {
        let mut bytes = [0; VERDICT_LEN];
        stream.read_exact(&mut bytes).await?;
        check_crc(&bytes)?;
        let refused = (bytes[0] != 0).then(|| Reason::from_byte(bytes[0]));
        Ok(Verdict { refused, proof: array_at(&bytes, 4) })
    }

    fn encode(&self) -> [u8; VERDICT_LEN] {
        let mut bytes = [0; VERDICT_LEN];
        bytes[0] = self.refused.map_or(0, |reason| reason as u8);
        bytes[4..36].copy_from_slice(&self.proof);
        put_crc(&mut bytes);
        bytes
    }

    async fn refuse(stream: &mut (impl AsyncWrite + Unpin), reason: Reason) -> End {
        let verdict = Verdict { refused: Some(reason), proof: [0; PROOF_LEN] };
        // The refusal stands whether the other side hears of it or not.
        let _ = stream.write_all(&verdict.encode()).await;
        let _ = stream.flush().await;
        End::Refused(reason)
    }
}

/// What a node says and wants in every hello.
#[derive(Clone)]
pub(super) struct Introduction {
    pub cluster: ClusterId,
    pub node: NodeId,
    pub session: u64,
    /// The proof in plaintext; none under TLS.
    pub secret: Option<hmac::Key>,
    pub requests_max: u32,
    pub window: u32,
}

/// What a hello told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Met {
    pub node: NodeId,
    pub session: u64,
    pub version: u16,
    pub requests_max: u32,
    pub window: u32,
}

impl Introduction {
    fn hello(&self, other: NodeId, lane: u8) -> Result<Hello, End> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|_| std::io::Error::other("the system gives no random bytes"))?;
        Ok(Hello {
            version: VERSION,
            version_min: VERSION_MIN,
            by_secret: self.secret.is_some(),
            lane,
            features: FEATURES,
            cluster: self.cluster,
            node: self.node,
            other,
            session: self.session,
            nonce,
            requests_max: self.requests_max,
            window: self.window,
        })
    }

    /// The dialer's side. `certified` is the node of the other side's certificate, under TLS.
    pub async fn greet(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        to: NodeId,
        lane: Lane,
        certified: Option<NodeId>,
    ) -> Result<Met, End> {
        let mine = self.hello(to, lane as u8)?;
        stream.write_all(&mine.encode(DIALER_MAGIC)).await?;
        stream.flush().await?;
        let theirs = Hello::decode(&read(stream).await?, ACCEPTOR_MAGIC)?;
        let verdict = Verdict::read(stream).await?;
        if let Some(reason) = verdict.refused {
            return Err(End::Refused(reason));
        }
        let transcript = [mine.encode(DIALER_MAGIC), theirs.encode(ACCEPTOR_MAGIC)].concat();
        let version = match self.judge(&theirs, certified) {
            Ok(version) if theirs.node == to => version,
            Ok(_) => return Err(Verdict::refuse(stream, Reason::OtherNode).await),
            Err(reason) => return Err(Verdict::refuse(stream, reason).await),
        };
        if !self.proves(b"stoker acceptor", &transcript, &verdict.proof) {
            return Err(Verdict::refuse(stream, Reason::Secret).await);
        }
        let verdict = Verdict { refused: None, proof: self.proof(b"stoker dialer", &transcript) };
        stream.write_all(&verdict.encode()).await?;
        stream.flush().await?;
        match Verdict::read(stream).await?.refused {
            Some(reason) => Err(End::Refused(reason)),
            None => Ok(met(&theirs, version)),
        }
    }

    /// The acceptor's side. `admit` is asked last, about a node that has proved itself.
    pub async fn receive<T>(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        certified: Option<NodeId>,
        admit: impl FnOnce(&Met) -> Result<T, Reason>,
    ) -> Result<(Met, T), End> {
        let theirs = Hello::decode(&read(stream).await?, DIALER_MAGIC)?;
        let mine = self.hello(NodeId::ZERO, theirs.lane)?;
        stream.write_all(&mine.encode(ACCEPTOR_MAGIC)).await?;
        let transcript = [theirs.encode(DIALER_MAGIC), mine.encode(ACCEPTOR_MAGIC)].concat();
        let version = match self.judge(&theirs, certified) {
            Ok(version) if theirs.other == self.node => version,
            Ok(_) => return Err(Verdict::refuse(stream, Reason::OtherNode).await),
            Err(reason) => return Err(Verdict::refuse(stream, reason).await),
        };
        let verdict = Verdict { refused: None, proof: self.proof(b"stoker acceptor", &transcript) };
        stream.write_all(&verdict.encode()).await?;
        stream.flush().await?;
        let answer = Verdict::read(stream).await?;
        if let Some(reason) = answer.refused {
            return Err(End::Refused(reason));
        }
        if !self.proves(b"stoker dialer", &transcript, &answer.proof) {
            return Err(Verdict::refuse(stream, Reason::Secret).await);
        }
        let met = met(&theirs, version);
        let admitted = match admit(&met) {
            Ok(admitted) => admitted,
            Err(reason) => return Err(Verdict::refuse(stream, reason).await),
        };
        let welcome = Verdict { refused: None, proof: [0; PROOF_LEN] };
        stream.write_all(&welcome.encode()).await?;
        stream.flush().await?;
        Ok((met, admitted))
    }

    /// Answers the hello of a dialer that chose the wrong kind of connection.
    pub async fn turn_away(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        reason: Reason,
    ) -> Result<End, End> {
        let theirs = Hello::decode(&read(stream).await?, DIALER_MAGIC)?;
        stream.write_all(&self.hello(NodeId::ZERO, theirs.lane)?.encode(ACCEPTOR_MAGIC)).await?;
        Ok(Verdict::refuse(stream, reason).await)
    }

    /// The version that both speak, if nothing speaks against the other side.
    fn judge(&self, theirs: &Hello, certified: Option<NodeId>) -> Result<u16, Reason> {
        let version = choose_version(theirs).ok_or(Reason::Version)?;
        if theirs.cluster != self.cluster {
            return Err(Reason::Cluster);
        }
        if theirs.by_secret != self.secret.is_some() {
            return Err(Reason::Security);
        }
        if theirs.node == self.node {
            return Err(Reason::OwnId);
        }
        if certified.is_some_and(|node| node != theirs.node) {
            return Err(Reason::Certificate);
        }
        Ok(version)
    }

    fn proof(&self, who: &[u8], transcript: &[u8]) -> [u8; PROOF_LEN] {
        let mut proof = [0; PROOF_LEN];
        if let Some(secret) = &self.secret {
            proof.copy_from_slice(hmac::sign(secret, &[who, transcript].concat()).as_ref());
        }
        proof
    }

    fn proves(&self, who: &[u8], transcript: &[u8], proof: &[u8; PROOF_LEN]) -> bool {
        let Some(secret) = &self.secret else { return true };
        hmac::verify(secret, &[who, transcript].concat(), proof).is_ok()
    }
}

fn met(hello: &Hello, version: u16) -> Met {
    let Hello { node, session, requests_max, window, .. } = *hello;
    Met { node, session, version, requests_max, window }
}

/// The version that both sides speak; none if their ranges do not meet.
fn choose_version(theirs: &Hello) -> Option<u16> {
    let version = theirs.version.min(VERSION);
    (version >= VERSION_MIN && version >= theirs.version_min).then_some(version)
}

async fn read<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> Result<[u8; N], End> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn put_crc(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let crc = crc32c(&bytes[..at]);
    bytes[at..].copy_from_slice(&crc.to_le_bytes());
}

fn check_crc(bytes: &[u8]) -> Result<(), End> {
    let at = bytes.len() - 4;
    if crc32c(&bytes[..at]) == u32::from_le_bytes(array_at(bytes, at)) {
        return Ok(());
    }
    Err(End::broken("the hello arrived damaged: its checksum does not fit"))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introduction(node: u8, secret: Option<&[u8]>) -> Introduction {
        Introduction {
            cluster: ClusterId([1; 16]),
            node: NodeId([node; 16]),
            session: 7,
            secret: secret.map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret)),
            requests_max: 3,
            window: 4,
        }
    }

    /// What both sides make of each other: none for a welcome.
    async fn meet(dialer: &Introduction, acceptor: &Introduction, to: u8) -> [Option<Reason>; 2] {
        let (mut near, mut far) = tokio::io::duplex(4096);
        let greet = async {
            let greeted = dialer.greet(&mut near, NodeId([to; 16]), Lane::Small, None).await;
            drop(near);
            greeted.map(|_| ())
        };
        let receive = acceptor.receive(&mut far, None, |_| Ok(()));
        let (greeted, received) = tokio::join!(greet, receive);
        [greeted, received.map(|_| ())].map(|met| match met {
            Ok(()) => None,
            Err(End::Refused(reason)) => Some(reason),
            Err(end) => panic!("{end}"),
        })
    }

    #[tokio::test]
    async fn both_sides_learn_why_they_do_not_go_together() {
        let plain = introduction(1, None);
        let other_cluster = Introduction { cluster: ClusterId([9; 16]), ..introduction(2, None) };
        for (acceptor, to, expect) in [
            (introduction(2, None), 2, None),
            (other_cluster, 2, Some(Reason::Cluster)),
            (introduction(2, None), 3, Some(Reason::OtherNode)),
            (introduction(1, None), 1, Some(Reason::OwnId)),
            (introduction(2, Some(b"s")), 2, Some(Reason::Security)),
        ] {
            assert_eq!(meet(&plain, &acceptor, to).await, [expect; 2]);
        }
        let secret = introduction(1, Some(b"secret"));
        assert_eq!(meet(&secret, &introduction(2, Some(b"secret")), 2).await, [None; 2]);
        assert_eq!(meet(&secret, &introduction(2, Some(b"other")), 2).await, [Some(Reason::Secret); 2]);
    }

    #[test]
    fn ranges_of_versions_must_meet() {
        let hello = introduction(1, None).hello(NodeId::ZERO, 1).unwrap();
        let of = |version_min, version| Hello { version_min, version, ..hello };
        assert_eq!(choose_version(&of(VERSION - 1, VERSION - 1)), Some(VERSION - 1), "the release before");
        assert_eq!(choose_version(&of(VERSION, VERSION + 7)), Some(VERSION));
        assert_eq!(choose_version(&of(0, VERSION_MIN - 1)), None);
        assert_eq!(choose_version(&of(VERSION + 1, VERSION + 2)), None);
        assert_eq!(Hello::decode(&hello.encode(DIALER_MAGIC), DIALER_MAGIC).unwrap(), hello);
    }

    #[test]
    fn a_proof_is_of_one_side_and_one_hello() {
        let node = introduction(1, Some(b"secret"));
        let proof = node.proof(b"stoker dialer", b"hellos");
        assert!(node.proves(b"stoker dialer", b"hellos", &proof));
        assert!(!node.proves(b"stoker acceptor", b"hellos", &proof));
        assert!(!node.proves(b"stoker dialer", b"others", &proof));
        assert!(!introduction(1, Some(b"other")).proves(b"stoker dialer", b"hellos", &proof));
    }
}
