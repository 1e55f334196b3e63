//! What a node says at one moment, and what lies between two of them.

use std::collections::BTreeMap;
use std::time::Instant;

use stoker_store::{
    Counter, DriveInfo, History, NodeInfo, NodeStatus, Order, Outages, Report, RiskReport, Store, VolumeInfo,
};

use crate::{clock, outages};

/// How far back the small bars go, and their step: what nodes have in memory.
const HISTORY_AGE_MS: u64 = 600_000;
const HISTORY_EVERY_MS: u64 = 10_000;

/// All that is shown, as it was told. What was not told is empty, and why is in `trouble`.
#[derive(Clone)]
pub struct Sample {
    pub at: Instant,
    pub at_ms: u64,
    pub status: Option<NodeStatus>,
    pub risk: Option<RiskReport>,
    pub nodes: Vec<NodeInfo>,
    pub drives: Vec<DriveInfo>,
    pub volumes: Vec<VolumeInfo>,
    pub counters: Vec<Counter>,
    /// The last minutes of all nodes; none from a node of a release that does not keep them.
    pub history: Option<History>,
    pub trouble: Option<String>,
    pub outages: Outages,
}

impl Sample {
    /// Nothing but a reason.
    pub fn of_trouble(trouble: String) -> Sample {
        Sample {
            at: clock::now(),
            at_ms: clock::unix_ms(),
            status: None,
            risk: None,
            nodes: Vec::new(),
            drives: Vec::new(),
            volumes: Vec::new(),
            counters: Vec::new(),
            history: None,
            trouble: Some(trouble),
            outages: Outages::default(),
        }
    }

    /// Asks a node.
    pub async fn ask(node: &impl Store) -> Sample {
        let mut sample = Sample { trouble: None, ..Sample::of_trouble(String::new()) };
        let (status, counters, volumes) = (node.status(), node.counters(), node.volumes());
        let orders =
            [Order::Risk, Order::Nodes, Order::Drives { node: None }].map(|order| node.operate(order));
        let orders = futures_util::future::join_all(orders);
        let past = Order::History {
            node: None,
            since_ms: clock::unix_ms().saturating_sub(HISTORY_AGE_MS),
            every_ms: HISTORY_EVERY_MS,
        };
        let past = node.operate(past);
        let (status, counters, volumes, reports, past) =
            tokio::join!(status, counters, volumes, orders, past);
        sample.history = match past {
            Ok(Report::History(history)) => Some(*history),
            _ => None,
        };
        // The moment of the counters is what rates are made of.
        (sample.at, sample.at_ms) = (clock::now(), clock::unix_ms());
        let mut note = |fault: stoker_store::StoreError| sample.trouble = Some(fault.message);
        match status {
            Ok(status) => sample.status = Some(status),
            Err(fault) => note(fault),
        }
        match counters {
            Ok(counters) => sample.counters = counters,
            Err(fault) => note(fault),
        }
        match volumes {
            Ok(volumes) => sample.volumes = volumes,
            Err(fault) => note(fault),
        }
        for report in reports {
            match report {
                Ok(Report::Risk(risk)) => sample.risk = Some(risk),
                Ok(Report::Nodes(nodes)) => sample.nodes = nodes,
                Ok(Report::Drives(drives)) => sample.drives = drives,
                Ok(_) => {}
                Err(fault) => note(fault),
            }
        }
        sample.outages = outages::ask(node).await;
        sample
    }

    /// The sum of a counter over those of its labels that fit; none if it is not told.
    fn sum(&self, name: &str, label: Option<(&str, &str)>) -> Option<f64> {
        let fits = |counter: &&Counter| {
            counter.name == name
                && label
                    .is_none_or(|(name, value)| counter.labels.iter().any(|(n, v)| n == name && v == value))
        };
        self.counters.iter().filter(fits).map(|counter| counter.value).reduce(|a, b| a + b)
    }

    /// A gauge.
    pub fn gauge(&self, name: &str) -> Option<f64> {
        self.sum(name, None)
    }

    /// How much a counter grew for each second since an earlier sample. None if it began anew meanwhile.
    pub fn rate(&self, before: Option<&Sample>, name: &str, label: Option<(&str, &str)>) -> Option<f64> {
        let before = before?;
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        let grown = self.sum(name, label)? - before.sum(name, label).unwrap_or(0.0);
        (seconds > 0.0 && grown >= 0.0).then(|| grown / seconds)
    }

    /// The same by the values of a label, in their order.
    pub fn rates_by(&self, before: Option<&Sample>, name: &str, label: &str) -> BTreeMap<String, f64> {
        let values = self.counters.iter().filter(|counter| counter.name == name);
        let values = values.flat_map(|counter| counter.labels.iter()).filter(|(name, _)| name == label);
        values
            .filter_map(|(_, value)| Some((value.clone(), self.rate(before, name, Some((label, value)))?)))
            .collect()
    }
}
