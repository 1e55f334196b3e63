//! Names to versions to chunks and holders, on an ordered transactional key-value store.
