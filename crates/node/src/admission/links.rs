//! The way to each other node.

use std::collections::BTreeMap;
use std::sync::RwLock;

use stoker_format::NodeId;
use stoker_qos_driver::Resource;

use super::{GATES_MAX, gate};

/// Schedulers of links, by the node at their other end.
pub(crate) struct Links {
    by_node: RwLock<BTreeMap<NodeId, Resource>>,
    others: Resource,
}

impl Default for Links {
    fn default() -> Links {
        Links { by_node: RwLock::default(), others: gate() }
    }
}

impl Links {
    /// The scheduler of the link to a node.
    pub fn of(&self, node: NodeId) -> Resource {
        if let Some(link) = self.by_node.read().unwrap().get(&node) {
            return link.clone();
        }
        let mut by_node = self.by_node.write().unwrap();
        if by_node.len() >= GATES_MAX && !by_node.contains_key(&node) {
            return self.others.clone();
        }
        by_node.entry(node).or_insert_with(gate).clone()
    }

    pub fn all(&self) -> Vec<Resource> {
        self.by_node.read().unwrap().values().cloned().chain([self.others.clone()]).collect()
    }
}
