//! A ring on real files.

mod corners;
mod limits;
mod ring;
