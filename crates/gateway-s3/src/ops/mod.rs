//! The operations that move names: everything but the bytes. s3s reads and writes their XML; this is the only place that
//! knows it. Who asks was checked before a request comes here, and each operation asks [`access`](crate::access) again
//! what the key may do.

mod buckets;
mod completion;
mod configured;
mod control_body;
mod copy;
mod copy_source;
mod delete;
mod listing;
mod properties;
mod seam;
mod token;
mod uploads;
mod whole;

pub(crate) use configured::{cors_rules, malformed, parse};
pub(crate) use seam::{Call, OWNER_ID, Seam};
