//! What the driver is to do. Each command may be carried out twice with the same effect as once.

use serde::{Deserialize, Serialize};

use crate::events::Recorded;
use crate::order::WorkOrder;
use crate::part::PartId;

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Ask more or less of a part, in percent of the usual; 0 is a way around it.
    Reweight {
        /// Which.
        part: PartId,
        /// How much.
        percent: u8,
    },
    /// Put no new chunks there for now. Nobody has to decide about it; it ends by itself.
    StopPlacing {
        /// Which.
        part: PartId,
    },
    /// The end of [`Command::StopPlacing`].
    ResumePlacing {
        /// Which.
        part: PartId,
    },
    /// Take a node or drive out of placement, until it passed the gate.
    Quarantine {
        /// Which.
        part: PartId,
        /// Why.
        reason: String,
    },
    /// Bring what is not in the lake elsewhere.
    Evacuate {
        /// Which.
        part: PartId,
    },
    /// Tell whoever repairs. The first notice of this work order.
    OpenWorkOrder(WorkOrder),
    /// Tell them what changed.
    UpdateWorkOrder(WorkOrder),
    /// Tell them that it is over.
    CloseWorkOrder(WorkOrder),
    /// Tell a person that a decision is needed which is not ours.
    Escalate(WorkOrder),
    /// Keep jobs away from a node.
    Cordon {
        /// Which.
        part: PartId,
        /// Why.
        reason: String,
    },
    /// The end of [`Command::Cordon`].
    Uncordon {
        /// Which.
        part: PartId,
    },
    /// Measure a part that is out, and answer with [`crate::Fact::Gate`].
    RunGate {
        /// Which.
        part: PartId,
        /// Goes into the answer.
        run: u64,
    },
    /// Put it into service: the end of [`Command::Quarantine`] and [`Command::Evacuate`].
    Rejoin {
        /// Which.
        part: PartId,
    },
    /// Write it down.
    Record(Recorded),
}

impl Command {
    /// Whether it changes the cluster, as against telling somebody.
    pub fn acts(&self) -> bool {
        !matches!(
            self,
            Command::OpenWorkOrder(_)
                | Command::UpdateWorkOrder(_)
                | Command::CloseWorkOrder(_)
                | Command::Escalate(_)
                | Command::Record(_)
        )
    }
}
