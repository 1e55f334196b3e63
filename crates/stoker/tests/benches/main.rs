//! `stoker bench` in small: every figure is there, and the words are right.

mod catalog;
mod cell;
mod keys;
mod posix;
mod s3;
