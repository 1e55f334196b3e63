//! What is measured over S3, and what Stoker has to reach.

use super::finding::Finding;

/// What is done with the objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read objects that fit into memory and were read before.
    Hot,
    /// Read each object once, after a restart.
    Cold,
    /// Write objects, new ones where possible.
    Put,
}

/// A named load.
#[derive(Debug)]
pub struct Workload {
    /// As in the table, in JSON and on the command line.
    pub name: &'static str,
    /// What is done.
    pub kind: Kind,
    /// Size of the objects.
    pub object_bytes: usize,
    /// Connections, each with one request under way.
    pub connections: usize,
    /// What Stoker has to reach.
    pub bars: &'static [Bar],
}

/// One thing that Stoker has to reach.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bar {
    /// At least this share of nginx's throughput.
    Nginx(f64),
    /// At most this many times nginx's CPU time per request.
    Cpu(f64),
    /// At least this share of the bare drive's throughput.
    Raw(f64),
    /// At least this share of nginx's throughput or that share of the drive's, whichever is less.
    NginxOrRaw(f64, f64),
    /// At least this many times a peer's throughput.
    Peer(&'static str, f64),
}

impl Bar {
    /// In words.
    pub fn words(self) -> String {
        match self {
            Bar::Nginx(least) => format!("at least {least}x nginx"),
            Bar::Cpu(most) => format!("at most {most}x the CPU of nginx"),
            Bar::Raw(least) => format!("at least {least}x raw"),
            Bar::NginxOrRaw(nginx, raw) => format!("at least {nginx}x nginx or {raw}x raw"),
            Bar::Peer(name, least) => format!("at least {least}x {name}"),
        }
    }

    /// Whether it was reached; unknown if what it compares with was not measured.
    pub fn is_met(self, finding: &Finding) -> Option<bool> {
        match self {
            Bar::Nginx(least) => Some(finding.ratio()? >= least),
            Bar::Cpu(most) => Some(finding.cpu_ratio()? <= most),
            Bar::Raw(least) => Some(finding.raw_ratio()? >= least),
            Bar::NginxOrRaw(nginx, raw) => {
                let (by_nginx, by_raw) =
                    (finding.ratio().map(|r| r >= nginx), finding.raw_ratio().map(|r| r >= raw));
                match (by_nginx, by_raw) {
                    (Some(true), _) | (_, Some(true)) => Some(true),
                    (Some(false), Some(false)) => Some(false),
                    _ => None,
                }
            }
            Bar::Peer(name, least) => Some(finding.peer_ratio(name)? >= least),
        }
    }
}

const fn workload(
    name: &'static str,
    kind: Kind,
    object_bytes: usize,
    connections: usize,
    bars: &'static [Bar],
) -> Workload {
    Workload { name, kind, object_bytes, connections, bars }
}

/// All of them, in the order in which they run: what reads cold needs the ring as it was filled, what writes comes last.
pub const WORKLOADS: [Workload; 11] = [
    workload("get_8m_cold", Kind::Cold, 8 << 20, 8, &[Bar::Raw(0.85)]),
    workload("get_8m_c8", Kind::Hot, 8 << 20, 8, &[Bar::Nginx(0.75), Bar::Cpu(2.0)]),
    workload("get_8m_c32", Kind::Hot, 8 << 20, 32, &[]),
    workload("get_1m_c8", Kind::Hot, 1 << 20, 8, &[]),
    workload("get_1m_c32", Kind::Hot, 1 << 20, 32, &[]),
    workload("get_64k_c8", Kind::Hot, 64 << 10, 8, &[]),
    workload("get_64k_c32", Kind::Hot, 64 << 10, 32, &[Bar::Nginx(0.35)]),
    workload("put_8m_c8", Kind::Put, 8 << 20, 8, &[Bar::NginxOrRaw(1.6, 0.75), Bar::Peer("garage", 5.0)]),
    workload("put_8m_c32", Kind::Put, 8 << 20, 32, &[]),
    workload("put_1m_c8", Kind::Put, 1 << 20, 8, &[]),
    workload("put_64k_c32", Kind::Put, 64 << 10, 32, &[]),
];

/// The longest object of any load.
pub const OBJECT_BYTES_MAX: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_done() {
        for workload in &WORKLOADS {
            let size = match workload.object_bytes {
                bytes if bytes >= 1 << 20 => format!("{}m", bytes >> 20),
                bytes => format!("{}k", bytes >> 10),
            };
            let name = match workload.kind {
                Kind::Hot => format!("get_{size}_c{}", workload.connections),
                Kind::Cold => format!("get_{size}_cold"),
                Kind::Put => format!("put_{size}_c{}", workload.connections),
            };
            assert_eq!(workload.name, name);
            assert!(workload.object_bytes <= OBJECT_BYTES_MAX);
        }
    }
}
