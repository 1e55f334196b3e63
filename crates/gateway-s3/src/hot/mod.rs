//! The operations that move bytes: GetObject, HeadObject, PutObject, UploadPart and form uploads, on hyper directly.

pub(crate) mod arrivals;
pub(crate) mod attributes;
pub(crate) mod checksum;
mod chunked;
pub(crate) mod condition;
pub(crate) mod discard;
mod file_body;
mod form;
pub(crate) mod get;
mod intake;
pub(crate) mod memory_queue;
mod policy;
pub(crate) mod post;
pub(crate) mod put;
pub(crate) mod range;

pub(crate) use file_body::FileBody;
