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
}

/// Raised by our own functions for a sum that is not possible.
const BAD_SUM: &str = "STK01";

impl Fault {
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
            _ => Fault::Refused(CatalogError::unavailable(format!("PostgreSQL: {words}"))),
        }
    }

    /// The error for something that changes nothing, so that its fate does not matter.
    pub(super) fn of_read(error: &Error) -> CatalogError {
        match Fault::of(error) {
            Fault::Refused(error) => error,
            Fault::Conflict(words) | Fault::Lost(words) => {
                CatalogError::unavailable(format!("PostgreSQL: {words}"))
            }
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
