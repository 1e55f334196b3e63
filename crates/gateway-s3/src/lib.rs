//! S3 to the door.
//!
//! Every request is authenticated, and checked by one table ([`rights`]) against what its signer may do, in one place ([`service`]); the store
//! that it is given then decides each call again. Operations that move
//! bytes are answered on hyper directly ([`hot`]); those that move names go through s3s ([`ops`]). The gateway holds no
//! durable state: when it says 200, the store has said so.
//!
//! It must not hold durable state, and must not import the engine.

#![forbid(unsafe_code)]

mod answer;
mod auth;
mod clock;
mod connection;
mod cors;
mod counters;
mod exchange;
mod gateway;
mod hot;
mod lifecycle;
mod operation;
mod ops;
mod options;
mod percent;
mod query;
mod refusal;
mod request_id;
mod rights;
mod service;
mod sets;
mod settings;
mod sts;
mod target;
mod versions;
mod wire;
mod xml;

pub use gateway::Gateway;
pub use options::{GatewayOptions, TraceParent};
pub use stoker_tls::CertificateSource;

/// The target of spans for a collector of traces; nothing else listens to it.
const TRACE: &str = "stoker::trace";

/// Names of all operations, for tests that leave none out.
#[doc(hidden)]
pub fn operations() -> Vec<&'static str> {
    operation::Operation::ALL.iter().map(|operation| operation.name()).collect()
}

/// Name, method and path of what a bucket (`{bucket}`) or an object in it (`{bucket}/a/b`) is asked about itself, for the same tests.
#[doc(hidden)]
pub fn questions() -> Vec<(&'static str, String, String)> {
    settings::questions()
}

/// How this endpoint is called where somebody says by which one a call came.
const DOOR: &str = "s3";
