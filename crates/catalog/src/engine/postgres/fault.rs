//! What an error of the server or of the way to it means.

use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

use crate::error::CatalogError;

/// What to do about an error.
#[derive(Debug)]
pub(super) enum Fault {
    /// The transaction was given up because others were in its way; nothing happened. Try again.
    Conflict(String),
    /// The server refused; nothing happened.
    Refused(CatalogError),
    /// The connection is of no use any more. What was being asked may have happened.
    Lost(String),
    /// There is no server that takes changes now, as while it fails over; nothing happened. Try again later.
    Away(String),
    /// The server has no memory for so many locks; nothing happened. Try again with fewer.
    Crowded(String),
    /// The database takes commits in the other form; nothing happened. Ask which.
    OtherForm,
}

/// Raised by our own functions for a sum that is not possible.
const BAD_SUM: &str = "STK01";
/// Raised by our own functions for a commit in the form that is not in use.
const OTHER_FORM: &str = "STK03";

impl Fault {
    /// What an error of a statement means.
    pub(super) fn of(error: &Error) -> Fault {
        let words = words(error);
        let Some(answer) = error.as_db_error() else { return Fault::Lost(words) };
        let fatal = match answer.parsed_severity() {
            Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
            None => matches!(answer.severity(), "FATAL" | "PANIC"),
        };
        // The session ended, perhaps while it waited for its commit to become durable.
        if fatal {
            return Fault::Lost(words);
        }
        let code = answer.code();
        match code {
            // A unique violation is how two inserts of one key that see nothing of each other can end.
            &SqlState::T_R_SERIALIZATION_FAILURE
            | &SqlState::T_R_DEADLOCK_DETECTED
            | &SqlState::UNIQUE_VIOLATION
            | &SqlState::LOCK_NOT_AVAILABLE => Fault::Conflict(words),
            // The server became a standby under this connection.
            &SqlState::READ_ONLY_SQL_TRANSACTION => Fault::Away(words),
            &SqlState::OUT_OF_MEMORY => Fault::Crowded(words),
            &SqlState::NUMERIC_VALUE_OUT_OF_RANGE => {
                Fault::Refused(CatalogError::invalid("a sum leaves the range of an i64"))
            }
            &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => {
                Fault::Refused(CatalogError::corrupt(format!("PostgreSQL reports damage: {words}")))
            }
            &SqlState::UNDEFINED_TABLE
            | &SqlState::UNDEFINED_FUNCTION
            | &SqlState::UNDEFINED_COLUMN
            | &SqlState::INSUFFICIENT_PRIVILEGE => Fault::Refused(CatalogError::foreign(format!(
                "the database's tables are not those of a catalog, or not for this user: {words}"
            ))),
            _ if code.code() == BAD_SUM => Fault::Refused(CatalogError::invalid(answer.message())),
            _ if code.code() == OTHER_FORM => Fault::OtherForm,
            _ => Fault::Refused(CatalogError::unavailable(format!("PostgreSQL: {words}"))),
        }
    }

    /// What it means that a server did not let us in: who refuses a user or does not know a database will still do so
    /// later, everything else may pass.
    pub(super) fn of_connecting(error: &Error) -> Fault {
        let words = format!("cannot connect to PostgreSQL: {}", words(error));
        let Some(answer) = error.as_db_error() else { return Fault::Away(words) };
        let code = answer.code().code();
        // Starting, stopping, crashed, full, a standby, or the connection broke.
        let passes = ["57P", "53", "25006", "08"].iter().any(|class| code.starts_with(class));
        if passes { Fault::Away(words) } else { Fault::Refused(CatalogError::unavailable(words)) }
    }

    /// The error for something that changes nothing, so that its fate does not matter.
    pub(super) fn of_read(error: &Error) -> CatalogError {
        Fault::of(error).into_error()
    }

    /// The error for a caller who tries no more, if nothing happened.
    pub(super) fn into_error(self) -> CatalogError {
        match self {
            Fault::Refused(error) => error,
            Fault::Away(words) => CatalogError::unavailable(words),
            Fault::Conflict(words) | Fault::Lost(words) | Fault::Crowded(words) => {
                CatalogError::unavailable(format!("PostgreSQL: {words}"))
            }
            Fault::OtherForm => CatalogError::unavailable("PostgreSQL: the form of commits has changed"),
        }
    }
}

/// The error with its causes; the outer one alone says little.
pub(super) fn words(error: &Error) -> String {
    use std::error::Error as _;
    match (error.as_db_error(), error.source()) {
        (Some(answer), _) => format!("{} ({})", answer.message(), answer.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
