//! Lakes behind a network: S3 and everything that speaks it, Google Cloud Storage, Azure Blob Storage.

mod group;
mod open;
mod s3;
mod store;
mod store_error;

pub(crate) use open::{open_azure, open_gcs};
pub use s3::S3Lake;
pub use store::StoreLake;
