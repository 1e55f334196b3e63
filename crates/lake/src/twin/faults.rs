//! What can go wrong with the simulated lake.

/// The share of calls, 0 to 1, that each fault strikes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The lake asks for less traffic; no effect.
    pub busy: f64,
    /// The connection breaks before the effect.
    pub reset_before: f64,
    /// The connection breaks after the effect: the caller does not know of it.
    pub reset_after: f64,
    /// A write fails and has its effect later, up to some calls after.
    pub late: f64,
    /// A read ends early.
    pub short_body: f64,
    /// A write is refused because its bytes were damaged on the way.
    pub bad_digest: f64,
    /// A read answers damaged bytes and nobody says so, as a lake without checksums does.
    pub rot: f64,
    /// Somebody else overwrites or deletes the object just before the call.
    pub foreign: f64,
}

impl Faults {
    /// Every fault but rot and foreign writers, together in about this share of all calls.
    pub fn evenly(rate: f64) -> Faults {
        let each = rate / 6.0;
        Faults {
            busy: each,
            reset_before: each,
            reset_after: each,
            late: each,
            short_body: each,
            bad_digest: each,
            rot: 0.0,
            foreign: 0.0,
        }
    }
}

/// How often each fault has struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Calls that were told to come back later.
    pub busy: u64,
    /// Connections that broke before the effect.
    pub reset_before: u64,
    /// Connections that broke after the effect.
    pub reset_after: u64,
    /// Effects that came after the failure.
    pub late: u64,
    /// Bodies that ended early.
    pub short_body: u64,
    /// Writes that were refused as damaged.
    pub bad_digest: u64,
    /// Reads that answered damaged bytes.
    pub rot: u64,
    /// Changes by somebody else.
    pub foreign: u64,
}
