//! What the surroundings of a node tell about its parts: drives about themselves, cards about their links. Asked seldom, off the
//! way of every request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_node::Node;
use stoker_store::{DriveFacts, PortFacts};
use tokio::sync::watch;

use super::ports::Ports;
use super::smart::SmartReader;
use stoker_telemetry::pause;

/// Pause between two questions to drives. Some spin up, or take long to answer.
const DRIVES_EVERY: Duration = Duration::from_secs(300);

/// What was told last.
pub struct Senses {
    node: Arc<Node>,
    id: String,
    smart: SmartReader,
    ports: Ports,
    drives: Mutex<Vec<DriveFacts>>,
    /// Errors that drives had counted when they were asked first.
    before: Mutex<Before>,
}

/// Errors that each drive had counted, by their kind.
type Before = BTreeMap<(PathBuf, String), u64>;

/// Errors that came since a drive was asked first, in words. Those of its youth say little about it now.
fn grown(before: &mut Before, path: &Path, counted: Vec<(u64, String)>) -> Vec<String> {
    let one = |(count, words): (u64, String)| {
        let first = *before.entry((path.to_owned(), words.clone())).or_insert(count);
        (count > first)
            .then(|| format!("{} more {words} since the node started, {count} in all", count - first))
    };
    counted.into_iter().filter_map(one).collect()
}

impl Senses {
    pub fn new(node: Arc<Node>, id: &str) -> Senses {
        let root = Path::new("/");
        Senses {
            node,
            id: id.to_owned(),
            smart: SmartReader::new(root, Path::new("nvme"), Path::new("smartctl")),
            ports: Ports::new(root),
            drives: Mutex::default(),
            before: Mutex::default(),
        }
    }

    /// Asks the drives now and then, until told to stop.
    pub async fn follow(self: Arc<Senses>, mut stopped: watch::Receiver<bool>) {
        loop {
            let mut all = Vec::new();
            for path in self.paths() {
                let Some(health) = self.smart.read(&path).await else { continue };
                let mut critical = health.critical;
                critical.extend(grown(&mut self.before.lock().unwrap(), &path, health.counted));
                all.push(DriveFacts {
                    path: path.display().to_string(),
                    critical: Some(critical),
                    used_percent: health.used_percent,
                    model: health.model,
                    ..DriveFacts::default()
                });
            }
            *self.drives.lock().unwrap() = all;
            if pause(DRIVES_EVERY, &mut stopped).await {
                return;
            }
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.node.drive_ledgers().into_iter().map(|drive| drive.path).collect()
    }

    /// What drives said of themselves.
    pub fn drives(&self) -> Vec<DriveFacts> {
        self.drives.lock().unwrap().clone()
    }

    /// The ports that carry the addresses of this node.
    pub fn ports(&self) -> Vec<PortFacts> {
        let addresses = self.node.addresses_of(&self.id);
        let all = self.ports.of_addresses(&addresses).into_iter();
        all.map(|port| PortFacts { name: port.name, is_up: port.is_up, detail: port.detail }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_come_now_count() {
        let mut before = Before::new();
        let mut look = |count: u64| grown(&mut before, Path::new("/d"), vec![(count, "media errors".into())]);
        assert_eq!((look(7), look(7)), (vec![], vec![]));
        assert_eq!(look(9), ["2 more media errors since the node started, 9 in all"]);
        assert_eq!(look(0), Vec::<String>::new());
    }
}
