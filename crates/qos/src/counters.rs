//! What was granted, and who waited how long for it.

/// Of a class or of a flow, since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Operations that were asked for.
    pub asked_ops: u64,
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// Operations that were granted.
    pub granted_ops: u64,
    /// Bytes that were granted.
    pub granted_bytes: u64,
    /// Requests that had to wait before they were granted.
    pub waited: u64,
    /// How long those waited, together.
    pub waited_ns: u64,
    /// The longest of these waits.
    pub waited_ns_max: u64,
    /// Requests that were withdrawn while they waited.
    pub cancelled: u64,
    /// Requests that were refused because too many wait.
    pub refused: u64,
    /// Requests that wait now.
    pub waiting: u64,
}

impl Counters {
    pub(crate) fn ask(&mut self, ops: u64, bytes: u64) {
        self.asked_ops += ops;
        self.asked_bytes += bytes;
    }

    pub(crate) fn grant(&mut self, ops: u64, bytes: u64) {
        self.granted_ops += ops;
        self.granted_bytes += bytes;
    }

    pub(crate) fn wait(&mut self, ns: u64) {
        self.waited += 1;
        self.waited_ns += ns;
        self.waited_ns_max = self.waited_ns_max.max(ns);
    }
}
