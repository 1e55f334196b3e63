//! CSI to the door: volumes for Kubernetes and everything else that speaks the Container Storage Interface (1.12).
//!
//! One gRPC server on a Unix socket has up to three services. The *controller* makes volumes, which are volumes of Stoker or directories of
//! one, and snapshots and clones of them by reference; what it made is told by records in a volume of its own ([`record`]), so it may be
//! restarted, moved or run twice. The *node* shows them: it starts `stoker mount` as a process of its own for each staged volume, which goes
//! on when the driver ends, and binds what pods see to it. What is mounted is written down in a folder; a mount whose process died is found
//! there and mounted again. *Identity* tells which of both there are.
//!
//! A call that changes something goes on to its end though the caller has left, and holds its volume meanwhile: others get `ABORTED`.
//!
//! It must not hold durable state of its own beside that folder, nor know a node: it asks the door as every client does.

mod answer;
mod authority;
mod capability;
mod client;
mod controller;
mod copying;
mod door;
mod identity;
mod locks;
mod making;
mod mounts;
mod node;
mod parameters;
#[expect(missing_docs, reason = "names and fields are those of the specification")]
pub mod proto;
mod record;
mod registration;
mod server;
mod snapshots;
mod sys;
mod table;
mod tenants;

use std::path::PathBuf;

use stoker_client::Endpoint;

pub use client::{Caller, Plain};
pub use server::serve;
pub use tonic::{Code, Status};

/// Name of the driver, if nobody gives it another.
pub const DRIVER: &str = "csi.stoker.dev";

/// What a driver is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, as a StorageClass has it.
    pub driver: String,
    /// The Unix socket that it serves.
    pub socket: PathBuf,
    /// The node that it asks.
    pub door: Endpoint,
    /// The token for that.
    pub token: Option<String>,
    /// Makes volumes.
    pub controller: bool,
    /// Shows volumes.
    pub node: Option<NodeOptions>,
}

/// The address that takes tokens of users: the socket of a machine takes users of the machine alone.
#[derive(Clone, Debug)]
pub struct TenantDoor {
    /// Where it is.
    pub endpoint: Endpoint,
    /// Authorities to trust there, if not those of the system.
    pub ca: Option<PathBuf>,
}

/// What shows volumes on a machine.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The machine's name for the orchestrator.
    pub id: String,
    /// The folder that tells what is mounted.
    pub state: PathBuf,
    /// The program whose verb `mount` serves a volume.
    pub program: PathBuf,
    /// Arguments that tell that verb which node it asks.
    pub target: Vec<String>,
    /// How volumes of tenants are asked for, if they can be.
    pub tenants: Option<TenantDoor>,
    /// Volumes that one machine shows.
    pub volumes_max: i64,
    /// The folder in which a kubelet looks for drivers, if the driver registers itself.
    pub registry: Option<PathBuf>,
    /// The socket as the kubelet sees it, if that is another path.
    pub kubelet_socket: Option<PathBuf>,
}
