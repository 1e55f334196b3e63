//! What is lost or silent, since when, and what helps: one place decides these sentences, for every view.

use serde::{Deserialize, Serialize};

/// Something that does not answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outage {
    /// `catalog`, `node` or `lake`.
    pub what: String,
    /// Name of the node; of the catalog the node that keeps it, or `database`.
    pub name: String,
    /// Id of that node; none if it is none.
    pub node: Option<String>,
    /// Since when, milliseconds since 1970; none if nobody knows.
    pub since_ms: Option<u64>,
    /// What is lost.
    pub summary: String,
    /// What helps.
    pub cure: String,
    /// What a console offers as a button: `promote` or `remove`; none if there is nothing to press.
    pub action: Option<String>,
}

/// What does not answer, and which views are older than that.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Outages {
    /// What does not answer, the catalog first.
    pub lost: Vec<Outage>,
    /// Views that show what was known before.
    pub stale: Vec<StaleView>,
}

/// A view that shows what was known before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StaleView {
    /// `status`, `risk`, `nodes`, `drives`, `volumes`, `protection` or `rebuild`.
    pub view: String,
    /// When it was true, milliseconds since 1970; none if only what this node knows by itself is shown.
    pub as_of_ms: Option<u64>,
}

/// Where a catalog is that does not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CatalogAt {
    /// With another node, by name and id; this node can take over.
    Node {
        /// Its name.
        name: String,
        /// Its id.
        id: String,
    },
    /// With this node, which waits for standbys.
    Here {
        /// Its name.
        name: String,
        /// Its id.
        id: String,
    },
    /// In a database.
    Database,
}

impl Outage {
    /// A catalog that does not answer. `trouble` is what was said last, if anything was.
    pub fn of_catalog(at: &CatalogAt, since_ms: u64, now_ms: u64, trouble: Option<&str>) -> Outage {
        let silent = span(now_ms.saturating_sub(since_ms));
        let (name, node, summary, cure, action) = match at {
            CatalogAt::Node { name, id } => (
                name.clone(),
                Some(id.clone()),
                format!("catalog: {} does not answer for {silent}", node_of(name)),
                format!(
                    "bring {name} back; if too few are left to elect another one, `stoker catalog promote` on this node lets the copy here take over"
                ),
                Some("promote".to_owned()),
            ),
            CatalogAt::Here { name, id } => (
                name.clone(),
                Some(id.clone()),
                format!("catalog: this node acknowledges nothing for {silent}, since no standby confirms it"),
                "bring a node back that follows the catalog; `stoker catalog status` names them".to_owned(),
                None,
            ),
            CatalogAt::Database => (
                "database".to_owned(),
                None,
                format!(
                    "catalog: the database does not answer for {silent}{}",
                    trouble.map_or_else(String::new, |why| format!(": {why}"))
                ),
                "bring the database back, or its way here; nothing that was acknowledged is lost meanwhile"
                    .to_owned(),
                None,
            ),
        };
        Outage { what: "catalog".to_owned(), name, node, since_ms: Some(since_ms), summary, cure, action }
    }

    /// A catalog on the node that is asked, which can be read and takes no changes.
    pub fn of_catalog_refusing(name: &str, id: &str, why: &str) -> Outage {
        Outage {
            what: "catalog".to_owned(),
            name: name.to_owned(),
            node: Some(id.to_owned()),
            since_ms: None,
            summary: format!("catalog: it takes no changes: {why}"),
            cure:
                "writes go on as soon as that is over; `stoker catalog status` and `stoker doctor` say more"
                    .to_owned(),
            action: None,
        }
    }

