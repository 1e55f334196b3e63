//! Messages of strangers.
