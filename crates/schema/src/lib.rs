//! Names to versions to chunks and holders: the rows of a catalog, their keys, and the transactions that change names.
//!
//! [`rows`] says what is stored and under which key, in all the forms that it ever had; [`names`] holds the changes, each of which is one
//! commit with checks. [`level`] says which of the forms may be written;
//! [`lead`] is the lease by which one node leads a loop; [`notes`] are what somebody writes down for all nodes.
//!
//! It must not know engines, drives, lakes or HTTP: it speaks the four calls of `stoker-catalog`.

pub mod lead;
pub mod level;
pub mod names;
pub mod notes;
pub mod rows;
