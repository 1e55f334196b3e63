//! What somebody who helps has to know of a machine and its node: the examination of the machine ([`doctor`]) with what only a program on it can
//! try, and an archive of what a node says, without secrets ([`bundle`]).
//!
//! It must not change anything, nor let a secret out.

pub mod bundle;
pub mod doctor;

use stoker_agent as daemon;
use stoker_agent::{config, settings};
use stoker_command::{connect, home, show};
use stoker_terminal::{clock, failure, out, size, sys};
