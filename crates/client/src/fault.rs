//! Why a connection ends.

use std::{fmt, io};

use stoker_store::{ErrorKind, StoreError};

/// The end of a connection that nobody asked for.
#[derive(Debug)]
pub enum Fault {
    /// The other side is gone, or the socket failed.
    Io(io::Error),
    /// The other side broke the protocol; says how.
    Broken(String),
    /// The other side does not take or give bytes any more.
    Stalled,
    /// The other side said why it ends the connection.
    Told(StoreError),
}

impl Fault {
    /// A broken rule.
    pub fn broken(how: impl Into<String>) -> Fault {
        Fault::Broken(how.into())
    }

    /// The same for callers of the door.
    pub fn into_error(self) -> StoreError {
        match self {
            Fault::Told(error) => error,
            Fault::Broken(how) => {
                let message = format!("{how} (use the same release of Stoker on both sides)");
                StoreError::new(ErrorKind::Unavailable, message)
            }
            other => StoreError::new(ErrorKind::Unavailable, other.to_string()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the node closed the connection")
            }
            Fault::Io(error) => write!(f, "connection: {error}"),
            Fault::Broken(how) => f.write_str(how),
            Fault::Stalled => f.write_str("the other side moves no bytes any more"),
            Fault::Told(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Fault {}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}
