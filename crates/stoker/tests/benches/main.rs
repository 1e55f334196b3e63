//! `stoker bench` in small: every figure is there, and the words are right.

mod catalog;
mod cell;
mod interference;
mod keys;
mod posix;
mod s3;
