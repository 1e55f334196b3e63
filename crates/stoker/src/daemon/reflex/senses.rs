//! What the surroundings of a node tell about its parts: drives about themselves, cards about their links. Asked seldom, off the
//! way of every request.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_node::Node;
use stoker_store::{DriveFacts, PortFacts};
use tokio::sync::watch;

use super::ports::Ports;
use super::smart::SmartReader;
use crate::daemon::telemetry::pause;

/// Pause between two questions to drives. Some spin up, or take long to answer.
const DRIVES_EVERY: Duration = Duration::from_secs(300);

/// What was told last.
pub struct Senses {
    node: Arc<Node>,
    id: String,
    smart: SmartReader,
    ports: Ports,
    drives: Mutex<Vec<DriveFacts>>,
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
        }
    }

    /// Asks the drives now and then, until told to stop.
    pub async fn follow(self: Arc<Senses>, mut stopped: watch::Receiver<bool>) {
        loop {
            let mut all = Vec::new();
            for path in self.paths() {
                let Some(health) = self.smart.read(&path).await else { continue };
                all.push(DriveFacts {
                    path: path.display().to_string(),
                    critical: Some(health.critical),
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
