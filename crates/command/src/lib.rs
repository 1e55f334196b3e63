//! What commands about a node share: which node is meant ([`connect`], [`home`], [`address`]), the way to it, waiting for it ([`waiting`]), and how
//! what it says looks ([`show`], [`outages`]).
//!
//! It must not know any one command, nor run a node.

pub mod address;
pub mod connect;
pub mod home;
pub mod outages;
pub mod show;
pub mod waiting;

use stoker_terminal::{clock, failure, out, size, small_file, span};
