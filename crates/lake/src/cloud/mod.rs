//! Lakes behind a network: S3 and everything that speaks it, Google Cloud Storage, Azure Blob Storage.

mod s3;

pub use s3::S3Lake;
