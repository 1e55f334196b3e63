//! What a daemon is made of; `up` and `serve` write one each.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stoker_gateway_nfs::Export;
use stoker_lake::LakeOptions;
use stoker_node::{CatalogChoice, DriveOptions, KeyFiles, Labels, LakePrices, Promote};
use stoker_oidc::Issuers;
use stoker_registry::Upstream;
use stoker_store::{UserName, VolumePolicy};

use super::config::Audit;
use super::signals::Hangup;
use super::telemetry::TelemetryPlan;
use super::tls::TlsPlan;

/// Where a door listens.
#[derive(Clone, Debug)]
pub enum Listen {
    /// On this machine only, at the usual port or another free one, which is kept for the next start.
    Kept,
    /// There, or not at all.
    At(Vec<SocketAddr>),
}

/// The S3 door.
#[derive(Clone, Debug)]
pub struct S3Plan {
    pub listen: Listen,
    pub region: String,
    pub domains: Vec<String>,
    pub cors_origins: Vec<String>,
    /// Presigned requests of Signature Version 2 are taken.
    pub signature_v2: bool,
    /// Objects up to this size have their MD5 as ETag.
    pub md5_up_to: u64,
    /// How long a day of lifecycle rules is.
    pub lifecycle_day_ms: u64,
    /// As many as cores, if nobody says otherwise.
    pub threads: Option<usize>,
    pub connections_max: usize,
    /// How long requests wait for a catalog that answers nobody.
    pub catalog_patience: Duration,
    /// HTTPS instead of HTTP.
    pub tls: Option<TlsPlan>,
}

impl S3Plan {
    /// The node with the catalog is gone until somebody promotes another one: soon said.
    pub const CATALOG_PATIENCE: Duration = Duration::from_secs(10);
    /// A database fails over by itself within some 20 s. Clients hang up after half a minute or later.
    pub const FAILOVER_PATIENCE: Duration = Duration::from_secs(28);
}

/// The NFS door.
#[derive(Clone, Debug, Default)]
pub struct NfsPlan {
    /// None for no NFS.
    pub listen: Vec<SocketAddr>,
    pub exports: Vec<Export>,
}

/// The registry door.
#[derive(Clone, Debug, Default)]
pub struct RegistryPlan {
    /// None for no registry.
    pub listen: Vec<SocketAddr>,
    /// Registries behind it.
    pub upstreams: Vec<Upstream>,
    /// The volume with the images; made if it is not there.
    pub volume: String,
    /// Most bytes of images in it.
    pub bytes_max: u64,
    /// How long a tag is believed to be what it was.
    pub tag_age: Duration,
}

/// The lake.
#[derive(Clone, Debug)]
pub struct LakePlan {
    pub url: String,
    pub options: LakeOptions,
    pub prices: LakePrices,
    /// It is ours: made if it is not there.
    pub is_own: bool,
}

/// The volume that a new node begins with.
#[derive(Clone, Debug)]
pub struct FirstVolume {
    pub name: String,
    /// None leaves it to the node.
    pub policy: Option<VolumePolicy>,
}

/// How a node meets others.
#[derive(Clone, Debug)]
pub struct PeersPlan {
    pub listen: Listen,
    /// For people.
    pub name: String,
    /// Where it stands.
    pub labels: Labels,
    /// Share of the chunks that it takes, relative to others; that of a witness is 0.
    pub weight: u32,
    /// Nothing between nodes is encrypted.
    pub plaintext: bool,
    /// How long a node may be silent before it is declared down.
    pub grace: Duration,
    /// Bytes per second for files that lost a copy.
    pub rebuild_bytes_per_s: u64,
}

/// Everything.
pub struct Plan {
    pub drives: Vec<DriveOptions>,
    /// Where drives were that are gone for good.
    pub new_drives: Vec<PathBuf>,
    pub lake: LakePlan,
    pub catalog: CatalogChoice,
    pub volume_defaults: VolumePolicy,
    pub first_volume: Option<FirstVolume>,
    /// At most this many.
    pub cores: usize,
    pub memory_bytes: u64,
    pub drains_max: usize,
    /// Longer files that are almost all holes do not drain.
    pub sparse_bytes_max: u64,
    /// Key-encryption keys of encrypted volumes that are in files of their own.
    pub key_files: KeyFiles,
    pub s3: S3Plan,
    pub nfs: NfsPlan,
    pub registry: RegistryPlan,
    pub peers: PeersPlan,
    /// Look up what volumes commit to, for whoever joins; costs a look at everything that is not in the lake.
    pub tells_protection: bool,
    /// Make a join token, for whoever starts the next node.
    pub makes_join_token: bool,
    /// Take over the catalog, because the node that kept it is lost.
    pub promote: Option<Promote>,
    pub admin: Listen,
    /// TLS at the admin and client ports.
    pub tls: Option<TlsPlan>,
    /// None: in the node's directory, made if it is not there.
    pub token_file: Option<PathBuf>,
    /// The same for those who look and change nothing.
    pub view_token_file: Option<PathBuf>,
    /// Numbers need no token.
    pub metrics_open: bool,
    /// TCP addresses of the door, beside its Unix socket.
    pub door: Vec<SocketAddr>,
    /// Users of this machine who are users of Stoker, by their numbers.
    pub users: HashMap<u32, UserName>,
    pub telemetry: TelemetryPlan,
    /// Providers whose users become users here.
    pub issuers: Arc<Issuers>,
    /// What is written down of who does what.
    pub audit: Audit,
    pub hangup: Hangup,
    /// Stop as soon as everything runs.
    pub check_only: bool,
}

impl Plan {
    /// Whether the node only votes on names.
    pub fn is_witness(&self) -> bool {
        self.peers.weight == 0
    }
}
