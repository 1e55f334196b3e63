//! S3 to the door.
mod auth;
mod clock;
mod operation;
mod percent;
mod query;
mod refusal;
mod target;
mod xml;
