//! The configuration of `stoker serve`: a TOML file in which every setting has a default.
//!
//! A mistake is reported with its line and column. `deploy/stoker.toml` shows every setting; a test keeps it equal to
//! the defaults here.

mod audit;
mod oidc;
pub mod reference;
mod registry;
#[cfg(test)]
mod tests;
mod value;

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stoker_gateway_nfs::Export;
use stoker_node::{LakePrices, SPARSE_BYTES_MAX};
use stoker_reflex::fault::Fault;
use stoker_store::{Class, DrainPolicy, VolumePolicy};
use toml::Spanned;

use crate::TracesPlan;
use crate::failure::Failure;
use crate::log;
use crate::tls::check_name;
pub use audit::{Audit, AuditFlush, AuditLevel, AuditUnwritable};
pub use oidc::{Oidc, OidcConsole, OidcRole, issuers};
pub use registry::{Registry, RegistryUpstream};
pub use value::LocalUser;
pub use value::{Amount, Auto, Broker, Drain, Share, Size, TopicName, WebUrl};

/// Largest file that is read as a configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Everything that can be set.
#[derive(Deserialize, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub node: Node,
    pub drive: Vec<Drive>,
    pub lake: Lake,
    pub catalog: Catalog,
    pub keys: Keys,
    pub tls: Tls,
    pub s3: S3,
    pub nfs: Nfs,
    pub registry: Registry,
    pub peers: Peers,
    pub admin: Admin,
    pub door: Door,
    pub volume_defaults: VolumeDefaults,
    pub telemetry: Telemetry,
    pub events: Events,
    pub slo: stoker_reflex::Slo,
    pub audit: Audit,
    pub oidc: Vec<Oidc>,
    pub log: Log,
}

/// The process and its place.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    pub dir: PathBuf,
    pub cores: NonZeroUsize,
    pub memory: Auto<Size>,
}

/// One drive.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    pub path: PathBuf,
    #[serde(default)]
    pub size: Auto<Size>,
    #[serde(default)]
    pub dwpd: Amount,
    #[serde(default)]
    pub endurance_tb: Amount,
}

/// The object store behind the volumes.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Lake {
    #[serde(deserialize_with = "value::optional_lake")]
    pub url: Option<String>,
    #[serde(deserialize_with = "value::optional")]
    pub endpoint: Option<String>,
    #[serde(deserialize_with = "value::optional")]
    pub region: Option<String>,
    pub path_style: Auto<bool>,
    pub checksum: Checksum,
    pub payload_signed: Auto<bool>,
    pub anonymous: bool,
    pub drains_max: Drains,
    pub sparse_max: Size,
    pub price_put_1000: Amount,
    pub price_get_1000: Amount,
    pub price_read_gb: Amount,
}

/// Files on their way to the lake at the same time.
#[derive(Deserialize, PartialEq, Debug, Clone, Copy)]
#[serde(transparent)]
pub struct Drains(pub NonZeroUsize);

impl Default for Drains {
    fn default() -> Drains {
        Drains(const { NonZeroUsize::new(8).unwrap() })
    }
}

/// The checksum that the lake is asked to verify.
#[derive(Deserialize, PartialEq, Eq, Debug, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub enum Checksum {
    #[default]
    Crc64nvme,
    None,
}

/// Where names are.
#[derive(Deserialize, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Catalog {
    pub kind: Option<Spanned<CatalogKind>>,
    #[serde(deserialize_with = "value::optional")]
    pub url: Option<String>,
}

impl Catalog {
    /// The kind, by default the one that needs nothing else.
    pub fn kind(&self) -> CatalogKind {
        self.kind.as_ref().map_or(CatalogKind::Embedded, |kind| *kind.get_ref())
    }
}

/// What keeps the names.
#[derive(Deserialize, PartialEq, Eq, Debug, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub enum CatalogKind {
    Embedded,
    Postgres,
}

/// Certificates of the ports that people connect to.
#[derive(Deserialize, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    pub cert: Option<Spanned<PathBuf>>,
    pub key: Option<Spanned<PathBuf>>,
    pub own: bool,
    pub names: Vec<TlsName>,
}

impl Tls {
    /// Certificate and key, if both are set.
    pub fn files(&self) -> Option<(PathBuf, PathBuf)> {
        Some((set(self.cert.as_ref())?.clone(), set(self.key.as_ref())?.clone()))
    }
}

/// A name or an address that people use.
#[derive(Deserialize, PartialEq, Debug, Clone)]
#[serde(try_from = "String")]
pub struct TlsName(pub String);

impl TryFrom<String> for TlsName {
    type Error = String;

    fn try_from(name: String) -> Result<TlsName, String> {
        check_name(&name).map(|()| TlsName(name))
    }
}

/// The S3 door.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct S3 {
    pub listen: Vec<SocketAddr>,
    pub region: String,
    pub domains: Vec<String>,
    pub cors_origins: Vec<String>,
    pub signature_v2: bool,
    pub md5_up_to: Size,
    pub lifecycle_day_s: NonZeroU32,
    pub threads: Auto<NonZeroUsize>,
    pub connections_max: NonZeroUsize,
    pub tls_cert: Option<Spanned<PathBuf>>,
    pub tls_key: Option<Spanned<PathBuf>>,
}

