//! A [`Plan`] by a configuration file.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stoker_lake::{Checksum, LakeOptions};
use stoker_node::{CatalogChoice, KeyFiles, Labels};
use stoker_oidc::Issuers;

use crate::config::{self, CatalogKind, Config, Size, WebUrl};
use crate::failure::Failure;
use crate::tls::names_of_domains;
use crate::{
    EventsPlan, Hangup, KafkaPlan, LakePlan, Listen, NfsPlan, PeersPlan, Plan, S3Plan, TelemetryPlan,
    TlsPlan, TracesPlan, Wear, drives, limits,
};

/// What a configuration says of a node in a directory.
pub fn plan(config: &Config, dir: &Path) -> Result<Plan, Failure> {
    let is_witness = config.peers.weight.0 == 0;
    let drives = match config.drive.as_slice() {
        [] if is_witness => Vec::new(),
        [] => vec![drives::own(dir, None)?],
        drives => {
            let one = |drive: &'_ config::Drive| drive.size.get().map(|Size(bytes)| bytes);
            drives::configured(dir, drives.iter().map(|drive| (drive.path.as_path(), one(drive))))?
        }
    };
    let catalog = match (config.catalog.kind(), &config.catalog.url) {
        (CatalogKind::Postgres, Some(url)) => CatalogChoice::Postgres(url.clone()),
        _ => CatalogChoice::Embedded,
    };
    let s3 = &config.s3;
    if is_witness && !drives.is_empty() {
        return Err(Failure::new(
            "[peers] weight = 0 makes this node a witness, and a witness has no drives",
        )
        .hint("remove every [[drive]], or give the node a weight of 1"));
    }
    Ok(Plan {
        drives,
        new_drives: Vec::new(),
        lake: lake(&config.lake, dir),
        catalog,
        volume_defaults: config.volume_defaults.policy(),
        first_volume: None,
        cores: config.node.cores.get(),
        memory_bytes: limits::memory(config.node.memory.get().map(|Size(bytes)| bytes))?,
        drains_max: config.lake.drains_max.0.get(),
        sparse_bytes_max: config.lake.sparse_max.0,
        key_files: KeyFiles { file: config.keys.file.clone(), former: config.keys.former.clone() },
        s3: S3Plan {
            listen: Listen::At(if is_witness { Vec::new() } else { s3.listen.clone() }),
            region: s3.region.clone(),
            domains: s3.domains.clone(),
            cors_origins: s3.cors_origins.clone(),
            signature_v2: s3.signature_v2,
            md5_up_to: s3.md5_up_to.0,
            lifecycle_day_ms: u64::from(s3.lifecycle_day_s.get()) * 1_000,
            threads: s3.threads.get().map(NonZeroUsize::get),
            connections_max: s3.connections_max.get(),
            catalog_patience: match config.catalog.kind() {
                CatalogKind::Postgres => S3Plan::FAILOVER_PATIENCE,
                CatalogKind::Embedded => S3Plan::CATALOG_PATIENCE,
            },
            tls: s3.tls().map(|(cert, key)| TlsPlan::Files { cert, key }).or_else(|| tls(config)),
        },
        nfs: NfsPlan {
            listen: if is_witness { Vec::new() } else { config.nfs.listen.clone() },
            exports: config.nfs.exports.iter().map(|export| export.0.clone()).collect(),
        },
        registry: match is_witness {
            true => Default::default(),
            false => config.registry.plan().map_err(|why| {
                Failure::new(why)
                    .hint("name one in [registry] upstreams, such as \"https://registry-1.docker.io\"")
            })?,
        },
        peers: PeersPlan {
            listen: match config.peers.listen.as_slice() {
                [] => Listen::Kept,
                addresses => Listen::At(addresses.to_vec()),
            },
            name: config.peers.name.clone().map_or_else(|| crate::default_name(dir), Ok)?,
            labels: Labels {
                cell: config.peers.cell.clone(),
                tor: config.peers.tor.clone(),
                power: config.peers.power.clone(),
            },
            weight: config.peers.weight.0,
            plaintext: config.peers.plaintext,
            grace: Duration::from_secs(config.peers.grace_s.get().into()),
            rebuild_bytes_per_s: config.peers.rebuild_rate.0,
        },
        tells_protection: false,
        makes_join_token: false,
        promote: None,
        admin: Listen::At(vec![config.admin.listen]),
        tls: tls(config),
        token_file: config.admin.token_file.clone(),
        view_token_file: config.admin.view_token_file.clone(),
        metrics_open: config.admin.metrics_open,
        door: config.door.listen.clone(),
        users: config.door.users.iter().map(|user| (user.uid, user.name.clone())).collect(),
        telemetry: telemetry(config)?,
        issuers: Arc::new(Issuers::new(config::issuers(&config.oidc)?)),
        audit: config.audit.clone(),
        hangup: Hangup::Reload,
        check_only: false,
    })
}

