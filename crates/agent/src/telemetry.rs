//! What the daemon tells beside the numbers of the node: events, traces, the fabric around it, the wear of its drives, and pages
//! of other exporters. Nothing here may slow a request down: it reads what others counted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stoker_admin::{PointSink, Source};
use stoker_node::Node;
use stoker_reflex::Slo;
use stoker_store::{NodeStatus, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::place::Place;
use crate::failure::Failure;
use stoker_reflex_driver::{PartGate, Reflexes};
use stoker_telemetry::{
    Endurance, Events, EventsPlan, Exporters, Fabric, Http, Origin, PastKeeper, Traces, Wear,
};

/// Longest wait for the last events to leave when a node stops.
const STOP_MAX: Duration = Duration::from_secs(2);

/// What is told, and to whom.
#[derive(Clone, Debug)]
pub struct TelemetryPlan {
    /// Counters of network cards and of RDMA.
    pub has_fabric: bool,
    /// Pages in Prometheus' format to take facts of GPUs and machines from.
    pub exporters: Vec<String>,
    /// Where events go.
    pub events: EventsPlan,
    /// What drives can bear, by their path.
    pub wear: Vec<(PathBuf, Wear)>,
    /// What is wanted of the parts of the cluster, and what is done about those that break.
    pub slo: Slo,
    /// Listens already.
    pub traces: Option<Traces>,
}

impl Default for TelemetryPlan {
    fn default() -> TelemetryPlan {
        TelemetryPlan {
            has_fabric: true,
            exporters: Vec::new(),
            events: EventsPlan::default(),
            wear: Vec::new(),
            slo: Slo::default(),
            traces: None,
        }
    }
}

/// All of it, running.
pub struct Telemetry {
    events: Events,
    endurance: Arc<Endurance>,
    past: Arc<PastKeeper>,
    exporters: Arc<Exporters>,
    fabric: Option<Arc<Fabric>>,
    reflex: Option<Source>,
    traces: Option<Traces>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Telemetry {
    /// Starts everything; a file that cannot be written is told now.
    pub fn start(
        place: &Place,
        plan: &TelemetryPlan,
        node: &Arc<Node>,
        name: &str,
        status: &NodeStatus,
        gate: Arc<dyn PartGate>,
    ) -> Result<Telemetry, Failure> {
        let (stop, stopped) = watch::channel(false);
        let http = Http::new()?;
        let endurance = Arc::new(Endurance::open(place.dir(), plan.wear.clone(), Arc::clone(node)));
        let exporters = Arc::new(Exporters::new(&plan.exporters));
        let origin =
            Origin { node: name.to_owned(), node_id: status.node.clone(), cluster: status.cluster.clone() };
        let events = Events::open(place.dir(), &plan.events, origin.clone(), &http)?;
        let past = Arc::new(PastKeeper::open(place.dir()));
        node.set_history(past.source());
        let mut tasks = vec![
            tokio::spawn(endurance.clone().keep(stopped.clone())),
            tokio::spawn(past.clone().keep(stopped.clone())),
        ];
        if !plan.exporters.is_empty() {
            tasks.push(tokio::spawn(exporters.clone().follow(http.clone(), stopped.clone())));
        }
        let store: Arc<dyn Store> = Arc::clone(node) as Arc<dyn Store>;
        tasks.extend(events.start(store, &stopped));
        let told = (http, events.clone());
        let reflexes = Reflexes::new(&plan.slo, place.dir(), node, name, status, told, gate)?;
        let reflex = Some(reflexes.source());
        tasks.extend(reflexes.start(&stopped));
        tasks.extend(plan.traces.as_ref().and_then(|traces| traces.start(&origin, &stopped)));
        let fabric = plan.has_fabric.then(|| Arc::new(Fabric::new("/".into())));
        let traces = plan.traces.clone();
        Ok(Telemetry { events, endurance, past, exporters, fabric, reflex, traces, stop, tasks })
    }

    /// Where the numbers of it come from.
    pub fn sources(&mut self) -> Vec<Source> {
        let (events, endurance) = (self.events.clone(), self.endurance.clone());
        let exporters = self.exporters.clone();
        let mut all: Vec<Source> = vec![
            Box::new(move || events.counters()),
            Box::new(move || endurance.counters()),
            Box::new(move || exporters.counters()),
        ];
        all.extend(self.reflex.take());
        if let Some(fabric) = self.fabric.clone() {
            all.push(Box::new(move || fabric.counters()));
        }
        if let Some(traces) = self.traces.clone() {
            all.push(Box::new(move || traces.counters()));
        }
        all
    }

    /// Who keeps what the node measures for longer.
    pub fn point_sink(&self) -> PointSink {
        let past = self.past.clone();
        Box::new(move |at_ms, values| past.add(at_ms, values))
    }

    /// What happened, for those who ask.
    pub fn events(&self) -> Arc<dyn stoker_admin::Events> {
        Arc::new(self.events.clone())
    }

    /// Tells that the node stops.
    pub fn stopping(&self) {
        self.events.stopping();
    }

    /// Keeps what must be kept. What a webhook or Kafka did not take is sent after the next start.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        let all = async {
            for task in self.tasks {
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(STOP_MAX, all).await;
    }
}
