//! Locks of files among all mounts of a cluster.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// A lock that somebody has, or wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockRow {
    /// The mount.
    pub client: [u8; 16],
    /// Who of that mount.
    pub owner: u64,
    /// Of the whole file (`flock`); such locks and those of ranges (`fcntl`) do not see each other.
    pub is_of_file: bool,
    /// Alone; otherwise beside other shared ones.
    pub is_exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// The process, for others that ask who has it.
    pub pid: u32,
    /// The node that the mount speaks to.
    pub node: [u8; 16],
    /// Its session: once that is over, whoever spoke to it has to come back or loses the lock.
    pub session: [u8; 16],
}

impl LockRow {
    fn is_of_owner(&self, other: &LockRow) -> bool {
        (self.client, self.owner, self.is_of_file) == (other.client, other.owner, other.is_of_file)
    }

    fn overlaps(&self, other: &LockRow) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether both could be one lock: next to each other, and alike.
    fn continues(&self, next: &LockRow) -> bool {
        self.end.checked_add(1) == Some(next.start)
            && self.is_of_owner(next)
            && (self.is_exclusive, self.pid, self.node, self.session)
                == (next.is_exclusive, next.pid, next.node, next.session)
    }

    fn order(&self) -> ([u8; 16], u64, bool, u64) {
        (self.client, self.owner, self.is_of_file, self.start)
    }
}

/// The locks on one file. Without any there is no row.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(into = "Stored", try_from = "Stored")]
pub struct LocksRow {
    /// Who has what. Those of one owner and kind do not overlap.
    pub held: Vec<LockRow>,
}

/// The same as it is stored: a mount often has many.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    mounts: Vec<Mount>,
    held: Vec<Held>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mount {
    client: [u8; 16],
    node: [u8; 16],
    session: [u8; 16],
}

#[derive(Clone, Serialize, Deserialize)]
struct Held {
    mount: u32,
    owner: u64,
    is_of_file: bool,
    is_exclusive: bool,
    start: u64,
    end: u64,
    pid: u32,
}

impl From<LocksRow> for Stored {
    fn from(row: LocksRow) -> Stored {
        let mut mounts: Vec<Mount> = Vec::new();
        let held = row.held.into_iter().map(|lock| {
            let LockRow { client, owner, is_of_file, is_exclusive, start, end, pid, node, session } = lock;
            let mount = Mount { client, node, session };
            // They are in the order of their mounts.
            if mounts.last() != Some(&mount) {
                mounts.push(mount);
            }
            Held { mount: mounts.len() as u32 - 1, owner, is_of_file, is_exclusive, start, end, pid }
        });
        let held = held.collect();
        Stored { mounts, held }
    }
}

impl TryFrom<Stored> for LocksRow {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<LocksRow, &'static str> {
        let lock = |held: Held| {
            let Held { mount, owner, is_of_file, is_exclusive, start, end, pid } = held;
            let Mount { client, node, session } = stored.mounts.get(mount as usize)?.clone();
            Some(LockRow { client, owner, is_of_file, is_exclusive, start, end, pid, node, session })
        };
        let held: Option<Vec<LockRow>> = stored.held.into_iter().map(lock).collect();
        Ok(LocksRow { held: held.ok_or("a lock of a mount that is not there")? })
    }
}

impl RowValue for LocksRow {
    const TABLE: &'static str = "locks";
}

impl LocksRow {
    /// What keeps somebody from getting a lock.
    pub fn in_the_way(&self, wanted: &LockRow) -> Option<&LockRow> {
        self.held.iter().find(|held| {
            held.is_of_file == wanted.is_of_file
                && held.overlaps(wanted)
                && (held.is_exclusive || wanted.is_exclusive)
                && !held.is_of_owner(wanted)
        })
    }

    /// Gives somebody a lock that nothing stands in the way of, instead of what the same owner has there.
    pub fn take(&mut self, wanted: LockRow) {
        self.give_back(&wanted);
        self.held.push(wanted);
        self.held.sort_by_key(LockRow::order);
        self.held.dedup_by(|next, held| {
            let is_one = held.continues(next);
            if is_one {
                held.end = next.end;
            }
            is_one
        });
    }

