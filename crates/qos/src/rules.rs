//! Which flow work belongs to: that of the rule which says most about it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::tag::{Class, JobId, Tag, TenantId, VolumeId};

/// Work that a rule is about: what is not given may be anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Match {
    /// Work of this tenant.
    pub tenant: Option<TenantId>,
    /// Work of this job.
    pub job: Option<JobId>,
    /// Work on this volume.
    pub volume: Option<VolumeId>,
    /// Work of this class.
    pub class: Option<Class>,
}

const JOB: u8 = 8;
const VOLUME: u8 = 4;
const TENANT: u8 = 2;
const CLASS: u8 = 1;

impl Match {
    /// All work of a job.
    pub fn job(job: u64) -> Match {
        Match { job: Some(JobId(job)), ..Match::default() }
    }

    /// All work of a tenant.
    pub fn tenant(tenant: u64) -> Match {
        Match { tenant: Some(TenantId(tenant)), ..Match::default() }
    }

    /// All work on a volume.
    pub fn volume(volume: u32) -> Match {
        Match { volume: Some(VolumeId(volume)), ..Match::default() }
    }

    /// All work of a class that no other rule is about.
    pub fn class(class: Class) -> Match {
        Match { class: Some(class), ..Match::default() }
    }

    fn fields(self) -> u8 {
        let bit = |is_there: bool, bit: u8| if is_there { bit } else { 0 };
        bit(self.job.is_some(), JOB)
            | bit(self.volume.is_some(), VOLUME)
            | bit(self.tenant.is_some(), TENANT)
            | bit(self.class.is_some(), CLASS)
    }

    /// The rule about these fields of a tag.
    fn of(tag: Tag, fields: u8) -> Match {
        Match {
            tenant: (fields & TENANT > 0).then_some(tag.tenant),
            job: (fields & JOB > 0).then_some(tag.job),
            volume: (fields & VOLUME > 0).then_some(tag.volume),
            class: (fields & CLASS > 0).then_some(tag.class),
        }
    }
}

/// Hashes of ids that the cluster gave: quick, and not for what strangers choose.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }
}

type Map<K> = HashMap<K, u32, BuildHasherDefault<IdHasher>>;

/// Rules, and the flows that tags were found to belong to.
#[derive(Debug)]
pub(crate) struct Rules {
    by_match: Map<Match>,
    /// Rules about each set of fields.
    counts: [u32; 16],
    known: Map<Tag>,
    known_max: usize,
}

impl Rules {
    pub fn new(known_max: usize) -> Rules {
        Rules { by_match: Map::default(), counts: [0; 16], known: Map::default(), known_max }
    }

    pub fn get(&self, rule: &Match) -> Option<u32> {
        self.by_match.get(rule).copied()
    }

    pub fn insert(&mut self, rule: Match, flow: u32) {
        if self.by_match.insert(rule, flow).is_none() {
            self.counts[rule.fields() as usize] += 1;
        }
        self.known.clear();
    }

    pub fn remove(&mut self, rule: &Match) {
        if self.by_match.remove(rule).is_some() {
            self.counts[rule.fields() as usize] -= 1;
        }
        self.known.clear();
    }

    /// The flow of a tag that was asked for before.
    pub fn known(&self, tag: &Tag) -> Option<u32> {
        self.known.get(tag).copied()
    }

    pub fn note(&mut self, tag: Tag, flow: u32) {
        if self.known.len() >= self.known_max {
            self.known.clear();
        }
        self.known.insert(tag, flow);
    }

    pub fn forget_tags(&mut self) {
        self.known.clear();
    }

    /// The flow of the rule that says most: the one with the most fields, then job, volume, tenant and class.
    pub fn find(&self, tag: Tag) -> Option<u32> {
        let mut orders: Vec<u8> = (0..16).filter(|fields| self.counts[*fields as usize] > 0).collect();
        orders.sort_by_key(|fields| std::cmp::Reverse((fields.count_ones(), *fields)));
        orders.into_iter().find_map(|fields| self.get(&Match::of(tag, fields)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_that_says_most() {
        let mut rules = Rules::new(10);
        rules.insert(Match::default(), 0);
        rules.insert(Match::class(Class::Drain), 1);
        rules.insert(Match::tenant(7), 2);
        rules.insert(Match::volume(3), 3);
        rules.insert(Match::job(9), 4);
        rules.insert(Match { class: Some(Class::Drain), ..Match::tenant(7) }, 5);
        let tag = Tag::of(Class::Client);
        let expect = [
            (tag, 0),
            (Tag::of(Class::Drain), 1),
            (tag.tenant(7), 2),
            (tag.tenant(7).volume(3), 3),
            (tag.tenant(7).volume(3).job(9), 4),
            (Tag::of(Class::Drain).tenant(7).volume(3).job(9), 5),
        ];
        for (tag, flow) in expect {
            assert_eq!(rules.find(tag), Some(flow), "{tag:?}");
        }
        rules.remove(&Match::job(9));
        assert_eq!(rules.find(tag.job(9).tenant(7)), Some(2));
    }
}