impl S3 {
    /// Certificate and key, if both are set.
    pub fn tls(&self) -> Option<(PathBuf, PathBuf)> {
        Some((set(self.tls_cert.as_ref())?.clone(), set(self.tls_key.as_ref())?.clone()))
    }
}

/// The NFS door.
#[derive(Deserialize, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Nfs {
    pub listen: Vec<SocketAddr>,
    pub exports: Vec<NfsExport>,
}

/// A volume that the NFS door shows.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(try_from = "String")]
pub struct NfsExport(pub Export);

impl TryFrom<String> for NfsExport {
    type Error = String;

    fn try_from(text: String) -> Result<NfsExport, String> {
        text.parse().map(NfsExport)
    }
}

/// HTTP for those who watch.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    pub listen: SocketAddr,
    #[serde(deserialize_with = "value::optional")]
    pub token_file: Option<PathBuf>,
    #[serde(deserialize_with = "value::optional")]
    pub view_token_file: Option<PathBuf>,
    pub metrics_open: bool,
}

/// What opens encrypted volumes.
#[derive(Deserialize, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Keys {
    #[serde(deserialize_with = "value::optional")]
    pub file: Option<PathBuf>,
    pub former: Vec<PathBuf>,
}

/// How the node meets others.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Peers {
    pub listen: Vec<SocketAddr>,
    #[serde(deserialize_with = "value::optional")]
    pub name: Option<String>,
    pub cell: String,
    pub tor: String,
    pub power: String,
    pub weight: Weight,
    pub plaintext: bool,
    pub grace_s: NonZeroU32,
    pub rebuild_rate: Size,
}

/// The share of chunks that a node takes, relative to others.
#[derive(Deserialize, PartialEq, Clone, Copy, Debug)]
#[serde(try_from = "u32")]
pub struct Weight(pub u32);

impl TryFrom<u32> for Weight {
    type Error = &'static str;

    fn try_from(weight: u32) -> Result<Weight, &'static str> {
        match weight {
            0..=1000 => Ok(Weight(weight)),
            _ => Err(
                "a weight is 1 to 1000, or 0 for a witness; a node of twice the weight takes twice the chunks",
            ),
        }
    }
}

/// The door for the command line and for programs, beside its Unix socket.
#[derive(Deserialize, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Door {
    pub listen: Vec<SocketAddr>,
    pub users: Vec<LocalUser>,
}

/// What a new volume wants if nobody says otherwise.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct VolumeDefaults {
    pub class: Class,
    pub drain: Drain,
    pub drain_quiet_s: u32,
    pub drain_lag_max_s: NonZeroU32,
    pub quota: Size,
    pub leases: bool,
}

/// What is told beside the numbers of the node.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    pub fabric: bool,
    pub exporters: Vec<WebUrl>,
    pub traces: Traces,
}

/// Which traces go to a collector.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Traces {
    #[serde(deserialize_with = "value::optional_url")]
    pub endpoint: Option<WebUrl>,
    pub sample: Share,
}

/// Who is told of events.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    #[serde(deserialize_with = "value::optional")]
    pub file: Option<PathBuf>,
    pub file_size: Size,
    pub webhooks: Vec<WebUrl>,
    #[serde(deserialize_with = "value::optional")]
    pub webhook_secret_file: Option<PathBuf>,
    pub kafka: Kafka,
}

/// Where events go in Kafka.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Kafka {
    pub brokers: Vec<Broker>,
    pub topic: TopicName,
}

/// What is logged, and how.
#[derive(Deserialize, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    pub level: log::Level,
    pub format: log::Format,
}

impl Default for Node {
    fn default() -> Node {
        Node {
            dir: "/var/lib/stoker".into(),
            cores: const { NonZeroUsize::new(2).unwrap() },
            memory: Auto::Auto,
        }
    }
}

impl Default for Lake {
    fn default() -> Lake {
        let prices = LakePrices::default();
        Lake {
            url: None,
            endpoint: None,
            region: None,
            path_style: Auto::Auto,
            checksum: Checksum::default(),
            payload_signed: Auto::Auto,
            anonymous: false,
            drains_max: Drains::default(),
            sparse_max: Size(SPARSE_BYTES_MAX),
            price_put_1000: Amount(prices.put_1000_usd),
            price_get_1000: Amount(prices.get_1000_usd),
            price_read_gb: Amount(prices.read_gb_usd),
        }
    }
}

impl Lake {
    /// What requests are taken to cost.
    pub fn prices(&self) -> LakePrices {
        LakePrices {
            put_1000_usd: self.price_put_1000.0,
            get_1000_usd: self.price_get_1000.0,
            read_gb_usd: self.price_read_gb.0,
        }
    }
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry { fabric: true, exporters: Vec::new(), traces: Traces::default() }
    }
}

