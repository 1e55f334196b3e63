//! Where nodes stand, and how far apart copies must be.

/// Labels of what a node belongs to and fails together with. A node without a label may share that thing with anyone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Its cell: copies stay inside as long as they can. Nodes without a label are one cell.
    pub cell: Option<String>,
    /// The switch on top of its rack.
    pub tor: Option<String>,
    /// Its power feed.
    pub power: Option<String>,
}

/// What copies must not share. Each includes the ones before it only if the labels do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spread {
    /// Two nodes; always demanded.
    Node,
    /// Two racks.
    Tor,
    /// Two power feeds.
    Power,
}
