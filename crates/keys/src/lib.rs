//! Keys of encrypted volumes: the secrets themselves, the sealing of chunks by them, and their wrapping by a key-encryption key (KEK).
//! It must not know catalogs, drives or who asks, must not keep a plain key anywhere but in memory, and must not show one.
//!
//! ```text
//! KEK (file, cluster, KMS) --wraps--> data key (one per volume and epoch) --derives--> key of one sealing --seals--> blocks of 4 KiB
//! ```
//!
//! - [`Secret`]: bytes of a key, zeroed when they are dropped, without `Debug` of their contents.
//! - [`DataKey`]: seals and opens payloads of records ([`sealing`]).
//! - [`WrappingKey`]: a KEK whose bytes are here; wraps data keys for the catalog.
//! - [`Keyring`]: the data keys that a node has open, by volume and epoch.

#![forbid(unsafe_code)]

pub mod key_file;
mod keyring;
pub mod sealing;
mod secret;
mod wrapping;

pub use keyring::{Keyring, VolumeKeys};
pub use sealing::{DataKey, Place};
pub use secret::{Secret, hide_from_core_dumps};
pub use wrapping::{WrapError, WrappingKey};
