//! `stoker bench` in small: every figure is there, and the words are right.

mod catalog;
mod cell;
mod ec;
mod interference;
mod keys;
mod posix;
mod s3;
