//! S3 to the door.
//!
//! Every request is authenticated and checked against its key's policy in one place ([`service`]). Operations that move
//! bytes are answered on hyper directly ([`hot`]); those that move names go through s3s ([`ops`]). The gateway holds no
//! durable state: when it says 200, the store has said so.
//!
//! It must not hold durable state, and must not import the engine.

#![forbid(unsafe_code)]

mod access;
mod answer;
mod auth;
mod clock;
mod connection;
mod cors;
mod counters;
mod exchange;
mod gateway;
mod hot;
mod operation;
mod ops;
mod options;
mod percent;
mod query;
mod refusal;
mod request_id;
mod service;
mod sets;
mod settings;
mod target;
mod wire;
mod xml;

pub use gateway::Gateway;
pub use options::{GatewayOptions, TraceParent};
pub use stoker_tls::CertificateSource;

/// The target of spans for a collector of traces; nothing else listens to it.
const TRACE: &str = "stoker::trace";
