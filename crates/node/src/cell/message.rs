//! What nodes ask of each other, in bytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use stoker_format::{ChunkId, KeyId, Seal, VersionId};
use stoker_schema::level::Level;
use stoker_store::{ErrorKind, Order, Report, Result, StoreError, Subject};

use crate::admission::WireWork;
use crate::sealing::SealedPart;

/// The form of these messages; a node reads its own and the one before.
const VERSION: u8 = 1;

/// Most ids in one message.
pub(super) const IDS_MAX: usize = 2_000;

/// A chunk's id on the wire.
pub(crate) type WireChunk = ([u8; 12], u32);

pub(crate) fn to_wire(chunk: &ChunkId) -> WireChunk {
    (chunk.version.0, chunk.index)
}

pub(crate) fn from_wire(chunk: &WireChunk) -> ChunkId {
    ChunkId::new(VersionId(chunk.0), chunk.1)
}

/// A chunk that the body holds.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct AppendHead {
    pub chunk: WireChunk,
    pub volume: u32,
    /// It belongs to a volume that never drains.
    pub never: bool,
    /// The session of the home: what nobody refers to goes when that is over (R7).
    pub session: [u8; 16],
    /// The use that [`Ask::Done`] ends.
    pub hold: u64,
    /// The name record that goes with it, if this is the last chunk.
    pub name: Option<Vec<u8>>,
}

/// Where a chunk's bytes are in a lake, for a node that is asked to get them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct LakeHead {
    pub volume: u32,
    pub key: Vec<u8>,
    pub etag: String,
    pub start: u64,
    pub len: u32,
}

/// What a node asks.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Keep this chunk, durably.
    Append(AppendHead),
    /// Bytes of a chunk; from the lake if they are not there and this says where.
    /// Without `verified` the asker compares them with their sum itself.
    Read { chunk: WireChunk, offset: u32, len: u32, verified: bool, lake: Option<LakeHead> },
    /// The same as [`Ask::KeepLong`], however much is there: what releases before it ask.
    Keep { chunks: Vec<WireChunk>, session: [u8; 16], hold: u64 },
    /// A write is over: from now on the catalog says what is must-keep of these versions.
    Done { versions: Vec<[u8; 12]>, hold: u64 },
    /// These versions may be clean by now.
    Reconsider { versions: Vec<[u8; 12]> },
    /// Which of these does somebody read there?
    Pinned { versions: Vec<[u8; 12]> },
    /// Nothing refers to these chunks, and nobody reads them.
    Forget { chunks: Vec<WireChunk> },
    /// Is a request to this lake key under way there?
    Busy { volume: u32, key: Vec<u8> },
    /// An order about that node alone.
    Order(Order),
    /// Make these must-keep, if at least so many bytes of each are there, until the session that asks says [`Ask::Done`] or is
    /// over.
    KeepLong { chunks: Vec<(WireChunk, u32)>, session: [u8; 16], hold: u64 },
    /// Of which of these are at least so many bytes there, on drives that count?
    Have { chunks: Vec<(WireChunk, u32)> },
    /// What time is it there?
    Time,
    /// Keep this chunk, durably: the same as [`Ask::Append`] of sealed bytes. Since level 4, as the next one.
    AppendSealed { head: AppendHead, seals: Seals },
    /// A chunk as it is stored there, and at least so much of it: of a sealed one all.
    ReadStored { chunk: WireChunk, len: u32, verified: bool },
    /// What a node holds for jobs. One that does not know this question holds nothing, and says so by not understanding it.
    Job(JobAsk),
}

/// What a node is asked for by whoever leads jobs.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobAsk {
    /// Hold these chunks for a source, as far as they are there, for so long.
    Hold { source: [u8; 16], round: u64, lease_ms: u64, chunks: Vec<(WireChunk, u32)> },
    /// The same, and bring those from the lake that are not there.
    Stage { source: [u8; 16], round: u64, lease_ms: u64, files: Vec<StageFile> },
    /// Hold on to what is held for a source, but not to what was not named since a round.
    Keep { source: [u8; 16], since_round: u64, lease_ms: u64 },
    /// Let go of what is held for these sources.
    Release { sources: Vec<[u8; 16]> },
    /// How much is there of what is held for these sources?
    Count { sources: Vec<[u8; 16]> },
}

/// Chunks of one file that are to be brought.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct StageFile {
    /// The object that has them: volume, key, etag.
    pub object: (u32, Vec<u8>, String),
    /// Each with its length and its place in the object.
    pub chunks: Vec<(WireChunk, u32, u64)>,
}

