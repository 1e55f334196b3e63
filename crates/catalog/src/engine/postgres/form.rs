//! In which form the database takes commits now; see [`schema`](super::schema).

use std::sync::atomic::{AtomicBool, Ordering};

use super::connection::Isolation;
use super::schema::{self, SCHEMA_SERIALIZABLE};
use crate::error::{CatalogError, Result};

/// What this program believes; the database has the last word.
#[derive(Debug)]
pub(super) struct Form {
    is_serializable: AtomicBool,
}

impl Form {
    pub(super) fn new(schema: i32) -> Result<Form> {
        let form = Form { is_serializable: AtomicBool::new(false) };
        form.set(schema)?;
        Ok(form)
    }

    /// Fails for a schema that this program does not know.
    pub(super) fn set(&self, schema: i32) -> Result<()> {
        if schema > schema::SCHEMA {
            return Err(CatalogError::foreign(format!(
                "the database was switched to schema {schema}, which this program does not know; update the program"
            )));
        }
        self.is_serializable.store(schema == SCHEMA_SERIALIZABLE, Ordering::SeqCst);
        Ok(())
    }

    pub(super) fn is_serializable(&self) -> bool {
        self.is_serializable.load(Ordering::SeqCst)
    }

    /// What commits run in.
    pub(super) fn isolation(&self) -> Isolation {
        if self.is_serializable() { Isolation::Serializable } else { Isolation::Statement }
    }
}