    /// A catalog on this node that is whole and acknowledges nothing: those of its followers that it needs do not answer.
    pub fn of_catalog_stalled(name: &str, id: &str, away: &[String]) -> Outage {
        let (who, cure) = match away {
            [] => ("too few nodes that follow it answer".to_owned(), "bring one of them back".to_owned()),
            [one] => {
                let gone = format!("if it is gone for good, `stoker node remove {one}`");
                (format!("{one}, which follows it, does not answer"), format!("start {one} again; {gone}"))
            }
            [first, ..] => {
                let gone = format!("if they are gone for good, `stoker node remove {first}` and so on");
                (format!("{} do not answer", away.join(", ")), format!("start one of them again; {gone}"))
            }
        };
        Outage {
            what: "catalog".to_owned(),
            name: name.to_owned(),
            node: Some(id.to_owned()),
            since_ms: None,
            summary: format!("catalog: it acknowledges nothing, because {who}"),
            cure: format!("{cure}. Reads go on; writes wait for it"),
            action: None,
        }
    }

    /// The same for a node that nobody declares down before a person says that it is gone.
    #[must_use]
    pub fn for_a_person(self) -> Outage {
        let cure = format!("start it again; if it is gone for good, `stoker node remove {}`", self.name);
        Outage { cure, ..self }
    }

    /// A node that is silent or was declared down; none if it is neither.
    pub fn of_node(name: &str, id: &str, state: NodeWord, now_ms: u64) -> Option<Outage> {
        let (since_ms, cure, action) = match state {
            NodeWord::Silent { since_ms } => (
                since_ms,
                "start it again; after the grace period it is declared down, and the others protect what it held"
                    .to_owned(),
                None,
            ),
            NodeWord::Down { since_ms } => (
                since_ms,
                format!("start it again; if it is gone for good, `stoker node remove {name}`"),
                Some("remove".to_owned()),
            ),
            NodeWord::Answers { .. } | NodeWord::Stopping => return None,
        };
        Some(Outage {
            what: "node".to_owned(),
            name: name.to_owned(),
            node: Some(id.to_owned()),
            since_ms: Some(since_ms),
            summary: format!("{}: {}", node_of(name), state.words(now_ms)),
            cure,
            action,
        })
    }

    /// A lake that fails.
    pub fn of_lake(trouble: &str) -> Outage {
        Outage {
            what: "lake".to_owned(),
            name: "lake".to_owned(),
            node: None,
            since_ms: None,
            summary: format!("lake: {}", trouble.strip_prefix("lake: ").unwrap_or(trouble)),
            cure:
                "files stay on the drives until the lake takes them; `stoker doctor` looks at the way there"
                    .to_owned(),
            action: None,
        }
    }
}

/// Whether a node answers, as the one that is asked sees it. What is declared down or silent has no latency, whatever was measured
/// before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeWord {
    /// It answers, within microseconds; 0 for the node that is asked.
    Answers {
        /// Microseconds.
        latency_us: u64,
    },
    /// It said that it stops.
    Stopping,
    /// It misses pings.
    Silent {
        /// Milliseconds since 1970.
        since_ms: u64,
    },
    /// A transaction declared it down.
    Down {
        /// Milliseconds since 1970.
        since_ms: u64,
    },
}

impl NodeWord {
    /// What is true of a node: `state` is what the cluster decided, which counts more than what pings and clocks say.
    pub fn of(state: &str, since_ms: u64, silent_since_ms: Option<u64>, latency_us: u64) -> NodeWord {
        match (state, silent_since_ms) {
            ("down", _) => NodeWord::Down { since_ms },
            ("leaving", _) => NodeWord::Stopping,
            (_, Some(since_ms)) => NodeWord::Silent { since_ms },
            (_, None) => NodeWord::Answers { latency_us },
        }
    }

    /// For people.
    pub fn words(self, now_ms: u64) -> String {
        let ago = |since_ms: u64| span(now_ms.saturating_sub(since_ms));
        match self {
            NodeWord::Answers { latency_us: 0 } => "answers".to_owned(),
            NodeWord::Answers { latency_us } if latency_us < 1_000 => {
                format!("answers within {latency_us} us")
            }
            NodeWord::Answers { latency_us } => {
                format!("answers within {}.{} ms", latency_us / 1_000, latency_us % 1_000 / 100)
            }
            NodeWord::Stopping => "stopped".to_owned(),
            NodeWord::Silent { since_ms } => format!("silent for {}", ago(since_ms)),
            NodeWord::Down { since_ms } => format!("declared down {} ago", ago(since_ms)),
        }
    }
}