/// The certificates of all ports that people connect to.
fn tls(config: &Config) -> Option<TlsPlan> {
    if let Some((cert, key)) = config.tls.files() {
        return Some(TlsPlan::Files { cert, key });
    }
    let domains = names_of_domains(&config.s3.domains);
    config.tls.own.then(|| TlsPlan::Own {
        names: config.tls.names.iter().map(|name| name.0.clone()).chain(domains).collect(),
    })
}

/// What is told beside the numbers of the node.
fn telemetry(config: &Config) -> Result<TelemetryPlan, Failure> {
    let mut wear = Vec::new();
    for drive in &config.drive {
        let path = std::path::absolute(&drive.path).map_err(|e| Failure::io(drive.path.display(), &e))?;
        wear.push((path, Wear { dwpd: drive.dwpd.set(), endurance_tb: drive.endurance_tb.set() }));
    }
    let urls = |urls: &[WebUrl]| urls.iter().map(|url| url.0.clone()).collect();
    Ok(TelemetryPlan {
        has_fabric: config.telemetry.fabric,
        exporters: urls(&config.telemetry.exporters),
        events: EventsPlan {
            file: config.events.file.clone(),
            file_bytes_max: config.events.file_size.0,
            webhooks: urls(&config.events.webhooks),
            webhook_secret_file: config.events.webhook_secret_file.clone(),
            kafka: kafka(config),
        },
        wear,
        slo: config.slo.clone(),
        traces: None,
    })
}

/// Where spans go.
pub fn traces(config: &Config) -> TracesPlan {
    let traces = &config.telemetry.traces;
    TracesPlan { endpoint: traces.endpoint.as_ref().map(|url| url.0.clone()), sample: traces.sample.0 }
}

/// Where events go in Kafka; without a broker nowhere.
pub fn kafka(config: &Config) -> Option<KafkaPlan> {
    let kafka = &config.events.kafka;
    let brokers: Vec<String> = kafka.brokers.iter().map(|broker| broker.0.clone()).collect();
    (!brokers.is_empty()).then(|| KafkaPlan { brokers, topic: kafka.topic.0.clone() })
}

/// The lake that a configuration names.
pub fn lake(lake: &config::Lake, dir: &Path) -> LakePlan {
    let own = || format!("file://{}", dir.join("lake").display());
    LakePlan {
        url: lake.url.clone().unwrap_or_else(own),
        options: LakeOptions {
            endpoint: lake.endpoint.clone(),
            region: lake.region.clone(),
            path_style: lake.path_style.get(),
            anonymous: lake.anonymous,
            checksum: Some(match lake.checksum {
                config::Checksum::Crc64nvme => Checksum::Crc64Nvme,
                config::Checksum::None => Checksum::None,
            }),
            payload_signed: lake.payload_signed.get(),
            ..LakeOptions::default()
        },
        prices: lake.prices(),
        is_own: lake.url.is_none(),
    }
}