impl Default for Traces {
    fn default() -> Traces {
        let TracesPlan { sample, .. } = TracesPlan::default();
        Traces { endpoint: None, sample: Share(sample) }
    }
}

impl Default for Kafka {
    fn default() -> Kafka {
        Kafka { brokers: Vec::new(), topic: TopicName("stoker-events".into()) }
    }
}

impl Default for Events {
    fn default() -> Events {
        Events {
            file: None,
            file_size: Size(16 << 20),
            webhooks: Vec::new(),
            webhook_secret_file: None,
            kafka: Kafka::default(),
        }
    }
}

impl Default for S3 {
    fn default() -> S3 {
        S3 {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 9000))],
            region: "stoker".into(),
            domains: Vec::new(),
            cors_origins: Vec::new(),
            signature_v2: true,
            md5_up_to: Size(16 << 10),
            lifecycle_day_s: const { NonZeroU32::new(86_400).unwrap() },
            threads: Auto::Auto,
            connections_max: const { NonZeroUsize::new(4096).unwrap() },
            tls_cert: None,
            tls_key: None,
        }
    }
}

impl Default for Peers {
    fn default() -> Peers {
        Peers {
            listen: Vec::new(),
            name: None,
            cell: String::new(),
            tor: String::new(),
            power: String::new(),
            weight: Weight(1),
            plaintext: false,
            grace_s: const { NonZeroU32::new(30).unwrap() },
            rebuild_rate: Size(1 << 30),
        }
    }
}

impl Default for Admin {
    fn default() -> Admin {
        Admin {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9001)),
            token_file: None,
            view_token_file: None,
            metrics_open: false,
        }
    }
}

impl Default for VolumeDefaults {
    fn default() -> VolumeDefaults {
        let policy = VolumePolicy::default();
        VolumeDefaults {
            class: policy.class,
            drain: Drain(policy.drain),
            drain_quiet_s: policy.drain_quiet_s,
            drain_lag_max_s: NonZeroU32::new(policy.drain_lag_max_s).expect("the door's default is positive"),
            quota: Size(policy.quota_bytes),
            leases: policy.leases,
        }
    }
}

impl VolumeDefaults {
    /// The same as the door has it.
    pub fn policy(&self) -> VolumePolicy {
        VolumePolicy {
            class: self.class,
            drain: DrainPolicy::from(self.drain),
            drain_quiet_s: self.drain_quiet_s,
            drain_lag_max_s: self.drain_lag_max_s.get(),
            quota_bytes: self.quota.0,
            leases: self.leases,
            ..VolumePolicy::default()
        }
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Config, Failure> {
        let failed = |error: &std::io::Error| Failure::io(path.display(), error);
        let len = std::fs::metadata(path).map_err(|e| failed(&e))?.len();
        if len > FILE_BYTES_MAX {
            return Err(Failure::new(format!("{} is too long for a configuration", path.display()))
                .hint("check the path"));
        }
        let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
        Config::parse(&text).map_err(|fault| failure(&fault, path, &text))
    }

    pub fn parse(text: &str) -> Result<Config, Fault> {
        let config: Config = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// Refuses what is well written and cannot be.
    fn check(&self) -> Result<(), Fault> {
        let (s3, tls) = (&self.s3, &self.tls);
        for (cert, key, words) in [
            (&s3.tls_cert, &s3.tls_key, "TLS needs both `tls_cert` and `tls_key`"),
            (&tls.cert, &tls.key, "TLS needs both `cert` and `key`"),
        ] {
            match (cert, key) {
                (Some(one), other) | (other, Some(one))
                    if set(Some(one)).is_some() && set(other.as_ref()).is_none() =>
                {
                    return Err(Fault::at(one.span(), words));
                }
                _ => {}
            }
        }
        if let Some(cert) = tls.cert.as_ref().filter(|_| tls.own && tls.files().is_some()) {
            return Err(Fault::at(cert.span(), "either `own = true`, or `cert` and `key`"));
        }
        if self.catalog.kind() == CatalogKind::Postgres && self.catalog.url.is_none() {
            let span = self.catalog.kind.as_ref().map_or(0..0, Spanned::span);
            return Err(Fault::at(span, "this kind needs a `url`, such as postgresql://user@host/database"));
        }
        oidc::check(&self.oidc).map_err(|(span, words)| Fault::at(span, words))?;
        self.slo.check()
    }
}

/// The words for a person: `FILE:LINE:COLUMN: what`, then what was probably meant.
fn failure(fault: &Fault, path: &Path, text: &str) -> Failure {
    let told = fault.told(text);
    let hint = told
        .hint
        .clone()
        .unwrap_or_else(|| "deploy/stoker.toml shows every setting with its default".to_owned());
    Failure::new(format!("{}:{told}", path.display())).hint(hint)
}

/// A path that is not empty: an empty one stands for none.
fn set(path: Option<&Spanned<PathBuf>>) -> Option<&PathBuf> {
    path.map(Spanned::get_ref).filter(|path| !path.as_os_str().is_empty())
}
