//! Every lake by the same suite, and what is particular to each.

mod file;
mod s3;
mod store;
mod suite;
mod twin;