/// `node gpu-7`, and `node-7`, which says it already.
fn node_of(name: &str) -> String {
    match name.starts_with("node") {
        true => name.to_owned(),
        false => format!("node {name}"),
    }
}

/// A time in two units at most.
fn span(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0..60 => format!("{s} s"),
        60..3_600 => format!("{} min", s / 60),
        3_600..86_400 => format!("{} h {} min", s / 3_600, s % 3_600 / 60),
        _ => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_decided_counts_more_than_what_was_measured() {
        let check = |state: &str, silent: Option<u64>, expect: &str| {
            assert_eq!(NodeWord::of(state, 1_000, silent, 328).words(15_000), expect, "{state} {silent:?}");
        };
        check("up", None, "answers within 328 us");
        assert_eq!(NodeWord::Answers { latency_us: 2_057 }.words(0), "answers within 2.0 ms");
        check("up", Some(12_000), "silent for 3 s");
        check("quarantined", None, "answers within 328 us");
        check("evacuating", Some(1_000), "silent for 14 s");
        check("down", None, "declared down 14 s ago");
        check("down", Some(12_000), "declared down 14 s ago");
        check("leaving", Some(12_000), "stopped");
        for state in ["down", "leaving"] {
            for silent in [None, Some(2)] {
                assert!(!NodeWord::of(state, 1, silent, 5).words(9).contains("answers"), "{state}");
            }
        }
    }

    #[test]
    fn an_outage_names_what_is_lost_and_what_helps() {
        let at = CatalogAt::Node { name: "n0".into(), id: "00".into() };
        let told = Outage::of_catalog(&at, 1_000, 15_400, Some("no route"));
        assert_eq!(told.summary, "catalog: node n0 does not answer for 14 s");
        assert!(told.cure.contains("`stoker catalog promote`") && told.action.as_deref() == Some("promote"));
        let told = Outage::of_catalog(&CatalogAt::Database, 0, 7_300_000, Some("connection refused"));
        assert_eq!(told.summary, "catalog: the database does not answer for 2 h 1 min: connection refused");
        assert_eq!(told.action, None);
        assert_eq!(Outage::of_node("n1", "01", NodeWord::Answers { latency_us: 1 }, 0), None);
        let told = Outage::of_node("n1", "01", NodeWord::Down { since_ms: 0 }, 90_000).unwrap();
        assert_eq!(told.summary, "node n1: declared down 1 min ago");
        assert_eq!(told.action.as_deref(), Some("remove"));
        let told = Outage::of_catalog_stalled("n0", "00", &["n1".to_owned()]);
        assert_eq!(
            told.summary,
            "catalog: it acknowledges nothing, because n1, which follows it, does not answer"
        );
        assert!(told.cure.contains("`stoker node remove n1`"), "{}", told.cure);
        let silent = Outage::of_node("n1", "01", NodeWord::Silent { since_ms: 0 }, 9_000).unwrap();
        assert!(
            silent.cure.contains("declared down") && !silent.for_a_person().cure.contains("declared down")
        );
        assert_eq!(Outage::of_lake("lake: no route").summary, "lake: no route");
        let told = Outage::of_node("node-3", "03", NodeWord::Down { since_ms: 0 }, 90_000).unwrap();
        assert_eq!(told.summary, "node-3: declared down 1 min ago");
        let told = Outage::of_node("n1", "01", NodeWord::Silent { since_ms: 0 }, 9_000).unwrap();
        assert_eq!(told.action, None, "it may be back before anybody declared it down");
    }
}
