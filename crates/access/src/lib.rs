//! Who may do what. [`decide`] is the one decision, and [`Guard`] is what endpoints are given in the place of a store: it hands out views,
//! each bound to whoever asks, that decide every call before it is made and leave out of every listing what is not theirs.
//!
//! A gateway takes a `Guard`, so there is none without a decision in front of it. What no rule allows is refused. A new method of the store has
//! to be decided in [`Guarded`] before it can be called through an endpoint; a test compares the two.
//!
//! A volume of a tenant has a full name, `tenant_volume`, and its own name in the tenant. Whoever belongs to a tenant says its own name and is
//! understood within the tenant, so there are no words for the volume of somebody else, and nothing has to be looked up to tell whose a volume is. (D143)
//!
//! With an audit log ([`Guard::audited`]), what changes something and what is denied is written down here, and nowhere else (`guarded/record.rs`).
//!
//! It must not do I/O in a decision, and must not know a protocol.

#![forbid(unsafe_code)]

mod action;
mod decide;
mod guard;
mod guarded;
mod members;
mod origin;
mod policy;
mod session;
mod sessions;
pub mod token;
mod told;

pub use action::{Action, Kind, order_action};
pub use decide::{AUDIT_VOLUME, Member, Reason, Resource, Rights, Scope, Verdict, decide};
pub use guard::{Credential, Guard, Peers, SessionInfo};
pub use guarded::{AUDIT_FULL, AUDIT_SETTING, Guarded, POLICY_SETTING};
pub use origin::Origin;
pub use policy::{Fault as PolicyFault, POLICY_LEN_MAX, Policy};
pub use session::{SESSION_KEY_START, SESSION_TOKEN_LEN_MAX, Session, SessionFault};
pub use sessions::SessionRequest;
