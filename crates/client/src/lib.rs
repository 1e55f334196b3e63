//! The door from another process: a framed protocol over Unix sockets and TCP.
//!
//! [`Server`] puts a [`Store`](stoker_store::Store) behind sockets; [`Client`] is a `Store` that asks one through them.
//! Both sides bound what they hold in memory and take nothing from the wire on trust: a peer that breaks a rule is told
//! so and disconnected.
//!
//! On the wire: a hello (magic, versions, proof of the token), then frames. A frame is a fixed header, a control part
//! (postcard) and raw payload bytes; see [`frame`]. Many requests share a connection. A file or a writer that a
//! connection opened ends with it.
//!
//! Over a Unix socket a client is handed leases: read-only descriptors of segments, places in them and checksums. It
//! then reads the drive itself and asks the node for bytes only where that does not work.
//!
//! It must not hold durable state.

#![forbid(unsafe_code)]

mod beside;
mod client;
mod endpoint;
mod fault;
mod frame;
mod halves;
mod hello;
mod lease;
mod message;
mod outbox;
mod server;
mod socket;

pub use client::{Client, ClientOptions};
pub use endpoint::{Endpoint, ParseEndpointError};
pub use server::{Server, ServerOptions};

/// The pure decoders of bytes from the network, for fuzzing and property tests.
pub mod wire {
    pub use crate::beside::Beside;
    pub use crate::fault::Fault;
    pub use crate::frame::{
        CONTROL_LEN_MAX, DATA_LEN_MAX, HEADER_LEN, Header, Kind, PAYLOAD_LEN_MAX, READ_LEN_MAX,
    };
    pub use crate::hello::{
        CLIENT_HELLO_LEN, ClientHello, PROOF_LEN, SERVER_HELLO_LEN, ServerHello, VERDICT_LEN, VERSION,
        VERSION_MIN, Verdict, proof_of_client,
    };
    pub use crate::lease::Place;
    pub use crate::message::{Request, Response, decode, encode};
}
