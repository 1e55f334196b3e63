//! What can go wrong with a lake, in the few kinds that a caller acts upon.

use std::fmt;

/// The answer of every lake call.
pub type Result<T> = std::result::Result<T, LakeError>;

/// What the caller should do about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LakeErrorKind {
    /// The object, the upload or the bucket is not there. Do not retry; look at the name.
    NotFound,
    /// A condition failed: the object was changed, or exists where it should not. Read it again and decide.
    Changed,
    /// The lake asks for less traffic (503, 429, SlowDown). Back off, then retry.
    Busy,
    /// The network, a timeout, an answer that ended early or the lake's own fault; the effect of the call is unknown. Retry after
    /// a look.
    Unavailable,
    /// Credentials, region or permissions. An operator has to fix the setting that the message names.
    Denied,
    /// A name, a size or a setting that this lake cannot hold. Never retry; the caller asks for something else.
    Invalid,
    /// Bytes that differ from their checksum. Retry once; if it stays, page someone.
    Corrupt,
    /// No space or a quota. Wait for space; an operator has to make some.
    Full,
}

impl LakeErrorKind {
    /// Every kind, in the order in which counters list them.
    pub const ALL: [LakeErrorKind; 8] = [
        LakeErrorKind::NotFound,
        LakeErrorKind::Changed,
        LakeErrorKind::Busy,
        LakeErrorKind::Unavailable,
        LakeErrorKind::Denied,
        LakeErrorKind::Invalid,
        LakeErrorKind::Corrupt,
        LakeErrorKind::Full,
    ];

    /// One word for logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            LakeErrorKind::NotFound => "not_found",
            LakeErrorKind::Changed => "changed",
            LakeErrorKind::Busy => "busy",
            LakeErrorKind::Unavailable => "unavailable",
            LakeErrorKind::Denied => "denied",
            LakeErrorKind::Invalid => "invalid",
            LakeErrorKind::Corrupt => "corrupt",
            LakeErrorKind::Full => "full",
        }
    }
}

/// What exactly is not there, as far as the lake said so. Nothing is ever decided by the words of a message, which hold keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LakeErrorCode {
    /// The lake did not say.
    #[default]
    Unspecified,
    /// No object has this key.
    NoSuchKey,
    /// The upload was completed, aborted, or never begun.
    NoSuchUpload,
    /// The bucket is not there.
    NoSuchBucket,
}

/// A failed lake call: what to do, and what to tell a human.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LakeError {
    /// What the caller should do.
    pub kind: LakeErrorKind,
    /// What is not there.
    pub code: LakeErrorCode,
    /// What happened and what to do, for a human. Never holds a secret.
    pub message: String,
}

impl LakeError {
    /// An error of this kind.
    pub fn new(kind: LakeErrorKind, message: impl Into<String>) -> LakeError {
        LakeError { kind, code: LakeErrorCode::Unspecified, message: message.into() }
    }

    /// The same error about this.
    pub fn with_code(self, code: LakeErrorCode) -> LakeError {
        LakeError { code, ..self }
    }

    /// The object or the upload is not there, and its bucket may be: whoever wanted it to go has got that.
    pub fn is_gone(&self) -> bool {
        self.kind == LakeErrorKind::NotFound && self.code != LakeErrorCode::NoSuchBucket
    }

    /// The object, upload or bucket is not there.
    pub fn not_found(message: impl Into<String>) -> LakeError {
        LakeError::new(LakeErrorKind::NotFound, message)
    }

    /// A condition failed.
    pub fn changed(message: impl Into<String>) -> LakeError {
        LakeError::new(LakeErrorKind::Changed, message)
    }

    /// The lake asks for less traffic.
    pub fn busy(message: impl Into<String>) -> LakeError {
        LakeError::new(LakeErrorKind::Busy, message)
    }

    /// The network, a timeout or the lake's own fault.
    pub fn unavailable(message: impl Into<String>) -> LakeError {
        LakeError::new(LakeErrorKind::Unavailable, message)
    }

    /// Credentials, region or permissions.
    pub fn denied(message: impl Into<String>) -> LakeError {
        LakeError::new(LakeErrorKind::Denied, message)
    }

    /// Something this lake cannot hold.
    pub fn invalid(message: impl Into<String>) -> LakeError {
        LakeError::new(LakeErrorKind::Invalid, message)
    }

    /// Bytes that differ from their checksum.
    pub fn corrupt(message: impl Into<String>) -> LakeError {
        LakeError::new(LakeErrorKind::Corrupt, message)
    }

    /// No space.
    pub fn full(message: impl Into<String>) -> LakeError {
        LakeError::new(LakeErrorKind::Full, message)
    }
}

impl fmt::Display for LakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.word(), self.message)
    }
}

impl std::error::Error for LakeError {}
