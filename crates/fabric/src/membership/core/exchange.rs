//! Finding others, and comparing what is known: members go from node to node in pages, in the order of ids.
//!
//! A node that joins fetches all pages; later it compares digests with a random node and fetches them only where they
//! differ. A node that seems lost is asked now and then, and told that it seems so.

use std::net::SocketAddr;
use std::time::Duration;

use foca::Member;
use rand::{Rng, RngExt};
use stoker_format::NodeId;

use super::super::identity::Identity;
use super::super::message::{Ask, Members};
use super::super::peers::{Condition, sum};
use super::super::tasks::Task;
use super::{Core, Effects};

/// A page that does not come within this is asked for again.
const PAGE_WAIT: Duration = Duration::from_millis(300);
const PAGE_TRIES: u32 = 4;

/// Pages that are being fetched.
pub(super) struct Pull {
    number: u64,
    from: SocketAddr,
    after: NodeId,
    tries: u32,
}

/// Whether others should hear of it from us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Fresh,
    Old,
}

impl Core {
    pub(super) fn seek(&mut self, now: Duration, out: &mut Effects) {
        let lost: Vec<NodeId> = self
            .peers
            .values()
            .filter(|record| matches!(record.condition, Condition::Suspect(_) | Condition::Gone))
            .map(|record| record.identity.node)
            .collect();
        if !lost.is_empty() {
            let node = lost[self.rng.random_range(0..lost.len())];
            self.seek_lost(node, out);
        }
        let up = self.peers.values().filter(|record| record.condition == Condition::Up);
        let reached: Vec<SocketAddr> =
            up.flat_map(|r| r.identity.profile.addresses.iter().copied()).collect();
        let own = &self.foca.identity().profile.addresses;
        let seeds: Vec<SocketAddr> = self
            .seeds
            .iter()
            .copied()
            .filter(|seed| !reached.contains(seed) && !own.contains(seed))
            .collect();
        if !seeds.is_empty() && self.pull.is_none() {
            let seed = seeds[self.rng.random_range(0..seeds.len())];
            self.begin_pull(seed, now, out);
        }
    }

    /// Asks a node that seems lost, and tells it so: it has to renew itself before anybody believes it.
    fn seek_lost(&mut self, node: NodeId, out: &mut Effects) {
        let members = vec![Member::alive(self.foca.identity().clone())];
        let digest = self.digest();
        let Some(record) = self.peers.get_mut(node) else { return };
        let addresses = &record.identity.profile.addresses;
        record.paths.turn(addresses);
        if let Some(address) = record.paths.address(addresses) {
            let members = members.into_iter().chain([record.news()]).collect();
            out.datagrams.push((address, Ask { after: NodeId::ZERO, digest, members }.encode()));
        }
    }

    pub(super) fn begin_pull(&mut self, from: SocketAddr, now: Duration, out: &mut Effects) {
        self.pull = Some(Pull { number: 0, from, after: NodeId::ZERO, tries: 0 });
        self.ask_page(now, out);
    }

    fn ask_page(&mut self, now: Duration, out: &mut Effects) {
        let digest = self.digest();
        let members = vec![Member::alive(self.foca.identity().clone())];
        let Some(pull) = &mut self.pull else { return };
        self.pulls += 1;
        pull.number = self.pulls;
        pull.tries += 1;
        out.datagrams.push((pull.from, Ask { after: pull.after, digest, members }.encode()));
        self.tasks.add(now + PAGE_WAIT, Task::Overdue(self.pulls));
    }

    pub(super) fn repeat_page(&mut self, number: u64, now: Duration, out: &mut Effects) {
        match &self.pull {
            Some(pull) if pull.number == number && pull.tries < PAGE_TRIES => self.ask_page(now, out),
            Some(pull) if pull.number == number => self.pull = None,
            _ => {}
        }
    }

    pub(super) fn turn_page(
        &mut self,
        next: Option<NodeId>,
        from: SocketAddr,
        now: Duration,
        out: &mut Effects,
    ) {
        let Some(pull) = &mut self.pull else { return };
        match next {
            Some(next) if next > pull.after => {
                *pull = Pull { from, after: next, tries: 0, ..*pull };
                self.ask_page(now, out);
            }
            // A page that was asked for twice.
            Some(_) => {}
            None => self.pull = None,
        }
    }

    pub(super) fn answer(&mut self, ask: Ask, from: SocketAddr, now: Duration, out: &mut Effects) {
        let Some(asker) = ask.members.first().map(|member| member.id().clone()) else { return };
        if self.is_outdated(asker.node, asker.boot, from, now, out) || self.has_no_room(asker.node) {
            return;
        }
        self.learn_from(ask.members, News::Fresh, from, now, out);
        if self.silent {
            return;
        }
        self.heard(asker.node, from, now);
        let mut first = vec![Member::alive(self.foca.identity().clone())];
        let held_down = self.peers.get(asker.node).filter(|record| record.condition != Condition::Up);
        first.extend(held_down.map(|record| record.news()));
        let body = if ask.after.is_zero() && ask.digest == self.digest() {
            Members::encode(&first)
        } else {
            let following = self.peers.after(ask.after).filter(|member| member.id().node != asker.node);
            Members::encode_page(&first, following)
        };
        out.datagrams.push((from, body));
    }

    pub(super) fn learn_from(
        &mut self,
        members: Vec<Member<Identity>>,
        news: News,
        from: SocketAddr,
        now: Duration,
        out: &mut Effects,
    ) {
        let me = self.foca.identity();
        let newer = members.iter().find(|member| member.id().node == me.node && member.id().boot > me.boot);
        match newer.map(|member| member.id().boot) {
            Some(boot) => self.stop_for(boot, from, out),
            None => self.learn(members, news, now, out),
        }
    }

    pub(super) fn learn(
        &mut self,
        mut members: Vec<Member<Identity>>,
        news: News,
        now: Duration,
        out: &mut Effects,
    ) {
        let me = self.foca.identity();
        // What is said of earlier selves is of no use to the present one.
        members.retain(|member| member.id().node != me.node || member.id() == me);
        members.retain(|member| !self.has_no_room(member.id().node));
        let here = SocketAddr::from(([0, 0, 0, 0], 0));
        let learnt = self.swim(here, now, out, |foca, collected| {
            foca.apply_many(members.into_iter(), news == News::Fresh, collected)
        });
        debug_assert!(learnt.is_ok(), "nothing is decoded here");
    }

    /// Someone who is up, near a random place in the order of ids.
    pub(super) fn random_up(&mut self) -> Option<SocketAddr> {
        let mut place = NodeId::ZERO;
        self.rng.fill_bytes(&mut place.0);
        let after = self.peers.up_after(place).or_else(|| self.peers.up_after(NodeId::ZERO))?;
        after.paths.address(&after.identity.profile.addresses)
    }

    fn digest(&self) -> u64 {
        self.peers.digest() ^ sum(self.foca.identity())
    }
}
