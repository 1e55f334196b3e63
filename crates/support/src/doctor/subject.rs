//! The node that is looked at: what its configuration, its directory and, if it runs, its process say.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stoker_client::{Client, Endpoint};
use stoker_doctor::{Certificate, CpuList, Drive, DriveKind, Known, Plan};
use stoker_node::MemoryPlan;
use stoker_store::{NodeStatus, Store};
use stoker_tls::validity;

use crate::config::{CatalogKind, Config, Size};
use crate::daemon::place::read_small;
use crate::daemon::{SOCKET, limits};
use crate::failure::Failure;
use crate::settings::{self, Setting};
use crate::size;

/// A node that takes longer is asked nothing.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Files of a node's directory that hold secrets.
const SECRETS: [&str; 7] = [
    "credentials",
    "token",
    "cluster.keys",
    "catalog.kept",
    "catalog.redb",
    "catalog.redb.log",
    "catalog.redb.log2",
];

/// Descriptors beside segments and clients: peers, the lake, the catalog, sockets.
const DESCRIPTORS_MORE: u64 = 1_024;

/// Segments of a ring that is not made yet.
const SEGMENTS_NEW: u64 = 256;

/// A node.
pub struct Subject {
    /// Absolute.
    dir: PathBuf,
    config: Config,
    config_path: Option<PathBuf>,
    process: Option<u32>,
    status: Option<NodeStatus>,
    drives: Vec<PathBuf>,
}

impl Subject {
    /// Finds out what there is. A node that is not there yet is one with the defaults.
    pub fn find(dir: &Path, config_path: Option<&Path>, drives: &[PathBuf]) -> Result<Subject, Failure> {
        let config = config_path.map(Config::read).transpose()?;
        let dir = config.as_ref().map_or(dir, |config| config.node.dir.as_path());
        let dir = absolute(dir)?;
        let process = process(&dir);
        let status = process.and_then(|_| status(&dir));
        let mut subject = Subject {
            config: config.unwrap_or_default(),
            config_path: config_path.map(absolute).transpose()?,
            drives: Vec::new(),
            process,
            status,
            dir,
        };
        let named = match drives {
            [] => subject.own_drives()?,
            named => named.to_vec(),
        };
        subject.drives = named.iter().map(|path| absolute(path)).collect::<Result<_, _>>()?;
        Ok(subject)
    }

    /// Those that it has now; or those that it is configured with; or the one that it would make.
    fn own_drives(&self) -> Result<Vec<PathBuf>, Failure> {
        if let Some(status) = &self.status {
            return Ok(status.rings.iter().map(|ring| PathBuf::from(&ring.path)).collect());
        }
        let configured: Vec<PathBuf> = match self.config_path {
            Some(_) => self.config.drive.iter().map(|drive| drive.path.clone()).collect(),
            None => settings::file::read(&self.dir)?.drives(),
        };
        let removed = stoker_node::drives_removed(&self.dir)?;
        let is_there =
            |path: &PathBuf| !removed.iter().any(|gone| gone == path || gone.parent() == Some(path));
        Ok(match configured.is_empty() {
            true => vec![self.own_ring()],
            false => configured.into_iter().filter(is_there).collect(),
        })
    }

    /// The drive that a node makes if it is given none.
    pub fn own_ring(&self) -> PathBuf {
        self.dir.join("ring")
    }

    /// The address of the database, if names are in one.
    pub fn database(&self) -> Option<&str> {
        self.config.catalog.url.as_deref().filter(|_| self.config.catalog.kind() == CatalogKind::Postgres)
    }

    /// Everything that is known without trying something.
    pub fn plan(&self) -> Plan {
        let wanted = self.config.node.memory.get().map(|Size(bytes)| bytes).or_else(|| self.told_memory());
        let memory_bytes = limits::memory(wanted).map_err(|failure| failure.cause().to_owned());
        let pool = |bytes: &u64| MemoryPlan::of(*bytes, self.drives.len()).pool_bytes as u64;
        Plan {
            dir: self.dir.exists().then(|| self.dir.clone()),
            process: self.process,
            drives: self.drives.iter().map(|path| drive(path)).collect(),
            cores: self.cores(),
            pool_bytes: memory_bytes.as_ref().map(pool).map_err(Clone::clone),
            // A cap that the node refuses is a finding, and not something that nobody knows.
            memory_bytes: wanted.map_or(memory_bytes, Ok),
            descriptors: Ok(self.descriptors()),
            addresses: self.addresses(),
            keys: self.keys(),
            data: self.data(),
            certificates: self.certificates(),
            ..Plan::default()
        }
    }

    /// The same for the files of another machine: what this one says of processes and cores does not count there.
    pub fn plan_elsewhere(&self) -> Plan {
        fn untried<T>() -> Known<T> {
            Err("this is another machine, on which nothing can be tried".to_owned())
        }
        let mut plan = self.plan();
        plan.drives.iter_mut().for_each(|drive| drive.direct = untried());
        Plan { process: None, cores: untried(), uring: untried(), clock: untried(), ..plan }
    }

    fn cores(&self) -> Known<Vec<u32>> {
        let Some(process) = self.process else {
            let chosen =
                limits::chosen(self.config.node.cores.get()).map_err(|failure| failure.cause().to_owned())?;
            return Ok(chosen.0.into_iter().filter_map(|core| u32::try_from(core).ok()).collect());
        };
        let path = format!("/proc/{process}/status");
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let list = list.and_then(|list| list.parse::<CpuList>().ok());
        Ok(list.ok_or_else(|| format!("{path} names no cores"))?.iter().collect())
    }

