//! The catalog as a group of replicas, of which this node may have one: who is in it, and what a person may order. (D127)
//!
//! Whoever leads sees to it, a few times a second, that enough nodes have a replica that votes: it asks a node to make one, takes it in under the
//! number that the node drew, and has it vote once it has everything. A node that stops in good order, and is needed for a majority, is taken
//! out first, so that the others go on without it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_catalog::engine::{
    Beginning, Embedded, EmbeddedOptions, ReplicaMember, ReplicaProgress, ReplicaWays, ReplicatedCatalog,
    put_aside,
};
use stoker_catalog::remote::CatalogServer;
use stoker_catalog::{Catalog, Epoch, Wire};
use stoker_format::NodeId;
use stoker_store::{CatalogPromotion, CatalogStatus, ErrorKind, Result, StandbyInfo, StoreError, Subject};
use tokio::time::Instant;

use super::message::{Answer, Ask};
use super::{CatalogHost, GONE_MAX, POLL_EVERY, Role, STATUS_MAX, elsewhere};
use crate::ways::ReplicaWire;
use crate::{clock, error};

/// Most replicas that vote. Of five, two may be lost.
const VOTERS_MAX: usize = 5;

/// A replica that lacks no more entries than this has caught up.
const BEHIND_MAX: u64 = 256;

/// Longest wait for a change of the group.
const CHANGE_MAX: Duration = Duration::from_secs(5);

/// Longest wait for somebody to lead, before it is believed that nobody can.
const ELECTED_MAX: Duration = Duration::from_secs(4);

/// Pause between two looks at whether something happened.
const PAUSE: Duration = Duration::from_millis(20);

/// How many nodes vote, of so many that could: an even number is lost as soon as one less.
fn voters_wanted(able: usize) -> usize {
    match able {
        0..=2 => able,
        _ => (able - (1 - able % 2)).min(VOTERS_MAX),
    }
}

/// Who should have a replica: those that do and can, then others that can, in their order, and witnesses last.
fn choose(able: &[NodeId], members: &[NodeId], is_witness: impl Fn(&NodeId) -> bool) -> Vec<NodeId> {
    let (mut chosen, mut others): (Vec<NodeId>, Vec<NodeId>) =
        able.iter().partition(|node| members.contains(node));
    others.sort_by_key(is_witness);
    let missing = voters_wanted(able.len()).saturating_sub(chosen.len());
    chosen.extend(others.into_iter().take(missing));
    chosen
}

impl CatalogHost {
    /// Opens the replica of this node, or makes one.
    pub(crate) fn join_group(
        self: &Arc<CatalogHost>,
        beginning: Beginning,
    ) -> Result<Arc<ReplicatedCatalog>> {
        let file = EmbeddedOptions { cache_bytes: self.cache_bytes, ..EmbeddedOptions::default() };
        let transport = self.transport.clone();
        let ways: ReplicaWays = Arc::new(move |node| {
            Arc::new(ReplicaWire { node, transport: transport.clone() }) as Arc<dyn Wire>
        });
        let (path, identity) = (self.path(), self.identity);
        let replica = ReplicatedCatalog::open(&path, identity.cluster, identity.node, &file, beginning, ways);
        let replica = Arc::new(replica.map_err(error::catalog)?);
        self.set_role(Role::Member { replica: replica.clone(), server: None });
        self.follow_standing(&replica);
        Ok(replica)
    }

