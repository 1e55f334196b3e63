//! The catalog's errors as those of the door.

use stoker_catalog::{CatalogError, ErrorKind as CatalogKind};
use stoker_store::{ErrorKind, StoreError, Subject};

/// An error of the catalog.
pub fn catalog(error: CatalogError) -> StoreError {
    let kind = match error.kind {
        CatalogKind::Unavailable | CatalogKind::Unknown => ErrorKind::Unavailable,
        CatalogKind::Invalid => ErrorKind::Invalid,
        CatalogKind::Corrupt | CatalogKind::Foreign => ErrorKind::Corrupt,
        CatalogKind::Closed => ErrorKind::Closed,
    };
    let subject = if kind == ErrorKind::Invalid { Subject::Key } else { Subject::Catalog };
    StoreError::about(kind, subject, format!("catalog: {}", error.message))
}
