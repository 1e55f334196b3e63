//! The operations that move bytes: GetObject, HeadObject, PutObject, UploadPart and form uploads, on hyper directly.

pub(crate) mod attributes;
pub(crate) mod arrivals;
pub(crate) mod checksum;
mod chunked;
pub(crate) mod condition;
pub(crate) mod discard;
mod file_body;
mod form;
mod get;
mod intake;
mod policy;
mod post;
mod put;
mod range;

pub(crate) use file_body::FileBody;
pub(crate) use get::{get_object, head_object};
pub(crate) use post::post_object;
pub(crate) use put::{put_object, upload_part};
