//! A ring on real files.

mod corners;
mod ring;
