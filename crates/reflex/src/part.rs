//! What can break, and where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name of a part.
pub const NAME_LEN_MAX: usize = 256;

/// Nodes that are watched.
pub const NODES_MAX: usize = 4_096;

/// Drives or ports of a node that are watched.
pub const PIECES_MAX: usize = 256;

/// Kinds of parts, those that others depend on first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// A rack, or a power feed: everything that goes dark together. The nodes of a cell are a rack.
    Rack,
    /// A switch that nodes hang on.
    Switch,
    /// A node, which is a tray of a rack.
    Node,
    /// A network port of a node.
    Port,
    /// A drive of a node.
    Drive,
}

impl PartKind {
    /// Every kind.
    pub const ALL: [PartKind; 5] =
        [PartKind::Rack, PartKind::Switch, PartKind::Node, PartKind::Port, PartKind::Drive];

    /// One word.
    pub fn word(self) -> &'static str {
        match self {
            PartKind::Rack => "rack",
            PartKind::Switch => "switch",
            PartKind::Node => "node",
            PartKind::Port => "port",
            PartKind::Drive => "drive",
        }
    }

    /// Whether it holds chunks, so that it can be quarantined and evacuated.
    pub fn holds_chunks(self) -> bool {
        matches!(self, PartKind::Node | PartKind::Drive)
    }
}

/// Names a part. Written as `KIND/NAME`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PartId {
    /// What it is.
    pub kind: PartKind,
    /// Its name. A node is named by its id, a drive or port by [`PartId::drive`] and [`PartId::port`].
    pub name: String,
}

impl PartId {
    /// A part by its name.
    pub fn new(kind: PartKind, name: impl Into<String>) -> PartId {
        PartId { kind, name: name.into() }
    }

    /// A node by its id.
    pub fn node(id: impl Into<String>) -> PartId {
        PartId::new(PartKind::Node, id)
    }

    /// The drive at a place of a node. A new drive in the place of a broken one is the same part.
    pub fn drive(node: &str, path: &str) -> PartId {
        PartId::new(PartKind::Drive, format!("{node}:{path}"))
    }

    /// A port of a node.
    pub fn port(node: &str, name: &str) -> PartId {
        PartId::new(PartKind::Port, format!("{node}:{name}"))
    }

    /// The rack that the nodes of a cell are.
    pub fn rack(cell: &str) -> PartId {
        PartId::new(PartKind::Rack, if cell.is_empty() { "(no name)" } else { cell })
    }

    /// A power feed.
    pub fn power(label: &str) -> PartId {
        PartId::new(PartKind::Rack, format!("power {label}"))
    }

    /// A switch by its label.
    pub fn switch(tor: &str) -> PartId {
        PartId::new(PartKind::Switch, tor)
    }
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.word(), self.name)
    }
}

impl From<PartId> for String {
    fn from(part: PartId) -> String {
        part.to_string()
    }
}

impl TryFrom<String> for PartId {
    type Error = String;

    fn try_from(text: String) -> Result<PartId, String> {
        text.parse()
    }
}

impl FromStr for PartId {
    type Err = String;

    fn from_str(text: &str) -> Result<PartId, String> {
        let wrong = || format!("`{}` is not a part such as drive/NODE:PATH", text.escape_debug());
        let (word, name) = text.split_once('/').ok_or_else(wrong)?;
        let kind = PartKind::ALL.into_iter().find(|kind| kind.word() == word).ok_or_else(wrong)?;
        Ok(PartId::new(kind, name))
    }
}

/// Every node with its parts, and what volumes need of them. The driver makes it of the catalog's view.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Inventory {
    /// Cluster id.
    pub cluster: String,
    /// Every node.
    pub nodes: Vec<NodePlace>,
    /// Nodes that the class of the most demanding volume commits to.
    pub copies_needed: u32,
}

/// A node, where it is, and what is in it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodePlace {
    /// Node id.
    pub node: String,
    /// For people.
    pub name: String,
    /// Cell; nodes without one are one cell.
    pub cell: String,
    /// Switch; empty if nobody said.
    pub tor: String,
    /// Power feed; empty if nobody said.
    pub power: String,
    /// Its drives.
    pub drives: Vec<Piece>,
    /// Its ports.
    pub ports: Vec<Piece>,
}

