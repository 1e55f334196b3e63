//! Who somebody is by what an OpenID provider signed.
//!
//! A provider ([`Issuer`]) says where its keys are; a token that it signed has claims ([`Claims`]) about somebody; what claims are worth here,
//! the configuration says ([`Role`], [`ConsoleOptions`]). The reading of tokens ([`jwt`]), of keys ([`jwks`]) and the decision when keys are
//! fetched ([`keeper`]) are pure: bytes and time in, yes or no out. [`fetch`] is the one place that talks to a provider, with a deadline and
//! a bound on what it may answer.
//!
//! Every byte of a token is a stranger's until its signature fits: nothing in it chooses where keys come from, which algorithms are taken, or
//! how long anything lives.
//!
//! It must not know S3, sessions of the console or rows, and must not read a clock: callers say what time it is.

#![forbid(unsafe_code)]

mod claims;
mod fetch;
mod issuer;
mod jwks;
mod jwt;
mod keeper;
mod login;
mod role;

pub use claims::{Claims, pattern_fits};
pub use issuer::{Discovered, Issuer, IssuerOptions, check_url};
pub use jwks::KeySet;
pub use jwt::TOKEN_LEN_MAX;
pub use login::{ConsoleOptions, Login, Started};
pub use role::{Assumed, Issuers, Role, RoleName};

use std::fmt;

/// Why a token is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rejected {
    /// It is no token, or one whose signature does not fit.
    Invalid(String),
    /// It was good, and is over.
    Expired(String),
    /// It says something that is not taken, as that it is made for somebody else.
    Claim(String),
    /// It is good, and not enough for what is asked.
    Denied(String),
    /// Its issuer cannot be asked, and what is known of it is too old.
    Unreachable(String),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Rejected::Invalid(why)
        | Rejected::Expired(why)
        | Rejected::Claim(why)
        | Rejected::Denied(why)
        | Rejected::Unreachable(why)) = self;
        f.write_str(why)
    }
}

pub(crate) fn invalid<T>(why: impl Into<String>) -> Result<T, Rejected> {
    Err(Rejected::Invalid(why.into()))
}
