//! Copies of an embedded catalog on other nodes, so that the loss of its node loses no acknowledged commit. (D31)
//!
//! The primary hands every group of commits to its standbys while it makes the group durable itself, and
//! acknowledges it when it is durable here and on every standby that is *in sync*. What is not acknowledged is
//! not read either. [`members`] decides who is in sync, [`peers`] is what the primary's writer and its links
//! share, [`link`] keeps one standby up to date, [`follower`] is the standby, [`incoming`] a snapshot on its way
//! to it, [`promote`] makes it the primary.
//!
//! **Which standby may be promoted.** The standbys are a row of the catalog itself: those *known*, and those of
//! them in sync. That row changes like any commit, with a number, and counts once it is durable here and on
//! everybody who is in sync *after* the change.
//! 1. A commit is acknowledged only with all in sync behind it. So whoever is in the last set has it.
//! 2. One that does not answer is dropped by such a change before anything is acknowledged without it, and the
//!    rest of the set has that change. It is not told; but to be promoted it must ask everybody it knows, and
//!    whoever of the set answers shows the newer row. If one of them is silent, the promotion is refused.
//! 3. One that comes in has everything before the row that lets it in, since it does commits in order. Where
//!    one comes in for another, it is one that the other knows, and so asks.
//! 4. A promotion takes, from everybody asked, the promise to follow no lower epoch. The old primary needs all
//!    in sync, or all that are left in sync, to confirm; each of them was asked, so it acknowledges nothing more.
//!
//! What this cannot close: with [`WhenAlone::Serve`] a primary drops its last standby and nobody but itself
//! knows. Then the highest number that any node saw (R9) is what a promotion is held against.
//!
//! **Epochs in the log.** A primary that starts again begins a new [`Epoch`](crate::Epoch), so that a group which
//! reached a standby and not its own file is not taken for the one that it writes in its place: commits are
//! equal if number and epoch are. A standby with commits that the primary does not have gets a snapshot; its
//! own file is put aside.

mod follower;
mod incoming;
mod link;
mod members;
mod message;
mod peers;
mod promote;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use redb::ReadableDatabase;
use stoker_format::ClusterId;

pub use self::follower::{Standby, StandbyOptions, StandbyReport};
pub use self::members::{STANDBYS_MAX, WhenAlone};
pub use self::peers::StandbyStatus;
pub use self::promote::{PromoteOptions, Promotion, promote};

pub(super) use self::link::Link;
pub(super) use self::members::{Members, Verdict};
pub(super) use self::peers::{Batch, Peers};

use super::file::{Form, Opened};
use super::lineage::{Lineage, Position, Role};
use super::space::Space;
use super::{EmbeddedOptions, State, file, guarded, replica};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::kv::Snapshot;

/// Most bytes of past commits that are kept for standbys, unless configured otherwise.
pub(super) const TAIL_BYTES: usize = 64 << 20;

/// What a catalog's file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogFile {
    /// What it may be used for.
    pub role: Role,
    /// Its last commit.
    pub position: Position,
    /// The epoch that writes it, or wrote it last.
    pub epoch: Epoch,
    /// The highest epoch that it heard of; if that is above its own, it was replaced.
    pub promised: Epoch,
}

/// Looks at a catalog's file that nobody has open; `None` if there is none.
pub fn inspect(path: &Path, cluster: ClusterId) -> Result<Option<CatalogFile>> {
    if !path.try_exists().map_err(|error| file::unreachable_file(path, &error))? {
        return Ok(None);
    }
    let Looked { opened, epoch } = look(path, cluster)?;
    guarded(|| {
        if let Some(epoch) = epoch {
            let position = Position { epoch, seq: opened.seq };
            return Ok(Some(CatalogFile { role: Role::Replica, position, epoch, promised: epoch }));
        }
        let lineage = Lineage::load(&opened.database.begin_read().map_err(file::failed)?)?;
        Ok(Some(CatalogFile {
            role: lineage.role,
            position: lineage.position(opened.seq),
            epoch: lineage.epoch(),
            promised: lineage.promised,
        }))
    })
}

/// A file that nobody has open, as it is with its log.
struct Looked {
    opened: Opened,
    /// Of a replica of a group: the epoch in which its last entry was written.
    epoch: Option<Epoch>,
}

/// Opens a file for who only reads it.
fn look(path: &Path, cluster: ClusterId) -> Result<Looked> {
    let (options, space) = (EmbeddedOptions::default(), Arc::new(Space::new(path, 0)));
    let (mut opened, form) = file::open_draft(path, cluster, &options, &space)?;
    match form {
        Form::Whole => Ok(Looked { opened, epoch: None }),
        Form::Replicated => {
            let (seq, epoch) = guarded(|| replica::replay(path, cluster, &opened))?;
            opened.seq = seq;
            Ok(Looked { opened, epoch: Some(epoch) })
        }
        Form::Logged(_) => {
            drop(opened);
            Ok(Looked { opened: file::open(path, cluster, &options, &space)?, epoch: None })
        }
    }
}

/// The rows of a catalog's file that nobody has open, whatever it is used for.
pub fn read_file(path: &Path, cluster: ClusterId) -> Result<Box<dyn Snapshot>> {
    state(look(path, cluster)?.opened)
}

/// The same without the commits of its log, for a file whose log is of no use. Leaves it as it is.
pub fn read_table(path: &Path, cluster: ClusterId) -> Result<Box<dyn Snapshot>> {
    let space = Arc::new(Space::new(path, 0));
    state(file::open_draft(path, cluster, &EmbeddedOptions::default(), &space)?.0)
}

fn state(opened: Opened) -> Result<Box<dyn Snapshot>> {
    let Opened { database, seq, .. } = opened;
    let transaction = guarded(|| database.begin_read().map_err(file::failed))?;
    Ok(Box::new(State { transaction: Arc::new(transaction), seq, _database: Some(database) }))
}