/// A drive or a port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Piece {
    /// Path of the drive, name of the port.
    pub name: String,
    /// What somebody who replaces it wants to know: model, serial number, slot.
    pub detail: String,
}

/// Where a part is, for whoever goes there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Location {
    /// Cell; empty for a power feed.
    pub cell: String,
    /// Switch.
    pub tor: String,
    /// Power feed.
    pub power: String,
    /// Node id; empty for racks and switches.
    pub node: String,
    /// The node's name.
    pub node_name: String,
    /// Path of a drive, name of a port.
    pub place: String,
    /// Model, serial number, slot.
    pub detail: String,
}

/// Who depends on whom, made of an [`Inventory`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    pub cluster: String,
    pub copies_needed: u32,
    pub places: BTreeMap<PartId, Location>,
    /// Parts whose trouble may have a cause in the key.
    pub members: BTreeMap<PartId, BTreeSet<PartId>>,
    /// Parts that a part depends on.
    pub above: BTreeMap<PartId, Vec<PartId>>,
    /// Nodes of each cell.
    pub cells: BTreeMap<String, BTreeSet<PartId>>,
    /// Parts that are not watched, because there are too many or their names are too long.
    pub left_out: usize,
}

impl Plan {
    pub fn new(inventory: &Inventory) -> Plan {
        let mut plan = Plan {
            cluster: clip(&inventory.cluster),
            copies_needed: inventory.copies_needed,
            left_out: inventory.nodes.len().saturating_sub(NODES_MAX),
            ..Plan::default()
        };
        for node in inventory.nodes.iter().take(NODES_MAX) {
            plan.add_node(node);
        }
        // A feed that is the whole rack, or a rack that is one feed, is one thing.
        let doubles: Vec<PartId> = plan.members.keys().filter(|id| plan.is_double(id)).cloned().collect();
        for double in doubles {
            plan.members.remove(&double);
            plan.places.remove(&double);
            for above in plan.above.values_mut() {
                above.retain(|part| *part != double);
            }
        }
        let shared: Vec<(PartId, Vec<PartId>)> = plan
            .members
            .keys()
            .filter(|id| id.kind == PartKind::Switch)
            .map(|id| (id.clone(), plan.around(id)))
            .collect();
        plan.above.extend(shared);
        plan
    }

    /// Racks and feeds that a switch is in, as far as its nodes tell.
    fn around(&self, switch: &PartId) -> Vec<PartId> {
        let nodes: Vec<&PartId> = self.members_of(switch, PartKind::Node).collect();
        let holds = |(id, members): &(&PartId, &BTreeSet<PartId>)| {
            id.kind == PartKind::Rack && nodes.iter().all(|node| members.contains(*node))
        };
        self.members.iter().filter(holds).map(|(id, _)| id.clone()).collect()
    }

