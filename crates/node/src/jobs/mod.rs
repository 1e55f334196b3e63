//! Jobs: the data is there before the job is. One node leads: it has the data of queued jobs brought to where they will read it, holds it
//! there, and says in their rows how far they are.
//!
//! - What is asked of jobs ([`door`]) are transactions on their rows, at any node. What is decided about states, order and room is in the
//!   crate `stoker-jobs`.
//! - One node leads ([`lead`]), by the lease of all such loops. What it writes fails once another one leads, and staging twice is staging once.
//! - What a job wants of bandwidth is a policy of admission, from when it is staged until it ends.
//! - The leader ([`driver`]) counts sources ([`survey`]), has the plan say what comes next, has chunks brought by the node whose turn they
//!   are, so that the lake is asked once for each in the whole cluster, and measures again and again what is there. It keeps nothing that
//!   is not in rows or rings: the next one begins where it ended.
//! - When jobs write their checkpoints ([`windows`]) is a row, too: they ask any node, and drains of all nodes look at it.
//! - Each node holds what it is told to on a lease ([`held`]).
//!
//! A failed node costs its own part: what it had is missing at the next count, and brought to the node whose turn it is then.

mod door;
mod driver;
mod held;
mod lead;
mod rows;
mod survey;
mod windows;

pub(crate) use held::{Held, unpin_leftovers};
pub(crate) use lead::{give_up, run};
pub(crate) use windows::{Windows, follow};
