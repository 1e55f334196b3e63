//! Errors as Python's own, with the path and what to do.

use pyo3::exceptions::{PyConnectionError, PyOSError, PyValueError};
use pyo3::prelude::*;
use stoker_store::{ErrorKind, StoreError, Subject};

pyo3::create_exception!(
    _stoker,
    ConflictError,
    PyOSError,
    "Somebody else was first, or something is not as it was asked for. Read again, then decide."
);
pyo3::create_exception!(
    _stoker,
    CorruptError,
    PyOSError,
    "Stored bytes are damaged and no other copy could be read; damaged bytes are never returned."
);

/// An error of the door, about a path.
pub fn of(fault: StoreError, path: &str) -> PyErr {
    let StoreError { kind, subject, message } = fault;
    let path = path.to_owned();
    // `OSError` itself picks the class that belongs to a number: FileNotFoundError, PermissionError and so on.
    match kind {
        ErrorKind::NotFound => PyOSError::new_err((libc::ENOENT, message, path)),
        ErrorKind::Conflict if subject == Subject::Condition => {
            PyOSError::new_err((libc::EEXIST, message, path))
        }
        ErrorKind::Conflict => ConflictError::new_err((libc::EBUSY, message, path)),
        ErrorKind::Full if subject == Subject::Quota => PyOSError::new_err((libc::EDQUOT, message, path)),
        ErrorKind::Full => PyOSError::new_err((libc::ENOSPC, message, path)),
        ErrorKind::Denied => PyOSError::new_err((libc::EACCES, message, path)),
        ErrorKind::Unavailable => PyConnectionError::new_err((libc::EHOSTUNREACH, message, path)),
        ErrorKind::Closed => PyConnectionError::new_err((libc::ESHUTDOWN, message, path)),
        ErrorKind::Corrupt => CorruptError::new_err((libc::EIO, message, path)),
        ErrorKind::Invalid => PyValueError::new_err(format!("{path}: {message}")),
    }
}
