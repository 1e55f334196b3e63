//! Who asks: AWS Signature Version 4, by header, by query and by form, and Version 2 by query. Every request goes through here, whichever path
//! answers it, so that key lookup, clock rule and codes are the same everywhere.

mod authenticator;
mod canonical;
mod claim;
mod keyring;
mod legacy;
mod payload;
mod signature;

pub(crate) use authenticator::{Authenticator, Verified};
pub(crate) use claim::Scope;
pub(crate) use keyring::Credential;
pub(crate) use payload::Payload;
pub(crate) use signature::ChunkSigner;

/// Most that a client's clock may be off.
pub(crate) const SKEW_S_MAX: i64 = 15 * 60;