    fn add_node(&mut self, node: &NodePlace) {
        let labels = [&node.node, &node.name, &node.cell, &node.tor, &node.power];
        if node.node.is_empty() || labels.iter().any(|label| label.len() > NAME_LEN_MAX) {
            self.left_out += 1;
            return;
        }
        let id = PartId::node(&node.node);
        let place = Location {
            cell: node.cell.clone(),
            tor: node.tor.clone(),
            power: node.power.clone(),
            node: node.node.clone(),
            node_name: node.name.clone(),
            ..Location::default()
        };
        let wide =
            |location: Location| Location { node: String::new(), node_name: String::new(), ..location };
        let mut above = Vec::new();
        if !node.tor.is_empty() {
            let location = Location { power: String::new(), ..wide(place.clone()) };
            above.push((PartId::switch(&node.tor), location));
        }
        let location = Location { power: String::new(), tor: String::new(), ..wide(place.clone()) };
        above.push((PartId::rack(&node.cell), location));
        if !node.power.is_empty() {
            let location = Location { cell: String::new(), tor: String::new(), ..wide(place.clone()) };
            above.push((PartId::power(&node.power), location));
        }
        for (part, location) in &above {
            self.members.entry(part.clone()).or_default().insert(id.clone());
            self.places.entry(part.clone()).or_insert_with(|| location.clone());
        }
        let above: Vec<PartId> = above.into_iter().map(|(part, _)| part).collect();
        let pieces = [(&node.drives, PartKind::Drive), (&node.ports, PartKind::Port)];
        for (pieces, kind) in pieces {
            self.left_out += pieces.len().saturating_sub(PIECES_MAX);
            for piece in pieces.iter().take(PIECES_MAX) {
                let part = match kind {
                    PartKind::Drive => PartId::drive(&node.node, &piece.name),
                    _ => PartId::port(&node.node, &piece.name),
                };
                if part.name.len() > NAME_LEN_MAX {
                    self.left_out += 1;
                    continue;
                }
                if kind == PartKind::Drive {
                    self.members.entry(id.clone()).or_default().insert(part.clone());
                } else if !node.tor.is_empty() {
                    self.members.entry(PartId::switch(&node.tor)).or_default().insert(part.clone());
                }
                let location =
                    Location { place: piece.name.clone(), detail: clip(&piece.detail), ..place.clone() };
                self.places.insert(part.clone(), location);
                self.above.insert(part, [vec![id.clone()], above.clone()].concat());
            }
        }
        self.cells.entry(node.cell.clone()).or_default().insert(id.clone());
        self.above.insert(id.clone(), above);
        self.places.insert(id, place);
    }

    /// A power feed with the same nodes as a rack.
    fn is_double(&self, id: &PartId) -> bool {
        let is_feed =
            id.kind == PartKind::Rack && self.places[id].cell.is_empty() && id.name.starts_with("power ");
        let same = |cell: &BTreeSet<PartId>| *cell == self.members[id];
        is_feed && self.cells.values().any(same)
    }

    /// The node that a part is, or is in.
    pub fn node_of(&self, part: &PartId) -> Option<PartId> {
        let node = &self.places.get(part)?.node;
        (!node.is_empty()).then(|| PartId::node(node))
    }

    /// Members of one kind.
    pub fn members_of(&self, part: &PartId, kind: PartKind) -> impl Iterator<Item = &PartId> {
        self.members.get(part).into_iter().flatten().filter(move |member| member.kind == kind)
    }
}

/// At most as much text as a name may have.
pub(crate) fn clip(text: &str) -> String {
    text.chars().take(NAME_LEN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_and_read() {
        for text in ["drive/n1:/data/0", "node/ab", "port/n1:eth0", "switch/t", "rack/power a/b"] {
            assert_eq!(text.parse::<PartId>().unwrap().to_string(), text);
        }
        for text in ["", "drive", "disk/1", "Drive/1"] {
            assert!(text.parse::<PartId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_feed_that_is_the_rack_is_not_named_twice() {
        let node = |node: &str, power: &str| NodePlace {
            node: node.into(),
            cell: "a".into(),
            tor: "t".into(),
            power: power.into(),
            drives: vec![Piece { name: "/d0".into(), detail: "x".into() }],
            ..NodePlace::default()
        };
        let plan = |nodes: Vec<NodePlace>| Plan::new(&Inventory { nodes, ..Inventory::default() });
        let one = plan(vec![node("1", "p"), node("2", "p")]);
        assert!(!one.members.contains_key(&PartId::power("p")));
        assert_eq!(one.above[&PartId::node("1")], [PartId::switch("t"), PartId::rack("a")]);
        let two = plan(vec![node("1", "p"), node("2", "q")]);
        assert!(
            two.members.contains_key(&PartId::power("p")) && two.members.contains_key(&PartId::power("q"))
        );
        assert_eq!(two.node_of(&PartId::drive("2", "/d0")), Some(PartId::node("2")));
        let long = plan(vec![node(&"n".repeat(300), "p"), node("", "p")]);
        assert_eq!((long.left_out, long.places.len()), (2, 0));
    }
}
