//! What holds whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use stoker_reflex::events::What;
use stoker_reflex::order::{OrderStatus, WorkOrder};
use stoker_reflex::table::{Event, State, find};
use stoker_reflex::*;

/// Watches commands.
pub struct Invariants {
    /// Nodes of each cell that may be out.
    allowed: BTreeMap<String, usize>,
    cell_of: BTreeMap<String, String>,
    /// Parts that we took out and did not put back.
    pub out: BTreeSet<PartId>,
    /// Every key of a work order, and whether it is open.
    orders: BTreeMap<String, bool>,
    record_last: u64,
    pub quarantines: usize,
}

impl Invariants {
    pub fn new(slo: &Slo, inventory: &Inventory) -> Invariants {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for node in &inventory.nodes {
            *counts.entry(node.cell.clone()).or_default() += 1;
        }
        let percent = *slo.quarantine.rack_percent_max.get_ref() as usize;
        Invariants {
            allowed: counts.into_iter().map(|(cell, nodes)| (cell, (nodes * percent / 100).max(1))).collect(),
            cell_of: inventory.nodes.iter().map(|node| (node.node.clone(), node.cell.clone())).collect(),
            out: BTreeSet::new(),
            orders: BTreeMap::new(),
            record_last: 0,
            quarantines: 0,
        }
    }

    pub fn check(&mut self, tick: u64, commands: &[Command], reflex: &Reflex) {
        let mut moved: BTreeMap<PartId, Event> = BTreeMap::new();
        for command in commands {
            match command {
                Command::Record(recorded) => {
                    assert_eq!(recorded.number, self.record_last + 1, "tick {tick}: a record is missing");
                    self.record_last = recorded.number;
                    assert!(!recorded.reason.is_empty(), "tick {tick}: no reason: {recorded:?}");
                    if let (Some(part), What::Moved { from, event, to }) = (&recorded.part, &recorded.what) {
                        let row = find(part.kind, *from, *event);
                        assert_eq!(
                            row.map(|row| row.to),
                            Some(*to),
                            "tick {tick}: not in the table: {recorded:?}"
                        );
                        moved.insert(part.clone(), *event);
                        // One that was replaced comes back in service.
                        let is_replaced =
                            matches!(event, Event::Back | Event::Replaced) && !reflex.out().contains(part);
                        if is_replaced || matches!(event, Event::Overruled | Event::Refused) {
                            self.out.remove(part);
                        }
                    }
                }
                Command::Quarantine { part, reason } => {
                    assert_eq!(moved.get(part), Some(&Event::Granted), "tick {tick}: {part} without a grant");
                    assert!(!reason.is_empty());
                    self.quarantines += 1;
                    self.out.insert(part.clone());
                    self.check_budget(tick);
                }
                Command::Rejoin { part } => {
                    assert!(
                        matches!(moved.get(part), Some(Event::GatePassed | Event::Removed)),
                        "tick {tick}: {part} without the gate"
                    );
                    assert!(self.out.remove(part), "tick {tick}: {part} was not taken out by us");
                }
                Command::OpenWorkOrder(order) => {
                    assert_eq!(order.status, OrderStatus::Opened);
                    assert!(!order.evidence.is_empty(), "tick {tick}: no evidence: {order:?}");
                    assert!(order.part.is_some() && !order.title.is_empty() && order.key.len() <= 100);
                    self.open(tick, order);
                }
                // An objective may be told of again when it gets worse.
                Command::Escalate(order) if order.part.is_some() => self.open(tick, order),
                Command::UpdateWorkOrder(order) => {
                    assert_eq!(self.orders.get(&order.key), Some(&true), "tick {tick}: {order:?}");
                }
                Command::CloseWorkOrder(order) if order.part.is_some() => {
                    assert_eq!(
                        self.orders.insert(order.key.clone(), false),
                        Some(true),
                        "tick {tick}: {order:?}"
                    );
                }
                _ => {}
            }
        }
        if self.out.is_empty() {
            return;
        }
        let states: BTreeMap<PartId, State> =
            reflex.parts().into_iter().map(|status| (status.part, status.state)).collect();
        for part in &self.out {
            let state = states.get(part).copied();
            let is_out = state.is_some_and(State::is_out);
            assert!(is_out, "tick {tick}: {part} was taken out and is forgotten: {state:?}");
        }
    }

    fn open(&mut self, tick: u64, order: &WorkOrder) {
        let before = self.orders.insert(order.key.clone(), true);
        assert_eq!(before, None, "tick {tick}: a second work order: {order:?}");
    }

    fn check_budget(&self, tick: u64) {
        let mut nodes: BTreeMap<&String, BTreeSet<&str>> = BTreeMap::new();
        for part in &self.out {
            let node = part.name.split(':').next().unwrap_or_default();
            nodes.entry(&self.cell_of[node]).or_default().insert(node);
        }
        for (cell, out) in nodes {
            assert!(out.len() <= self.allowed[cell], "tick {tick}: {out:?} are out of {cell}");
        }
    }

    /// No work order is open.
    pub fn check_all_closed(&self) {
        let open: Vec<&String> =
            self.orders.iter().filter(|(_, is_open)| **is_open).map(|(key, _)| key).collect();
        assert!(open.is_empty(), "{open:?}");
        assert!(self.out.is_empty(), "{:?}", self.out);
    }
}
