//! Who is in a group: decisions only.

use std::collections::BTreeMap;

use stoker_format::NodeId;

/// Most replicas of a group, with those that do not vote.
pub const REPLICAS_MAX: usize = 16;

/// Most groups before it of which a group knows that it took their place.
pub const FORMER_MAX: usize = 16;

/// A replica of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Where it is.
    pub node: NodeId,
    /// Whether it votes; one that does not catches up first.
    pub votes: bool,
}

/// Who is in a group, as its log says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    /// Drawn when it was begun, so that no two groups have one, also where both sides of a partition begin the group before anew. Nothing of
    /// another group is listened to.
    pub id: u64,
    /// The groups whose place it took, the oldest first.
    pub former: Vec<u64>,
    /// Rises when a group that lost its majority is begun anew.
    pub incarnation: u64,
    /// By their numbers. Whoever begins a replica draws its number, which nobody else has or had.
    pub members: BTreeMap<u64, Member>,
}

/// A change of a group, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Somebody who catches up, and does not vote.
    Learner {
        /// Its number.
        id: u64,
        /// Where it is.
        node: NodeId,
    },
    /// One that caught up votes from now on.
    Voter {
        /// Its number.
        id: u64,
    },
    /// One is gone for good, with its number.
    Remove {
        /// Its number.
        id: u64,
    },
}

impl Group {
    /// A group of one; `group` is drawn.
    pub fn alone(group: u64, id: u64, node: NodeId) -> Group {
        let members = BTreeMap::from([(id, Member { node, votes: true })]);
        Group { id: group, former: Vec::new(), incarnation: 1, members }
    }

    /// The group that goes on with this replica alone; `group` is drawn.
    #[must_use]
    pub fn begun_anew(&self, group: u64, id: u64, node: NodeId) -> Group {
        let forgotten = (self.former.len() + 1).saturating_sub(FORMER_MAX);
        let former = self.former.iter().skip(forgotten).copied().chain([self.id]).collect();
        Group { former, incarnation: self.incarnation + 1, ..Group::alone(group, id, node) }
    }

    /// Numbers of those that vote.
    pub fn voters(&self) -> Vec<u64> {
        self.members.iter().filter(|(_, member)| member.votes).map(|(id, _)| *id).collect()
    }

    /// Numbers of those that do not.
    pub fn learners(&self) -> Vec<u64> {
        self.members.iter().filter(|(_, member)| !member.votes).map(|(id, _)| *id).collect()
    }

    /// Whether a replica votes.
    pub fn votes(&self, id: u64) -> bool {
        self.members.get(&id).is_some_and(|member| member.votes)
    }

    /// Whether this replica is the only one that votes.
    pub fn is_alone(&self, id: u64) -> bool {
        self.voters() == [id]
    }

    /// The number of the replica on a node.
    pub fn id_of(&self, node: NodeId) -> Option<u64> {
        self.members.iter().find(|(_, member)| member.node == node).map(|(id, _)| *id)
    }

    /// How many must have an entry for it to be committed.
    pub fn majority(&self) -> usize {
        self.voters().len() / 2 + 1
    }

    /// Whether a change makes sense now.
    pub fn allows(&self, change: &Change) -> bool {
        match change {
            Change::Learner { id, node } => {
                *id != 0
                    && !self.members.contains_key(id)
                    && self.id_of(*node).is_none()
                    && self.members.len() < REPLICAS_MAX
            }
            Change::Voter { id } => self.members.get(id).is_some_and(|member| !member.votes),
            Change::Remove { id } => self.members.contains_key(id) && self.voters() != [*id],
        }
    }

    /// Does a change; one that makes no sense changes nothing.
    pub fn change(&mut self, change: &Change) {
        match change {
            Change::Learner { id, node } => {
                self.members.insert(*id, Member { node: *node, votes: false });
            }
            Change::Voter { id } => {
                if let Some(member) = self.members.get_mut(id) {
                    member.votes = true;
                }
            }
            Change::Remove { id } => drop(self.members.remove(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_replica_and_the_last_voter_stays() {
        let (a, b) = (NodeId([1; 16]), NodeId([2; 16]));
        let mut group = Group::alone(70, 1, a);
        assert!(group.is_alone(1) && group.majority() == 1);
        assert!(!group.allows(&Change::Remove { id: 1 }) && !group.allows(&Change::Voter { id: 1 }));
        assert!(!group.allows(&Change::Learner { id: 2, node: a }), "the node has a replica");
        assert!(!group.allows(&Change::Learner { id: 1, node: b }), "the number is another's");
        for change in [Change::Learner { id: 2, node: b }, Change::Voter { id: 2 }, Change::Remove { id: 2 }]
        {
            assert!(group.allows(&change), "{change:?}");
            group.change(&change);
        }
        group.change(&Change::Learner { id: 3, node: b });
        assert_eq!((group.voters(), group.learners(), group.id_of(b)), (vec![1], vec![3], Some(3)));
        let anew = group.begun_anew(71, 3, b);
        assert!(anew.is_alone(3) && anew.incarnation == 2);
        assert_eq!((anew.id, anew.former), (71, vec![70]));
    }

    #[test]
    fn it_remembers_the_last_groups_before_it() {
        let begun = (1..=40).fold(Group::alone(100, 1, NodeId([1; 16])), |group, number| {
            group.begun_anew(100 + number, 1, NodeId([1; 16]))
        });
        assert_eq!((begun.id, begun.incarnation), (140, 41));
        assert_eq!(begun.former, (124..140).collect::<Vec<u64>>());
    }
}
