//! What an action costs: requests, bytes and money.

use crate::policy::{Action, Facts};

/// Files up to this long reach a lake in one request, longer ones in parts of that.
pub const PART_BYTES: u64 = 16 << 20;

/// What a lake asks for, in millionths of a currency that nobody names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prices {
    /// 1000 requests that write.
    pub writes_1000: u64,
    /// 1000 requests that read.
    pub reads_1000: u64,
    /// A GB that is read.
    pub gb_read: u64,
}

/// What an action takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effort {
    /// Requests that read.
    pub reads: u64,
    /// Requests that write.
    pub writes: u64,
    /// Bytes from a lake.
    pub bytes_read: u64,
    /// Bytes to a lake.
    pub bytes_written: u64,
}

impl Effort {
    /// Of an action on a file that is cut into chunks of that length.
    pub fn of(action: Action, facts: &Facts, chunk_bytes: u64) -> Effort {
        match action {
            Action::Stage => {
                let bytes = facts.size.saturating_sub(facts.local_bytes);
                let reads = bytes.div_ceil(chunk_bytes.max(1));
                Effort { reads, bytes_read: bytes, ..Effort::default() }
            }
            Action::Drain => {
                let writes = match facts.size {
                    size if size <= PART_BYTES => 1,
                    // Begin, parts, complete.
                    size => size.div_ceil(PART_BYTES) + 2,
                };
                // One look confirms it.
                Effort { reads: 1, writes, bytes_written: facts.size, ..Effort::default() }
            }
            // One look, and the delete.
            Action::Delete if facts.is_clean => Effort { reads: 1, writes: 1, ..Effort::default() },
            Action::Delete => Effort::default(),
        }
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes_read + self.bytes_written
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Effort) -> Effort {
        Effort {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
        }
    }

    /// What it costs, in millionths, rounded up.
    pub fn price(&self, prices: &Prices) -> u64 {
        let share = |count: u64, price: u64, per: u128| {
            u64::try_from((u128::from(count) * u128::from(price)).div_ceil(per)).unwrap_or(u64::MAX)
        };
        share(self.writes, prices.writes_1000, 1_000)
            .saturating_add(share(self.reads, prices.reads_1000, 1_000))
            .saturating_add(share(self.bytes_read, prices.gb_read, 1_000_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_cost_requests_bytes_and_money() {
        let facts = Facts { size: 40 << 20, local_bytes: 8 << 20, is_clean: true, ..Facts::default() };
        let stage = Effort::of(Action::Stage, &facts, 4 << 20);
        assert_eq!((stage.requests(), stage.bytes()), (8, 32 << 20));
        assert_eq!(
            Effort::of(Action::Drain, &facts, 1),
            Effort { reads: 1, writes: 5, bytes_written: 40 << 20, ..Effort::default() }
        );
        assert_eq!(Effort::of(Action::Delete, &facts, 1).requests(), 2);
        assert_eq!(Effort::of(Action::Delete, &Facts::default(), 1).requests(), 0);
        let prices = Prices { writes_1000: 5_000, reads_1000: 400, gb_read: 10_000 };
        let effort = Effort { reads: 1_000, writes: 2_000, bytes_read: 3_000_000_000, bytes_written: 0 };
        assert_eq!(effort.price(&prices), 10_000 + 400 + 30_000);
        assert_eq!(Effort { reads: 1, ..Effort::default() }.price(&prices), 1, "nothing that costs is free");
        assert_eq!(
            Effort { bytes_read: u64::MAX, ..Effort::default() }
                .price(&Prices { gb_read: u64::MAX, ..prices }),
            u64::MAX
        );
    }
}
