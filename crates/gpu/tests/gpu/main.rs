//! The loader on host memory, and on a driver that does late what it was told.

mod cache;
mod driver;
mod loads;
mod source;