    /// What a running `up` was told.
    fn told_memory(&self) -> Option<u64> {
        self.memory_of_command_line().or_else(|| settings::file::read(&self.dir).ok()?.bytes(Setting::Memory))
    }

    fn memory_of_command_line(&self) -> Option<u64> {
        let line = fs::read(format!("/proc/{}/cmdline", self.process?)).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut words = line.split('\0');
        words.find(|word| *word == "--memory")?;
        size::parse(words.next()?).ok()
    }

    fn descriptors(&self) -> u64 {
        let segments = |path: &PathBuf| match fs::read_dir(path) {
            Ok(entries) => entries.count() as u64,
            Err(_) => SEGMENTS_NEW,
        };
        let clients = self.config.s3.connections_max.get() as u64;
        self.drives.iter().map(segments).sum::<u64>() + clients + DESCRIPTORS_MORE
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let Config { s3, nfs, peers, door, admin, .. } = &self.config;
        let listens = [&s3.listen, &nfs.listen, &peers.listen, &door.listen].into_iter().flatten();
        let configured = listens.chain([&admin.listen]).map(|address| address.ip());
        let own = self.status.iter().flat_map(|status| {
            let of = |peer: &&stoker_store::PeerStatus| peer.node == status.node;
            status.nodes.iter().filter(of).flat_map(|peer| &peer.addresses)
        });
        let told = own
            .filter_map(|address| address.parse::<std::net::SocketAddr>().ok())
            .map(|address| address.ip());
        let mut all: Vec<IpAddr> = configured.chain(told).collect();
        all.sort();
        all.dedup();
        all
    }

    fn keys(&self) -> Vec<PathBuf> {
        let mut keys: Vec<PathBuf> =
            SECRETS.iter().map(|name| self.dir.join(name)).filter(|path| path.exists()).collect();
        keys.extend(self.config.admin.token_file.clone());
        keys.extend(
            [self.config.s3.tls(), self.config.tls.files()].into_iter().flatten().map(|(_, key)| key),
        );
        // An address of a database may hold a password.
        let has_password =
            |url: &str| url.split_once('@').is_some_and(|(user, _)| user.matches(':').count() > 1);
        keys.extend(self.config_path.clone().filter(|_| self.database().is_some_and(has_password)));
        // Those of a configuration are relative to where the node is started.
        keys.iter().map(|path| absolute(path).unwrap_or_else(|_| path.clone())).collect()
    }

    /// Where the bytes of users lie, as far as that is on this machine.
    fn data(&self) -> Vec<PathBuf> {
        let lake = self.config.lake.url.as_deref().unwrap_or_default();
        // One that others are meant to read says so.
        let lake = lake.strip_prefix("file://").unwrap_or(lake);
        let lake = Some(lake).filter(|lake| lake.starts_with('/') && !lake.contains("umask="));
        self.drives.iter().cloned().chain(lake.map(PathBuf::from)).collect()
    }

    fn certificates(&self) -> Vec<Certificate> {
        let mut all = Vec::new();
        let configured = [("S3", self.config.s3.tls()), ("TLS", self.config.tls.files())];
        for (what, path) in configured.into_iter().filter_map(|(what, files)| Some((what, files?.0))) {
            let read = || -> Known<(u64, u64)> {
                let text = read_small(&path).map_err(|failure| failure.cause().to_owned())?;
                let text = text.ok_or_else(|| format!("{} is not there", path.display()))?;
                validity::validity_of_pem(&text).map_err(|fault| format!("{} {fault}", path.display()))
            };
            all.push(Certificate {
                name: format!("{what} {}", path.display()),
                validity_s: read(),
                renew: "replace the files of certificate and key; the node reads them within seconds of its next connection"
                    .to_owned(),
            });
        }
        match stoker_node::authority_certificate(&self.dir) {
            Ok(None) => {}
            authority => all.push(Certificate {
                name: "authority of the cluster".to_owned(),
                validity_s: authority.map_err(|fault| fault.message).and_then(|der| {
                    validity::validity_of_der(&der.unwrap_or_default()).map_err(|fault| fault.to_string())
                }),
                renew: "stop all nodes, on each: stoker key rotate --authority FILE --dir DIR".to_owned(),
            }),
        }
        all
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::io(path.display(), &error))
}

fn drive(path: &Path) -> Drive {
    let is_device = fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
    let kind = if is_device { DriveKind::Device } else { DriveKind::Files };
    Drive { path: path.to_owned(), kind, direct: Err("it was not tried".to_owned()) }
}

/// The process that holds a node's directory, if it lives.
fn process(dir: &Path) -> Option<u32> {
    let process: u32 = read_small(&dir.join("lock")).ok()??.trim().parse().ok()?;
    // Numbers of processes come again: it must be one that has to do with this directory.
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    name.trim().starts_with("stoker").then_some(process)
}

/// What a running node says of itself; none if it does not answer.
fn status(dir: &Path) -> Option<NodeStatus> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let asked = async {
        let client = Client::connect(&Endpoint::Unix(dir.join(SOCKET)), None).await.ok()?;
        client.status().await.ok()
    };
    runtime.block_on(async { tokio::time::timeout(ANSWER_MAX, asked).await.ok().flatten() })
}
