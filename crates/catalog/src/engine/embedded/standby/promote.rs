//! Makes a standby the primary. The old one is fenced before the new one takes its first commit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stoker_format::{ClusterId, NodeId};

use super::follower::{Standby, StandbyOptions};
use super::message::{FromStandby, StandbyAsk, StandbyState, ToStandby};
use crate::engine::embedded::file;
use crate::engine::embedded::lineage::{Position, Role};
use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};
use crate::wire::{self, Wire};

/// How often a promotion tries again because somebody heard of a higher epoch.
const ATTEMPTS: usize = 8;

/// How to promote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromoteOptions {
    /// The node that is promoted.
    pub node: NodeId,
    /// The highest commit that any node saw (R9).
    pub seen_seq: u64,
    /// Go on although acknowledged commits may be lost.
    pub accept_loss: bool,
    /// How long another standby may take to answer.
    pub timeout: Duration,
}

/// What a promotion did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promotion {
    /// The epoch of the new primary.
    pub epoch: Epoch,
    /// The number from which its commits go on.
    pub seq: u64,
    /// Why acknowledged commits may be lost, if they may.
    pub loss: Option<String>,
}

impl Standby {
    /// Makes this standby the primary; the file is then closed and is to be opened as one.
    ///
    /// `others` are the ways to the other standbys. Each of them promises to take nothing from the old primary
    /// any more and says what it knows. Fails with `Invalid` if this is not a standby that has every
    /// acknowledged commit, or if that cannot be known, unless the loss is accepted.
    pub async fn promote(
        &self,
        options: &PromoteOptions,
        others: &BTreeMap<NodeId, Arc<dyn Wire>>,
    ) -> Result<Promotion> {
        // A promotion that is refused must not fence a primary that works, so this asks for no promise.
        let looked = ask(None, options.timeout, others).await.unwrap_or_default();
        let own = self.shared().with(|follower| Ok(follower.known()))?;
        permit(options, &own, &looked)?;
        let mut highest = self.report()?.promised;
        for _ in 0..ATTEMPTS {
            let epoch = highest.promoted(options.node);
            // Of this node, too: while others are asked, the old primary must not come back in between.
            self.shared().with(|follower| follower.promise(epoch))?;
            match ask(Some(epoch), options.timeout, others).await {
                Ok(states) => return self.take_over(epoch, options, &states),
                Err(higher) => highest = higher,
            }
        }
        Err(CatalogError::unavailable("others are promoted at the same time; decide for one"))
    }

    fn take_over(
        &self,
        epoch: Epoch,
        options: &PromoteOptions,
        states: &BTreeMap<NodeId, Option<StandbyState>>,
    ) -> Result<Promotion> {
        let mut file = self.shared().lock();
        let follower = file.as_mut().map_err(|error| error.clone())?;
        if follower.lineage.promised > epoch {
            return Err(CatalogError::unavailable(format!(
                "epoch {} came in between; try again",
                follower.lineage.promised
            )));
        }
        let loss = permit(options, &follower.known(), states)?;
        // Numbers never go back, not even where commits are lost.
        let seq = follower.seq.max(options.seen_seq);
        follower.write(|follower, transaction| {
            let lineage = &mut follower.lineage;
            lineage.begin(epoch, follower.seq);
            lineage.role = Role::Primary;
            lineage.members = lineage.members.promoted(options.node);
            lineage.members_at = Position { epoch, seq };
            lineage.save(transaction)?;
            file::seq_set(transaction, seq)
        })?;
        *file = Err(CatalogError::closed());
        Ok(Promotion { epoch, seq, loss })
    }
}

/// Opens the standby at `path` and promotes it; see [`Standby::promote`].
pub async fn promote(
    path: &Path,
    cluster: ClusterId,
    standby: &StandbyOptions,
    options: &PromoteOptions,
    others: &BTreeMap<NodeId, Arc<dyn Wire>>,
) -> Result<Promotion> {
    Standby::open(path, cluster, standby)?.promote(options, others).await
}

/// Why acknowledged commits may be lost; fails if they may and that was not accepted.
fn permit(
    options: &PromoteOptions,
    own: &StandbyState,
    others: &BTreeMap<NodeId, Option<StandbyState>>,
) -> Result<Option<String>> {
    match judge(options.node, own, others, options.seen_seq) {
        Ok(()) => Ok(None),
        Err(reason) if options.accept_loss => Ok(Some(reason)),
        Err(reason) => Err(CatalogError::invalid(format!("not promoted: {reason}"))),
    }
}

/// What every other standby knows, `None` where one does not answer. Each promises to take nothing from below
/// `epoch`, if there is one; fails with a higher epoch that somebody promised before.
async fn ask(
    epoch: Option<Epoch>,
    timeout: Duration,
    others: &BTreeMap<NodeId, Arc<dyn Wire>>,
) -> std::result::Result<BTreeMap<NodeId, Option<StandbyState>>, Epoch> {
    let request = wire::encode(&match epoch {
        Some(epoch) => ToStandby { epoch, ask: StandbyAsk::State },
        None => ToStandby { epoch: Epoch::default(), ask: StandbyAsk::Look },
    });
    let calls = others.iter().map(|(node, way)| {
        let request = request.clone();
        async move {
            let answer = tokio::time::timeout(timeout, way.call(request)).await;
            (*node, answer.ok().and_then(|answer| wire::decode::<FromStandby>(&answer.ok()?).ok()))
        }
    });
    let mut states = BTreeMap::new();
    for (node, answer) in futures_util::future::join_all(calls).await {
        match answer {
            Some(FromStandby::Fenced(higher)) => return Err(higher),
            Some(FromStandby::State(state)) => drop(states.insert(node, Some(state))),
            _ => drop(states.insert(node, None)),
        }
    }
    Ok(states)
}

/// Whether a standby has every acknowledged commit, and if not, or if nobody can know, why.
fn judge(
    node: NodeId,
    own: &StandbyState,
    others: &BTreeMap<NodeId, Option<StandbyState>>,
    seen_seq: u64,
) -> std::result::Result<(), String> {
    let states = || others.values().flatten().chain([own]);
    let latest = states().max_by_key(|state| state.members_at).unwrap_or(own);
    if !latest.members.is_in_sync(node) {
        let better: Vec<String> = latest.members.in_sync().map(|node| node.to_string()).collect();
        let furthest = states().map(|state| state.position.seq).max().unwrap_or(0).max(seen_seq);
        return Err(format!(
            "this standby fell behind and has commits up to {} of at least {furthest}; promote {}",
            own.position.seq,
            if better.is_empty() { "the last primary".into() } else { better.join(" or ") },
        ));
    }
    let silent: Vec<String> = latest
        .members
        .known()
        .filter(|other| *other != node && !others.get(other).is_some_and(Option::is_some))
        .map(|other| other.to_string())
        .collect();
    if !silent.is_empty() {
        return Err(format!(
            "{} cannot be asked, and may have followed further than this standby, which has commits up to {}",
            silent.join(" and "),
            own.position.seq
        ));
    }
    if own.position.seq < seen_seq {
        return Err(format!(
            "a node saw commit {seen_seq} and this standby has commits up to {}: the primary went on alone; \
             {} commits are only there",
            own.position.seq,
            seen_seq - own.position.seq
        ));
    }
    Ok(())
}