    /// Takes a range from its owner; what lies around it stays.
    pub fn give_back(&mut self, range: &LockRow) {
        let around = |held: LockRow| {
            if !held.is_of_owner(range) || !held.overlaps(range) {
                return [Some(held), None];
            }
            let before = range.start.checked_sub(1).filter(|end| held.start <= *end);
            let behind = range.end.checked_add(1).filter(|start| *start <= held.end);
            [
                before.map(|end| LockRow { end, ..held.clone() }),
                behind.map(|start| LockRow { start, ..held.clone() }),
            ]
        };
        self.held = std::mem::take(&mut self.held).into_iter().flat_map(around).flatten().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 12;

    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, sides: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % sides
        }
    }

    fn lock(owner: u64, is_of_file: bool, is_exclusive: bool, start: u64, end: u64) -> LockRow {
        let (client, node, session) = ([owner as u8 % 2; 16], [1; 16], [2; 16]);
        LockRow { client, owner: owner / 2, is_of_file, is_exclusive, start, end, pid: 7, node, session }
    }

    /// Byte by byte what the rows say, so that splitting and merging have something to differ from.
    #[derive(Default)]
    struct Model(std::collections::BTreeMap<(u64, bool, u64), bool>);

    impl Model {
        fn in_the_way(&self, owner: u64, wanted: &LockRow) -> bool {
            self.0.iter().any(|(&(other, is_of_file, byte), &is_exclusive)| {
                other != owner
                    && is_of_file == wanted.is_of_file
                    && (wanted.start..=wanted.end).contains(&byte)
                    && (is_exclusive || wanted.is_exclusive)
            })
        }
    }

    #[test]
    fn locks_are_what_each_byte_says() {
        let (mut dice, mut row, mut model) = (Dice(1), LocksRow::default(), Model::default());
        for step in 0..20_000 {
            let (owner, is_of_file) = (dice.roll(4), dice.roll(5) == 0);
            let (one, other) = (dice.roll(BYTES), dice.roll(BYTES));
            let wanted = lock(owner, is_of_file, dice.roll(2) == 0, one.min(other), one.max(other));
            let bytes = wanted.start..=wanted.end;
            match dice.roll(3) {
                0 => {
                    row.give_back(&wanted);
                    model.0.retain(|(by, space, byte), _| {
                        (*by, *space) != (owner, is_of_file) || !bytes.contains(byte)
                    });
                }
                _ => {
                    let is_blocked = row.in_the_way(&wanted).is_some();
                    assert_eq!(is_blocked, model.in_the_way(owner, &wanted), "step {step}");
                    if !is_blocked {
                        row.take(wanted.clone());
                        let taken = bytes.map(|byte| ((owner, is_of_file, byte), wanted.is_exclusive));
                        model.0.extend(taken);
                    }
                }
            }
            let mut held = std::collections::BTreeMap::new();
            for lock in &row.held {
                for byte in lock.start..=lock.end {
                    let owner = lock.owner * 2 + u64::from(lock.client[0]);
                    let before = held.insert((owner, lock.is_of_file, byte), lock.is_exclusive);
                    assert_eq!(before, None, "step {step}: two locks on a byte: {:?}", row.held);
                }
            }
            assert_eq!(held, model.0, "step {step}");
            let mergeable = row.held.windows(2).any(|pair| pair[0].continues(&pair[1]));
            assert!(!mergeable, "step {step}: {:?}", row.held);
            assert_eq!(LocksRow::decode(&row.encode()).unwrap(), row);
        }
    }

    #[test]
    fn the_last_byte_there_is_can_be_locked_and_given_back() {
        let mut row = LocksRow::default();
        row.take(lock(0, false, true, 0, u64::MAX));
        row.give_back(&lock(0, false, true, u64::MAX, u64::MAX));
        row.give_back(&lock(0, false, true, 0, 0));
        assert_eq!(row.held, vec![lock(0, false, true, 1, u64::MAX - 1)]);
        assert!(row.in_the_way(&lock(1, false, false, u64::MAX - 1, u64::MAX)).is_some());
        assert!(row.in_the_way(&lock(1, false, true, u64::MAX, u64::MAX)).is_none());
        assert!(row.in_the_way(&lock(1, true, true, 0, u64::MAX)).is_none(), "flock does not see fcntl");
    }
}
