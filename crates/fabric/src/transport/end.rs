//! Why a connection ends.

use std::{fmt, io};

use super::refusal::Reason;

/// The end of a connection.
#[derive(Debug)]
pub(super) enum End {
    /// The other side is gone, or the socket failed.
    Io(io::Error),
    /// The other side broke the protocol, or bytes were damaged; says how.
    Broken(String),
    /// Nothing came for too long.
    Silent,
    /// One side refused the other.
    Refused(Reason),
    /// It is no longer wanted.
    Closed,
}

impl End {
    /// A broken rule.
    pub fn broken(how: impl Into<String>) -> End {
        End::Broken(how.into())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the other side closed the connection")
            }
            End::Io(error) => error.fmt(f),
            End::Broken(how) => f.write_str(how),
            End::Silent => f.write_str("the other side is silent"),
            End::Refused(reason) => reason.fmt(f),
            End::Closed => f.write_str("closed"),
        }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Io(error)
    }
}
