//! Where the other nodes were when the cluster was last seen: one small file. The catalog has the same in its rows, but a node
//! must find the others before it finds the catalog.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use stoker_format::NodeId;

use crate::identity::write_durable;

const FILE: &str = "cluster.peers";

/// Most nodes that are written down.
const NODES_MAX: usize = 4096;

type Places = BTreeMap<NodeId, Vec<SocketAddr>>;

/// Addresses of nodes.
pub struct Book {
    path: PathBuf,
    places: Mutex<Places>,
}

impl Book {
    /// Reads it; one that cannot be read is empty, since everything in it is found again.
    pub fn open(dir: &Path) -> Book {
        let path = dir.join(FILE);
        let places = match std::fs::read_to_string(&path) {
            Ok(text) => parse(&text),
            Err(fault) => {
                if fault.kind() != std::io::ErrorKind::NotFound {
                    tracing::warn!("{}: {fault}", path.display());
                }
                Places::new()
            }
        };
        Book { path, places: Mutex::new(places) }
    }

    /// Everything in it.
    pub fn all(&self) -> Vec<(NodeId, Vec<SocketAddr>)> {
        self.places.lock().unwrap().iter().map(|(node, addresses)| (*node, addresses.clone())).collect()
    }

    /// Where a node is.
    pub fn of(&self, node: NodeId) -> Vec<SocketAddr> {
        self.places.lock().unwrap().get(&node).cloned().unwrap_or_default()
    }

    /// Adds a node, or says where it is now.
    pub fn note(&self, node: NodeId, addresses: Vec<SocketAddr>) {
        let mut places = self.places.lock().unwrap();
        if !addresses.is_empty() && (places.len() < NODES_MAX || places.contains_key(&node)) {
            places.insert(node, addresses);
            self.write(&places);
        }
    }

    /// Replaces everything by what the catalog says, and writes it down if it is news.
    pub fn set(&self, nodes: impl IntoIterator<Item = (NodeId, Vec<SocketAddr>)>) {
        let fresh: Places = nodes.into_iter().take(NODES_MAX).collect();
        let mut places = self.places.lock().unwrap();
        if *places == fresh {
            return;
        }
        *places = fresh;
        self.write(&places);
    }

    fn write(&self, places: &Places) {
        let line = |(node, addresses): (&NodeId, &Vec<SocketAddr>)| {
            let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
            format!("{node} {}\n", addresses.join(" "))
        };
        let text: String = places.iter().map(line).collect();
        if let Err(fault) = write_durable(&self.path, text.as_bytes()) {
            tracing::warn!("{}: {fault}", self.path.display());
        }
    }
}

/// A node in each line, with its addresses; lines that say something else are left out.
fn parse(text: &str) -> Places {
    let line = |line: &str| {
        let (node, addresses) = line.split_once(' ')?;
        let addresses = addresses.split(' ').filter_map(|address| address.parse().ok()).collect();
        Some((node.parse().ok()?, addresses))
    };
    text.lines().take(NODES_MAX).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nonsense_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let book = Book::open(dir.path());
        let one = (NodeId([1; 16]), vec!["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()]);
        let two = (NodeId([2; 16]), vec!["10.0.0.1:3".parse().unwrap()]);
        book.set([one.clone(), two.clone()]);
        assert_eq!(Book::open(dir.path()).all(), [one.clone(), two]);
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        std::fs::write(dir.path().join(FILE), format!("{text}\nnobody at all\n\u{7f}\n")).unwrap();
        assert_eq!(Book::open(dir.path()).of(one.0), one.1);
        assert_eq!(Book::open(dir.path()).all().len(), 2);
    }
}