/// What a node tells whoever leads jobs.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct JobHolds {
    /// Which of the chunks that were asked for are there and held.
    pub held: Vec<bool>,
    /// Bytes that are there, of each source that was asked for.
    pub bytes: Vec<u64>,
    /// Bytes that came from the lake for it.
    pub lake_bytes: u64,
    /// Bytes that it holds for jobs at most.
    pub room_bytes: u64,
    /// Why something is not held, if something is not.
    pub trouble: Option<String>,
}

/// What opens sealed bytes, on the wire.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct WireSeal {
    pub key: u32,
    pub salt: [u8; 16],
    pub tags: Vec<u8>,
}

/// Of a chunk and the name record that goes with it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seals {
    pub chunk: WireSeal,
    pub name: Option<WireSeal>,
}

impl WireSeal {
    pub fn of(seal: &Seal) -> WireSeal {
        WireSeal { key: seal.key.0, salt: seal.salt, tags: seal.tags.clone() }
    }

    /// The seal of a payload of so many bytes; foreign bytes that do not fit it are refused.
    pub fn seal(self, len: usize) -> Result<Arc<Seal>> {
        let seal = Seal { key: KeyId(self.key), salt: self.salt, tags: self.tags };
        let fault = || StoreError::new(ErrorKind::Invalid, "the seal of a chunk does not fit its bytes");
        if seal.fits(len) { Ok(Arc::new(seal)) } else { Err(fault()) }
    }
}

impl Seals {
    /// None of a plain chunk.
    pub fn of(chunk: Option<&Seal>, name: Option<&Seal>) -> Option<Seals> {
        Some(Seals { chunk: WireSeal::of(chunk?), name: name.map(WireSeal::of) })
    }
}

/// What a node answers.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Done.
    Done,
    /// The chunk is durable on this drive, acknowledged in this session.
    Appended { drive: [u8; 16], incarnation: u64, session: [u8; 16] },
    /// The body has the bytes. They should have this sum, and were not compared with it.
    Bytes { claim: Option<u32> },
    /// One for each that was asked about.
    Which(Vec<bool>),
    /// Kept, or not there, each; and the drives that have those that are kept.
    Kept { kept: Vec<bool>, drives: Vec<([u8; 16], u64)>, session: [u8; 16] },
    /// No, because.
    Fault { kind: FaultKind, message: String },
    /// What became of an order.
    Report(Box<Report>),
    /// Milliseconds since 1970.
    Time(u64),
    /// No, because; with what it is about. Since level 2.
    FaultAbout { kind: FaultKind, subject: u8, message: String },
    /// The same as [`Answer::Bytes`]: the body has whole blocks of a sealed chunk. Since level 4.
    Sealed { claim: Option<u32>, part: SealedPart },
    /// Of [`Ask::Job`].
    Job(JobHolds),
}

/// What kind of no.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    NotFound,
    Full,
    Corrupt,
    Invalid,
    Unavailable,
    Conflict,
    /// Since level 2, as the next one.
    Denied,
    Closed,
}

/// The level since which a refusal says what it is about.
const ABOUT_SINCE: Level = Level(2);

/// Kinds of refusals, and those of the door.
const KINDS: [(FaultKind, ErrorKind); 8] = [
    (FaultKind::NotFound, ErrorKind::NotFound),
    (FaultKind::Full, ErrorKind::Full),
    (FaultKind::Corrupt, ErrorKind::Corrupt),
    (FaultKind::Invalid, ErrorKind::Invalid),
    (FaultKind::Unavailable, ErrorKind::Unavailable),
    (FaultKind::Conflict, ErrorKind::Conflict),
    (FaultKind::Denied, ErrorKind::Denied),
    (FaultKind::Closed, ErrorKind::Closed),
];

/// What a refusal is about, by its number on the wire. New ones go to the end; who does not know one takes the first.
const SUBJECTS: [Subject; 22] = [
    Subject::Key,
    Subject::Volume,
    Subject::VolumeContents,
    Subject::Upload,
    Subject::Part,
    Subject::PartOrder,
    Subject::PartSize,
    Subject::Condition,
    Subject::Checksum,
    Subject::Size,
    Subject::Quota,
    Subject::Lake,
    Subject::AccessKey,
    Subject::Set,
    Subject::Links,
    Subject::Catalog,
    Subject::Node,
    Subject::PeerAddress,
    Subject::Promotion,
    Subject::Chunk,
    Subject::Holders,
    Subject::Source,
];

impl Answer {
    /// The refusal, in the form that a level allows.
    pub fn fault(fault: &StoreError, level: Level) -> Answer {
        let message = fault.message.clone();
        let known = KINDS.iter().find(|(_, kind)| *kind == fault.kind).map(|(kind, _)| *kind);
        let kind = known.unwrap_or(FaultKind::Unavailable);
        if level >= ABOUT_SINCE {
            let number = SUBJECTS.iter().position(|subject| *subject == fault.subject).unwrap_or_default();
            return Answer::FaultAbout { kind, subject: number as u8, message };
        }
        // Before, these were not told apart.
        let kind = match kind {
            FaultKind::Denied | FaultKind::Closed => FaultKind::Unavailable,
            kind => kind,
        };
        Answer::Fault { kind, message }
    }

