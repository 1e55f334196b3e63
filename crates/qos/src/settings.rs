//! Numbers that are given: rates, costs, what a flow may have, what a resource can do.

/// Bytes of the largest request; whoever wants more asks several times, or nobody could go in between.
pub const COST_BYTES_MAX: u64 = 1 << 30;

/// Operations that one request may stand for.
pub(crate) const COST_OPS_MAX: u32 = 1 << 20;

/// The largest weight.
pub const WEIGHT_MAX: u32 = 10_000;

/// The fastest rate that can be told apart, in bytes per second: one byte takes a thousandth of a nanosecond.
pub(crate) const BYTES_PER_S_MAX: u64 = 1_000_000_000_000;

/// The same in operations.
pub(crate) const OPS_PER_S_MAX: u64 = 1_000_000_000;

/// Bytes that an operation costs at least where nobody knows what one costs.
pub(crate) const OP_BYTES: u64 = 4_096;

/// What a request costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Bytes that are moved.
    pub bytes: u64,
    /// Operations; nearly always one.
    pub ops: u32,
    /// They are written. It is measured apart, and else the same.
    pub is_write: bool,
}

impl Cost {
    /// One operation of so many bytes.
    pub fn bytes(bytes: u64) -> Cost {
        Cost { bytes, ops: 1, is_write: false }
    }

    /// One operation that writes so many bytes.
    pub fn write(bytes: u64) -> Cost {
        Cost { is_write: true, ..Cost::bytes(bytes) }
    }

    pub(crate) fn is_valid(self) -> bool {
        self.bytes <= COST_BYTES_MAX && (1..=COST_OPS_MAX).contains(&self.ops)
    }
}

/// Bytes and operations per second, each where it is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rate {
    /// Bytes per second.
    pub bytes_per_s: Option<u64>,
    /// Operations per second.
    pub ops_per_s: Option<u64>,
}

impl Rate {
    /// Bytes per second alone.
    pub fn bytes(bytes_per_s: u64) -> Rate {
        Rate { bytes_per_s: Some(bytes_per_s), ops_per_s: None }
    }

    /// Operations per second alone.
    pub fn ops(ops_per_s: u64) -> Rate {
        Rate { bytes_per_s: None, ops_per_s: Some(ops_per_s) }
    }

    /// True if nothing is given.
    pub fn is_none(self) -> bool {
        self == Rate::default()
    }

    pub(crate) fn is_valid(self) -> bool {
        self.bytes_per_s.is_none_or(|rate| (1..=BYTES_PER_S_MAX).contains(&rate))
            && self.ops_per_s.is_none_or(|rate| (1..=OPS_PER_S_MAX).contains(&rate))
    }
}

/// Who is asked for soon, and who is asked for much.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Latency {
    /// Somebody waits for each answer: goes first, within its share.
    Interactive,
    /// Goes by its class.
    #[default]
    Bulk,
}

/// What a flow is promised and allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    /// It gets at least this while it asks for it. A promise in bytes holds for large operations, one in operations for small
    /// ones; whoever mixes them asks for both.
    pub floor: Rate,
    /// It never gets more.
    pub ceiling: Rate,
    /// Its share of what is left in its group, against those of others: 1 to [`WEIGHT_MAX`].
    pub weight: u32,
    /// Whether it goes first.
    pub latency: Latency,
    /// For how long a flow that paused may go faster than its ceiling, and how much of its floor it may claim later.
    pub burst_ns: u64,
    /// Operations of it in flight at most.
    pub depth: Option<u32>,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            floor: Rate::default(),
            ceiling: Rate::default(),
            weight: 100,
            latency: Latency::Bulk,
            burst_ns: 50_000_000,
            depth: None,
        }
    }
}

/// A burst is at most a minute.
const BURST_NS_MAX: u64 = 60_000_000_000;

impl Spec {
    /// Refuses what makes no sense, and says why.
    pub fn check(&self) -> Result<(), &'static str> {
        self.fault().map_or(Ok(()), Err)
    }

    /// Why it makes no sense, if it makes none.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let reaches = |floor: Option<u64>, ceiling: Option<u64>| {
            floor.zip(ceiling).is_none_or(|(low, high)| low <= high)
        };
        if !self.floor.is_valid() || !self.ceiling.is_valid() {
            return Some("a rate is zero or too large");
        }
        if !(1..=WEIGHT_MAX).contains(&self.weight) {
            return Some("a weight is from 1 to 10000");
        }
        if self.burst_ns > BURST_NS_MAX {
            return Some("a burst is at most a minute");
        }
        if self.depth == Some(0) {
            return Some("a depth of 0 lets nothing through");
        }
        if !reaches(self.floor.bytes_per_s, self.ceiling.bytes_per_s)
            || !reaches(self.floor.ops_per_s, self.ceiling.ops_per_s)
        {
            return Some("the floor is above the ceiling");
        }
        None
    }
}

/// What a resource can do in a second, as far as it is known. Nothing is promised where it is not.
pub type Capacity = Rate;

/// What a resource is, and how much is kept about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// What it can do, of which floors are parts.
    pub capacity: Capacity,
    /// It is never given more than its capacity, but for `burst_ns`. Without, what is in flight is the only limit: a capacity that was
    /// measured may be too low, and must not keep the resource from showing that.
    pub is_paced: bool,
    /// How far ahead of its capacity it may be given work: it hides that drives and timers are not even.
    pub burst_ns: u64,
    /// Operations in flight.
    pub depth_ops: u32,
    /// Bytes in flight; one request is let through whatever its size.
    pub depth_bytes: u64,
    /// Of the capacity so much may be promised, in percent; the rest is for what was promised nothing.
    pub promised_percent_max: u32,
    /// Flows that are told apart; the work of others shares one flow per class.
    pub flows_max: usize,
    /// Requests that wait, of all flows.
    pub waiting_max: usize,
    /// Requests that wait, of one flow.
    pub flow_waiting_max: usize,
    /// Weights of the groups, in the order of [`crate::GROUPS`].
    pub weights: [u32; 7],
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            capacity: Rate::default(),
            is_paced: true,
            burst_ns: 10_000_000,
            depth_ops: 64,
            depth_bytes: 64 << 20,
            promised_percent_max: 90,
            flows_max: 4_096,
            waiting_max: 65_536,
            flow_waiting_max: 16_384,
            weights: [400, 200, 200, 100, 100, 50, 10],
        }
    }
}
