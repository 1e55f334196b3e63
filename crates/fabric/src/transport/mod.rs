//! The transport between nodes: frames over TCP, mutual TLS, several addresses side by side.
//!
//! A node answers requests by its [`Service`] and sends them through a [`Transport`]; [`TcpTransport`] is the one over
//! sockets. Nothing above this module knows connections. The bytes are in `docs/wire.md`.
//!
//! | file | responsible for |
//! |---|---|
//! | `message` | what callers and services see |
//! | `tcp`, `route`, `link` | calls: which connection, again on another, the calls of one connection |
//! | `acceptor`, `served` | who may connect, the requests of one connection |
//! | `line`, `frame`, `outbox`, `intake` | one connection: its life, form of bytes, out, in |
//! | `hello`, `refusal` | who speaks to whom, and why not |
//! | `authority`, `credentials`, `verifier`, `renewer` | certificates of the cluster |
//! | `token`, `join` | how a node without a certificate gets one |
//! | `socket`, `stats` | sockets; counters and latencies |

mod acceptor;
mod authority;
mod config;
mod credentials;
mod end;
mod frame;
mod hello;
mod intake;
mod join;
mod line;
mod link;
mod message;
mod outbox;
mod refusal;
mod renewer;
mod route;
mod served;
mod socket;
mod stats;
mod tcp;
mod token;
mod verifier;

pub use authority::{Authority, CERTIFICATE_LIFE, Issued, Issuer, PublicKey, ServiceCertificate};
pub use config::{Config, Security};
pub use credentials::{Credentials, CredentialsError, Identity};
pub use frame::{BODY_LEN_MAX, HEAD_LEN_MAX};
pub use hello::{VERSION, VERSION_MIN};
pub use join::{Ends, JoinDesk, JoinError, JoinService, Joined, join, join_knowing};
pub use message::{Body, BoxFuture, Call, CallError, Fault, Message, Peer, Service, Transport};
pub use refusal::Reason;
pub use renewer::renew_forever;
pub use stats::{PeerStatus, RailStatus};
pub use tcp::TcpTransport;
pub use token::{Token, TokenError, TokenId, TokenKey};