    /// The catalog that this node served alone, or before others, becomes that of a group, under the node that works with it.
    pub(crate) async fn become_group(self: &Arc<CatalogHost>, catalog: &Embedded) {
        let _alone = self.promoting.lock().await;
        self.set_role(Role::Between);
        catalog.close().await;
        // A read that is under way keeps the file for a moment.
        let deadline = Instant::now() + CHANGE_MAX;
        let joined = loop {
            match self.join_group(Beginning::Group) {
                Err(fault) if fault.kind == ErrorKind::Unavailable && Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await;
                }
                joined => break joined,
            }
        };
        match joined {
            Ok(_) => tracing::info!("the catalog is kept by a group of nodes from now on"),
            Err(fault) => {
                let why = format!("its catalog cannot become that of a group: {}", fault.message);
                drop(self.replaced.send_replace(Some(why)));
            }
        }
    }

    /// Serves whenever this replica may answer, and knows who leads.
    fn follow_standing(self: &Arc<CatalogHost>, replica: &Arc<ReplicatedCatalog>) {
        let mut news = replica.standing();
        news.mark_changed();
        let (host, replica) = (Arc::downgrade(self), Arc::downgrade(replica));
        self.keep(tokio::spawn(async move {
            while news.changed().await.is_ok() {
                let standing = news.borrow_and_update().clone();
                let (Some(host), Some(replica)) = (host.upgrade(), replica.upgrade()) else { return };
                host.news.fetch_add(1, Ordering::SeqCst);
                if standing.is_superseded {
                    host.leave_group(
                        "its copy of the catalog is older than what the others know of it".into(),
                    );
                    return;
                }
                let Some(epoch) = standing.epoch else {
                    host.set_server(&replica, None);
                    continue;
                };
                let before = host.server().map(|server| server.epoch());
                if !standing.answers {
                    host.set_server(&replica, None);
                } else if before != Some(epoch) {
                    let server = Arc::new(CatalogServer::leader(replica.clone(), epoch));
                    host.set_server(&replica, Some(server));
                }
                if standing.leads && standing.is_stalled {
                    // Those who followed it before may have gone on with another one: it does not rule before one of them is here.
                    continue;
                }
                let is_news = epoch > host.epoch();
                host.adopt(epoch);
                if standing.leads && is_news {
                    host.proclaim();
                }
            }
        }));
    }

    fn set_server(&self, of: &Arc<ReplicatedCatalog>, server: Option<Arc<CatalogServer>>) {
        if let Role::Member { replica, server: kept } = &mut *self.role.write().unwrap()
            && Arc::ptr_eq(replica, of)
        {
            *kept = server;
        }
    }

    /// Has this node opened again, without the replica that it has: that one is put aside, and a group may take the node in anew.
    fn leave_group(self: &Arc<CatalogHost>, why: String) {
        let host = self.clone();
        tokio::spawn(async move {
            let role = host.set_role(Role::Between);
            if let Role::Member { replica, .. } = role {
                replica.close().await;
                if let Err(fault) = put_aside(&host.path()) {
                    tracing::error!("the replica of the catalog cannot be put aside: {fault}");
                }
            }
            host.replaced.send_replace(Some(why));
        });
    }

    /// The replica of this node, if it has one.
    pub fn replica(&self) -> Option<Arc<ReplicatedCatalog>> {
        match &*self.role.read().unwrap() {
            Role::Member { replica, .. } => Some(replica.clone()),
            _ => None,
        }
    }

    /// Somebody who leads wants this node to have a replica: makes one where there is none, and says its number.
    pub(crate) async fn host(self: &Arc<CatalogHost>, from: NodeId, incarnation: u64, base: u64) -> Answer {
        let _alone = self.promoting.lock().await;
        if let Some(replica) = self.replica() {
            let standing = replica.standing().borrow().clone();
            // Restored catalogs count more than groups that were begun anew before. (D46)
            let is_older =
                Epoch::beginning(standing.base, standing.incarnation) < Epoch::beginning(base, incarnation);
            if !standing.members.is_empty() && is_older {
                self.leave_group("the catalog's group was begun anew without this node".into());
                return Answer::No("this node's replica is of a group that was begun anew since".into());
            }
            let is_alone = standing.voters() == [self.identity.node];
            if is_alone && !standing.members.iter().any(|member| member.node == from) {
                return Answer::No(
                    "this node keeps the catalog by itself; two groups are not put together".into(),
                );
            }
            return Answer::Replica(standing.id);
        }
        let Some(standby) = self.standby() else { return elsewhere() };
        // What followed a catalog before it was that of a group is of no use any more: whoever asks has all of it.
        let report = standby.report();
        if report.as_ref().is_ok_and(|report| report.promised.promotions() > base) {
            return Answer::No("this node follows a catalog that was promoted since".into());
        }
        let is_empty = report.is_ok_and(|report| report.position.seq == 0);
        self.set_role(Role::Between);
        standby.close();
        let gone = match is_empty {
            true => std::fs::remove_file(self.path()).map_err(|fault| fault.to_string()),
            false => put_aside(&self.path()).map(drop).map_err(|fault| fault.to_string()),
        };
        let joined = match gone {
            Ok(()) => self.join_group(Beginning::Wait).map_err(|fault| fault.message),
            Err(fault) => Err(fault),
        };
        match joined {
            Ok(replica) => Answer::Replica(replica.standing().borrow().id),
            Err(fault) => {
                self.replaced
                    .send_replace(Some(format!("its replica of the catalog cannot be made: {fault}")));
                Answer::No(fault)
            }
        }
    }

    /// Sees to it, for as long as this node runs, that enough nodes have a replica, whenever it leads.
    pub(crate) fn care_for_group(self: &Arc<CatalogHost>) {
        let host = Arc::downgrade(self);
        self.keep(tokio::spawn(async move {
            while let Some(host) = host.upgrade() {
                let leads = |replica: &Arc<ReplicatedCatalog>| replica.standing().borrow().leads;
                let is_changed = match host.replica() {
                    Some(replica) if leads(&replica) => host.arrange_group(&replica).await,
                    Some(replica) => host.leave_if_forgotten(&replica).await,
                    None => false,
                };
                drop(host);
                // A node that is lost before the next one votes is one too many.
                tokio::time::sleep(if is_changed { PAUSE } else { POLL_EVERY / 4 }).await;
            }
        }));
    }

    /// A replica that was taken out while it was away would wait for ever: this node goes on without one.
    async fn leave_if_forgotten(self: &Arc<CatalogHost>, replica: &ReplicatedCatalog) -> bool {
        let (own, holder) = (self.identity.node, self.holder());
        let is_waiting = {
            let standing = replica.standing();
            let standing = standing.borrow();
            standing.is_stalled && !standing.answers && !standing.members.is_empty()
        };
        if !is_waiting || holder == own {
            return false;
        }
        if let Ok(Answer::Status(status)) = self.ask_within(holder, &Ask::Status, STATUS_MAX).await
            && !status.stalled
            && !status.standbys.iter().any(|standby| standby.node == own.to_string())
        {
            self.leave_group("the nodes that keep the catalog went on without its copy".into());
        }
        false
    }

    /// Takes the next step to the group that there should be; true if there was one.
    async fn arrange_group(self: &Arc<CatalogHost>, replica: &ReplicatedCatalog) -> bool {
        let Some(known) = self.members.get() else { return false };
        let view = known.view();
        let own = self.identity.node;
        let (progress, last) = replica.progress();
        let members: Vec<NodeId> = progress.iter().map(|one| one.member.node).collect();
        let leaving = self.standbys.leaving_now();
        let is_silent = |other: &NodeId| known.is_suspect(*other);
        let is_witness = |other: &NodeId| view.is_witness(*other);
        let has_pair = view.nodes().filter(|node| !is_witness(node) && !view.is_removing(*node)).count() > 1;
        let able: Vec<NodeId> = view
            .nodes()
            .filter(|node| has_pair || !is_witness(node))
            .filter(|node| !leaving.contains(node) && !view.is_removing(*node))
            .filter(|node| *node == own || (view.is_up(*node) && !is_silent(node)))
            // Entries would wait for somebody whom nobody reaches.
            .filter(|node| !view.is_unreached(*node) || members.contains(node))
            .collect();
        let now_ms = clock::now_ms();
        for one in progress.iter().filter(|one| one.member.node != own) {
            let ReplicaMember { id, node, votes } = one.member;
            let is_gone = !view.nodes().any(|known| known == node) || view.is_removing(node);
            let since_ms = view.member(node).map_or(0, |member| member.row.since_ms);
            let is_lost = view.is_down(node)
                && now_ms.saturating_sub(since_ms) > GONE_MAX.as_millis() as u64
                && able.iter().any(|other| !members.contains(other));
            // Beside one node with drives a witness that votes is one more that can stop it.
            let is_idle = is_witness(&node) && !has_pair && members.len() == 2;
            if ((is_gone || is_idle) && self.view_is_whole(&view)) || is_lost {
                return self.changed(
                    replica.take_out(id).await,
                    node,
                    "has no part in the catalog's group any more",
                );
            }
            if !one.is_heard && able.contains(&node) {
                // It may have lost its drive, and then it is somebody else.
                if let Some(found) = self.ask_host(node, replica).await
                    && found != id
                {
                    let words = "has another replica of the catalog; the one before is gone";
                    return self.changed(replica.take_out(id).await, node, words);
                }
            }
            if !votes && one.is_heard && one.has + BEHIND_MAX >= last && able.contains(&node) {
                return self.changed(
                    replica.let_vote(id).await,
                    node,
                    "votes in the catalog's group from now on",
                );
            }
        }
        // A witness leads only where nobody else can: whoever leads answers for the catalog, and should be near those who ask.
        let takes_over = |one: &ReplicaProgress| {
            let ReplicaMember { node, votes, .. } = one.member;
            votes
                && one.is_heard
                && one.has + BEHIND_MAX >= last
                && !is_witness(&node)
                && able.contains(&node)
        };
        let successor = progress.iter().filter(|one| takes_over(one)).max_by_key(|one| one.has);
        if let Some(one) = successor.filter(|_| is_witness(&own)) {
            replica.give_away(Some(one.member.node));
            return false;
        }
        let missing = choose(&able, &members, is_witness).into_iter().find(|node| !members.contains(node));
        if let Some(node) = missing
            && let Some(id) = self.ask_host(node, replica).await
        {
            return self.changed(replica.take_in(id, node).await, node, "is taken into the catalog's group");
        }
        // A new one catches up.
        progress.iter().any(|one| !one.member.votes && one.is_heard && able.contains(&one.member.node))
    }

    fn changed(&self, is_changed: bool, node: NodeId, words: &str) -> bool {
        if is_changed {
            tracing::info!("node {node} {words}");
        }
        true
    }

    /// The number of the replica of a node, which makes one if it has none.
    async fn ask_host(&self, node: NodeId, replica: &ReplicatedCatalog) -> Option<u64> {
        let (incarnation, base) = {
            let standing = replica.standing();
            let standing = standing.borrow();
            (standing.incarnation, standing.base)
        };
        match self.ask(node, &Ask::Host { incarnation, base }).await {
            Ok(Answer::Replica(id)) => Some(id),
            _ => None,
        }
    }

    /// Whether this node knows its own row: before that, nobody is gone because it is not in the view.
    fn view_is_whole(&self, view: &crate::view::View) -> bool {
        view.nodes().any(|node| node == self.identity.node)
    }

    /// A node stops: the others must go on without it.
    pub(crate) async fn release(&self, replica: &ReplicatedCatalog, leaver: NodeId) -> Answer {
        self.standbys.leaves(leaver);
        let deadline = Instant::now() + CHANGE_MAX;
        while Instant::now() < deadline {
            let (progress, _) = replica.progress();
            if !replica.standing().borrow().leads {
                return elsewhere();
            }
            let voters: Vec<&ReplicaProgress> = progress.iter().filter(|one| one.member.votes).collect();
            if let Some(learner) = progress.iter().find(|one| !one.member.votes && one.member.node == leaver)
            {
                replica.take_out(learner.member.id).await;
            } else if !voters.iter().any(|one| one.member.node == leaver) {
                return Answer::Done;
            }
            let stay = voters.iter().filter(|one| one.is_heard && one.member.node != leaver).count();
            if stay > voters.len() / 2 {
                return Answer::Done;
            }
            // Whoever is silent counts against a majority, and comes back as a new one.
            let out = voters.iter().find(|one| !one.is_heard && one.member.node != leaver);
            let out = out.or(voters.iter().find(|one| one.member.node == leaver));
            if let Some(out) = out {
                replica.take_out(out.member.id).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
        Answer::No("the catalog's group could not be made smaller".into())
    }

    /// This node stops. Somebody else leads then, and is not in want of it.
    pub(crate) async fn leave_as_replica(&self, replica: &ReplicatedCatalog) {
        let own = self.identity.node;
        let deadline = Instant::now() + CHANGE_MAX;
        let standing = || replica.standing().borrow().clone();
        if standing().voters() == [own] {
            return;
        }
        replica.give_away(None);
        while Instant::now() < deadline {
            let now = standing();
            // One that was not taken in yet says so as well, so that nobody takes it in meanwhile.
            let leader = Some(self.holder()).filter(|holder| *holder != own);
            if let Some(leader) = leader {
                match self.ask(leader, &Ask::Left).await {
                    Ok(Answer::Done) => return,
                    Ok(answer) => tracing::debug!("leaving the catalog's group: {answer:?}"),
                    Err(fault) => tracing::debug!("leaving the catalog's group: {fault}"),
                }
            }
            if now.is_stalled {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Has this node lead, if it does not, or go on alone where nobody can. Refused if what was acknowledged may be lost by that, unless that is
    /// accepted.
    pub(crate) async fn promote_replica(
        self: &Arc<CatalogHost>,
        replica: &ReplicatedCatalog,
        accept_loss: bool,
    ) -> Result<CatalogPromotion> {
        let own = self.identity.node;
        let before = self.holder();
        let standing = || replica.standing().borrow().clone();
        let loss = match self.hand_over(replica).await {
            true => None,
            false => {
                let now = standing();
                let mut silent = Vec::new();
                for member in now.members.iter().filter(|member| member.votes && member.node != own) {
                    if self.is_there(replica, member).await {
                        let message = format!(
                            "node {} keeps the catalog too, and answers: try again in a moment, or stop it first",
                            member.node
                        );
                        return Err(StoreError::new(ErrorKind::Unavailable, message));
                    }
                    silent.push(member.node);
                }
                let waits = now.leads.then(|| {
                    "the nodes that followed this catalog have not confirmed that none of them was promoted since".to_owned()
                });
                let is_lossy = now.voters().len() > 2 || !now.voters().contains(&own);
                let loss = waits.or_else(|| is_lossy.then(|| {
                    format!(
                        "of the {} nodes that keep the catalog {} do not answer ({}); changes that they acknowledged without \
                         this one are lost",
                        now.voters().len(),
                        silent.len(),
                        super::names(&silent)
                    )
                }));
                if let (Some(loss), false) = (&loss, accept_loss) {
                    return Err(StoreError::about(ErrorKind::Invalid, Subject::Promotion, loss.clone()));
                }
                replica.begin_anew().await.map_err(error::catalog)?;
                loss
            }
        };
        self.until(CHANGE_MAX, || standing().answers).await;
        let epoch = standing().epoch.unwrap_or_default();
        self.adopt(epoch);
        let seq = replica.seq().await.map_err(error::catalog)?;
        Ok(CatalogPromotion { epoch: epoch.to_string(), seq, before: before.to_string(), loss })
    }

    /// Whether a member of the group runs, with the replica that is known: it could go on with others, and two groups would acknowledge.
    async fn is_there(&self, replica: &ReplicatedCatalog, member: &ReplicaMember) -> bool {
        self.ask_host(member.node, replica).await == Some(member.id)
    }

    /// Waits until this node leads, if somebody can lead at all.
    async fn hand_over(&self, replica: &ReplicatedCatalog) -> bool {
        let own = self.identity.node;
        let standing = || replica.standing().borrow().clone();
        let deadline = Instant::now() + ELECTED_MAX;
        let mut asked = Instant::now();
        let mut is_asked = false;
        while Instant::now() < deadline {
            if standing().leads && !standing().is_stalled {
                return true;
            }
            if standing().is_stalled {
                // Nobody was elected for longer than it takes.
                return false;
            }
            let leader = standing().epoch.map(|epoch| epoch.holder()).filter(|holder| *holder != own);
            let is_due = !is_asked || asked.elapsed() > Duration::from_secs(1);
            if let (Some(leader), true) = (leader, is_due) {
                (asked, is_asked) = (Instant::now(), true);
                // What it says shows in who leads.
                let _ = self.ask(leader, &Ask::HandOver).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
        standing().leads && !standing().is_stalled
    }

    async fn until(&self, limit: Duration, holds: impl Fn() -> bool) -> bool {
        let deadline = Instant::now() + limit;
        while !holds() && Instant::now() < deadline {
            tokio::time::sleep(PAUSE).await;
        }
        holds()
    }

    /// Lets a node go for good, by whoever leads, or by a person where of two nodes one is lost.
    pub(crate) async fn detach_replica(&self, replica: &ReplicatedCatalog, node: NodeId) -> Answer {
        let own = self.identity.node;
        let standing = || replica.standing().borrow().clone();
        let now = standing();
        let Some(member) = now.members.iter().find(|member| member.node == node).copied() else {
            return Answer::Done;
        };
        if now.leads {
            let is_out = || !standing().members.iter().any(|other| other.id == member.id);
            let deadline = Instant::now() + CHANGE_MAX;
            while !is_out() && Instant::now() < deadline {
                replica.take_out(member.id).await;
                tokio::time::sleep(PAUSE).await;
            }
            if is_out() {
                return Answer::Done;
            }
        }
        // One that has a leader is asked by it; without one, this node and the lost one have to be all there are.
        let voters: BTreeSet<NodeId> = now.voters().into_iter().collect();
        if voters != BTreeSet::from([own, node]) {
            return Answer::No("no majority of the nodes that keep the catalog answers".into());
        }
        if self.is_there(replica, &member).await {
            return Answer::No("it answers; stop it first".into());
        }
        match replica.begin_anew().await {
            Ok(()) => {
                self.until(CHANGE_MAX, || standing().answers).await;
                Answer::Done
            }
            Err(fault) => Answer::No(fault.message),
        }
    }

    /// How it stands with the group, by its leader.
    pub(crate) async fn status_of_group(&self, replica: &ReplicatedCatalog) -> CatalogStatus {
        let standing = replica.standing().borrow().clone();
        let (progress, last) = replica.progress();
        let seq = replica.seq().await.unwrap_or(self.seq_seen());
        let one = |one: &ReplicaProgress| StandbyInfo {
            node: one.member.node.to_string(),
            in_sync: one.member.votes && one.is_heard && standing.leads,
            seq: (one.has == last).then_some(seq),
            trouble: (!one.is_heard || !standing.leads).then(|| "it does not answer".to_owned()),
        };
        let others = progress.iter().filter(|one| one.member.node != self.identity.node);
        let standbys: Vec<StandbyInfo> = others.map(one).collect();
        CatalogStatus {
            engine: replica.describe(),
            holder: Some(self.identity.node.to_string()),
            epoch: standing.epoch.unwrap_or_default().to_string(),
            seq,
            stalled: standing.is_stalled || !standing.leads,
            alone: !standbys.iter().any(|standby| standby.in_sync),
            standbys,
            trouble: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_number_votes_and_whoever_does_goes_on() {
        assert_eq!((0..=9).map(voters_wanted).collect::<Vec<_>>(), [0, 1, 2, 3, 3, 5, 5, 5, 5, 5]);
        let node = |number: u8| NodeId([number; 16]);
        let nodes = [1, 2, 3, 4].map(node);
        let check = |able: &[NodeId], members: &[NodeId], witness: Option<u8>, expect: &[u8]| {
            let is_witness = |other: &NodeId| Some(*other) == witness.map(node);
            let expect: Vec<NodeId> = expect.iter().copied().map(node).collect();
            assert_eq!(choose(able, members, is_witness), expect, "{able:?} {members:?} {witness:?}");
        };
        check(&nodes, &[], None, &[1, 2, 3]);
        check(&nodes, &[node(4)], None, &[4, 1, 2]);
        check(&nodes, &nodes, None, &[1, 2, 3, 4]);
        check(&nodes[..2], &[node(2), node(4)], None, &[2, 1]);
        check(&nodes, &[], Some(1), &[2, 3, 4]);
        check(&nodes[..3], &[node(2)], Some(1), &[2, 3, 1]);
    }
}