    /// The answer, or the error that it is.
    pub fn ok(self) -> Result<Answer> {
        let (kind, subject, message) = match self {
            Answer::Fault { kind, message } => (kind, 0, message),
            Answer::FaultAbout { kind, subject, message } => (kind, subject, message),
            answer => return Ok(answer),
        };
        let known = KINDS.iter().find(|(own, _)| *own == kind).map(|(_, kind)| *kind);
        let subject = SUBJECTS.get(usize::from(subject)).copied().unwrap_or(Subject::Key);
        Err(StoreError::about(known.unwrap_or(ErrorKind::Unavailable), subject, message))
    }
}

pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_extend(message, vec![VERSION]).expect("plain data encodes")
}

/// A question, and behind it whose work it is. Releases that do not know of that look at nothing behind a question.
pub(super) fn encode_for(ask: &Ask, work: WireWork) -> Vec<u8> {
    let mut bytes = encode(ask);
    bytes.extend(postcard::to_allocvec(&work).expect("numbers can be written"));
    bytes
}

/// The same read back; of an older release, work of nobody.
pub(super) fn decode_for(bytes: &[u8]) -> Result<(Ask, Option<WireWork>)> {
    let (ask, rest) = split::<Ask>(bytes)?;
    Ok((ask, postcard::from_bytes(rest).ok()))
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    split(bytes).map(|(value, _)| value)
}

/// A message, and what stands behind it.
fn split<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8])> {
    let broken = |what: String| StoreError::new(ErrorKind::Invalid, format!("a message of a peer: {what}"));
    match bytes.split_first() {
        Some((&VERSION, body)) => postcard::take_from_bytes(body).map_err(|fault| broken(fault.to_string())),
        Some((version, _)) => Err(broken(format!("form {version}; this release knows {VERSION}"))),
        None => Err(broken("it is empty".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let chunk = ([3; 12], 9);
        for ask in [
            Ask::Append(AppendHead {
                chunk,
                volume: 1,
                never: true,
                session: [2; 16],
                hold: 5,
                name: Some(vec![1]),
            }),
            Ask::Read { chunk, offset: 1, len: 2, verified: false, lake: None },
            Ask::Busy { volume: 7, key: b"k".to_vec() },
            Ask::Time,
        ] {
            assert_eq!(decode::<Ask>(&encode(&ask)).unwrap(), ask);
        }
        for broken in [&[][..], &[0, 1], &[VERSION], &[VERSION, 200], &[9, 0]] {
            assert_eq!(decode::<Ask>(broken).unwrap_err().kind, ErrorKind::Invalid, "{broken:?}");
        }
    }

    #[test]
    fn work_stands_behind_a_question() {
        let ask = Ask::Read { chunk: ([3; 12], 9), offset: 1, len: 2, verified: false, lake: None };
        let work = WireWork::of(stoker_qos::Tag::of(stoker_qos::Class::Repair).job(7).volume(3));
        let bytes = encode_for(&ask, work);
        assert_eq!(decode_for(&bytes).unwrap(), (ask.clone(), Some(work)));
        // A release that does not know of it reads the question, and this one reads one without.
        let old: Ask = postcard::from_bytes(&bytes[1..]).unwrap();
        assert_eq!(old, ask);
        assert_eq!(decode_for(&encode(&ask)).unwrap(), (ask.clone(), None));
        assert_eq!(decode_for(&[encode(&ask), vec![0xff; 40]].concat()).unwrap(), (ask, None));
    }

    #[test]
    fn refusals_say_what_the_level_allows() {
        for subject in SUBJECTS {
            for (_, kind) in KINDS {
                let fault = StoreError::about(kind, subject, "no");
                let told = Answer::fault(&fault, ABOUT_SINCE);
                assert_eq!(decode::<Answer>(&encode(&told)).unwrap().ok().unwrap_err(), fault);
                let former = Answer::fault(&fault, Level::FIRST);
                assert!(
                    matches!(former, Answer::Fault { kind, .. } if (kind as u8) < FaultKind::Denied as u8)
                );
                assert_eq!(former.ok().unwrap_err().subject, Subject::Key);
            }
        }
        let strange = Answer::FaultAbout { kind: FaultKind::Full, subject: 255, message: String::new() };
        assert_eq!(strange.ok().unwrap_err().subject, Subject::Key);
    }
}
