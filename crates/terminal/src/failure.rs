//! How a subcommand fails: the cause, then what to do about it.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use stoker_ring::{ErrorKind, RingError};
use stoker_store::{ErrorKind as StoreErrorKind, StoreError, Subject};

use crate::{journal, out};

/// Why a subcommand ended early.
#[derive(Debug)]
pub enum Failure {
    /// It failed; a person reads this.
    Failed {
        /// What happened, and where.
        cause: String,
        /// What to do, if there is something to say.
        hint: Option<String>,
    },
    /// There is nothing left to be done, and that is how it was meant: success, with a word to say.
    Over(String),
    /// Nobody reads stdout any more (`stoker … | head`): that is success.
    PipeClosed,
}

impl Failure {
    /// A failure that explains itself.
    pub fn new(cause: impl Into<String>) -> Failure {
        Failure::Failed { cause: cause.into(), hint: None }
    }

    /// An answer that belongs to another question.
    pub fn confused() -> Failure {
        Failure::new("unexpected response type").hint("use the same release of Stoker on both sides")
    }

    /// A failure of the operating system, with what was being done.
    pub fn io(what: impl Display, error: &io::Error) -> Failure {
        let failure = Failure::new(format!("{what}: {error}"));
        match error.raw_os_error() {
            Some(libc::ENOSPC) => failure.hint("no space is left: choose a smaller --size or free some"),
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                failure.hint("check owner, mode and mount options")
            }
            Some(libc::ENOENT) => failure.hint("check the path"),
            _ => failure,
        }
    }

    /// The same failure with advice, unless it has some.
    pub fn hint(self, advice: impl Into<String>) -> Failure {
        match self {
            Failure::Failed { cause, hint: None } => Failure::Failed { cause, hint: Some(advice.into()) },
            other => other,
        }
    }

    /// What happened.
    pub fn cause(&self) -> &str {
        match self {
            Failure::Failed { cause, .. } | Failure::Over(cause) => cause,
            Failure::PipeClosed => "nobody reads what it says",
        }
    }

    /// Tells it on stderr; returns the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Failure::PipeClosed => ExitCode::SUCCESS,
            Failure::Over(words) => {
                out::say(words);
                ExitCode::SUCCESS
            }
            Failure::Failed { cause, hint } => {
                let priority = journal::priority(tracing::Level::ERROR);
                out::say(format!("{priority}stoker: {cause}"));
                if let Some(hint) = hint {
                    out::say(format!("{priority}  hint: {hint}"));
                }
                ExitCode::FAILURE
            }
        }
    }
}

impl From<RingError> for Failure {
    fn from(error: RingError) -> Failure {
        let (cause, advice) = split_advice(&error.message);
        let failure = Failure::new(cause);
        let by_kind = match error.kind {
            ErrorKind::Locked => "stop the other process, or choose another --dir",
            ErrorKind::Foreign => {
                "leave it alone: it is damaged, or belongs to another cluster or a newer release"
            }
            ErrorKind::Corrupt => "put the missing bytes back, or start anew with `stoker ring init --force`",
            ErrorKind::Full => "delete or drain records, or make a larger ring",
            ErrorKind::Poisoned => "the drive failed a write: look at the kernel log, replace the drive",
            ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Io | ErrorKind::Closed => "",
        };
        match advice {
            Some(advice) => failure.hint(advice),
            None if by_kind.is_empty() => failure,
            None => failure.hint(by_kind),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        // Taken as it is: keys of users may hold parentheses.
        let failure = Failure::new(error.message);
        let advice = match (error.kind, error.subject) {
            (StoreErrorKind::NotFound, Subject::Node) => "see the nodes with `stoker node ls`",
            (StoreErrorKind::NotFound, Subject::Volume) => "see the volumes with `stoker ls`",
            (StoreErrorKind::NotFound, Subject::AccessKey) => "see the keys with `stoker key ls`",
            (StoreErrorKind::NotFound, Subject::Set) => "see the sets with `stoker set ls VOLUME`",
            (StoreErrorKind::NotFound, _) => "see what is there with `stoker ls VOLUME/PREFIX`",
            (StoreErrorKind::Conflict, Subject::VolumeContents) => {
                "remove its files first with `stoker rm -r --all VOLUME`"
            }
            (StoreErrorKind::Conflict, Subject::Set) => {
                "see how far it is with `stoker set status SET`, or give it up with `stoker set abort SET`"
            }
            (StoreErrorKind::Full, Subject::Quota) => {
                "delete files, or raise it with `stoker volume set --quota`"
            }
            (StoreErrorKind::Full, Subject::Size) => "a file of at most that size goes through",
            (StoreErrorKind::Full, _) => "wait until more is drained (`stoker status`), then try again",
            (StoreErrorKind::Unavailable, Subject::Lake) => {
                "the node tries again by itself; see `stoker status`"
            }
            (StoreErrorKind::Corrupt, _) => {
                "look at the node's log; `stoker ring verify` checks a stopped drive"
            }
            (StoreErrorKind::Closed, _) => "try again when the node is back",
            (
                StoreErrorKind::Conflict
                | StoreErrorKind::Unavailable
                | StoreErrorKind::Denied
                | StoreErrorKind::Invalid,
                _,
            ) => return failure,
        };
        failure.hint(advice)
    }
}

/// Messages of the ring carry their advice in the last parentheses; `(os error 2)` is none.
fn split_advice(message: &str) -> (&str, Option<&str>) {
    let Some((cause, advice)) = message.strip_suffix(')').and_then(|text| text.rsplit_once(" (")) else {
        return (message, None);
    };
    if advice.starts_with("os error") { (message, None) } else { (cause, Some(advice)) }
}

#[cfg(test)]
mod tests {
    use super::split_advice;

    #[test]
    fn advice_is_told_from_error_numbers() {
        let check = |message, expect| assert_eq!(split_advice(message), expect, "{message}");
        check("a: gone", ("a: gone", None));
        check("a: gone (make one)", ("a: gone", Some("make one")));
        check("a: gone (os error 2)", ("a: gone (os error 2)", None));
        check("a: no (os error 13) (check the mode)", ("a: no (os error 13)", Some("check the mode")));
    }
}
