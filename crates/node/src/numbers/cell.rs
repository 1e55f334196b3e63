//! Numbers of the cluster as this node sees it, and of its ways to the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_format::NodeId;
use stoker_store::Counter;

use crate::cell::View;
use crate::core::Core;

/// Every word that a node's state can have.
const STATES: [&str; 8] =
    ["up", "witness", "joining", "unreachable", "leaving", "quarantined", "evacuating", "down"];

/// How nodes are called in labels: by the name for people, with the beginning of the id where two have the same.
pub(crate) fn labels(view: &View) -> HashMap<NodeId, String> {
    let mut uses: HashMap<String, usize> = HashMap::new();
    for node in view.nodes() {
        *uses.entry(view.name(node)).or_default() += 1;
    }
    let label = |node: NodeId| {
        let name = view.name(node);
        match uses.get(&name) {
            Some(1) | None => name,
            Some(_) => format!("{name}-{}", node.to_string().chars().take(8).collect::<String>()),
        }
    };
    view.nodes().map(|node| (node, label(node))).collect()
}

impl Core {
    pub(super) fn cell_numbers(&self) -> Vec<Counter> {
        let view = self.cell.view();
        let names = labels(&view);
        let mut all = Vec::new();
        let count = |state: &str| view.nodes().filter(|node| view.state_word(*node) == state).count();
        for state in STATES {
            let help = "Nodes of the cluster by what it decided about them, as this node knows it.";
            all.push(Counter::new("cluster_nodes", help, &[("state", state)], count(state) as f64));
        }
        let silent = view.nodes().filter(|node| self.cell.is_suspect(*node) && !view.is_down(*node)).count();
        all.push(Counter::new(
            "cluster_nodes_suspect",
            "Nodes that miss pings of this one and are not declared down.",
            &[],
            silent as f64,
        ));
        all.push(Counter::new(
            "cluster_level",
            "Level of the cluster: in which forms its nodes write.",
            &[],
            f64::from(self.level.get().0),
        ));
        all.push(Counter::new(
            "map_epoch",
            "Commit of the newest row of nodes, sessions and drives that this node knows; all nodes have the same.",
            &[],
            view.epoch() as f64,
        ));
        let rebuilder = &self.cell.rebuilder;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        for (name, help, value) in [
            (
                "rebuilt_files_total",
                "Files that lost a copy and that this node protected again.",
                load(&rebuilder.files),
            ),
            ("rebuilt_bytes_total", "Their bytes.", load(&rebuilder.bytes)),
            (
                "rebuild_trouble",
                "1 if the last try to protect a file again failed.",
                f64::from(rebuilder.trouble().is_some()),
            ),
        ] {
            all.push(Counter::new(name, help, &[], value));
        }
        for node in view.nodes().filter(|node| *node != self.node) {
            let answers = !self.cell.is_suspect(node) && !view.is_down(node);
            let help = "1 if another node answers this one, 0 if it misses pings or is down.";
            let labels = [("peer", names[&node].as_str())];
            all.push(Counter::new("peer_answers", help, &labels, f64::from(answers)));
            let help = "1 for the state that the cluster decided for another node.";
            let labels = [labels[0], ("state", view.state_word(node))];
            all.push(Counter::new("peer_state", help, &labels, 1.0));
        }
        all.extend(self.cell.wire_numbers(&names));
        all
    }
}
