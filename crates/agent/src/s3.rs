//! The S3 door of a daemon.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use stoker_access::Guard;
use stoker_gateway_s3::{CertificateSource, Gateway, GatewayOptions, TraceParent};
use stoker_oidc::Issuers;
use stoker_store::Counter;

use super::cannot_listen;
use super::limits::Cores;
use super::plan::{Listen, S3Plan};
use super::ports::{self, Ports};
use crate::failure::Failure;

const PORT: u16 = 9000;

/// The gateway and the names under which it is reached.
pub struct S3Door {
    gateway: Gateway,
    is_tls: bool,
}

impl S3Door {
    /// Listens and serves; none if it has no address.
    pub async fn start(
        guard: &Guard,
        issuers: &Arc<Issuers>,
        plan: &S3Plan,
        tls: Option<CertificateSource>,
        cores: &Cores,
        ports: &mut Ports,
    ) -> Result<Option<S3Door>, Failure> {
        let (attempts, is_kept): (Vec<Vec<SocketAddr>>, bool) = match &plan.listen {
            Listen::Kept => {
                (ports::candidates("s3", ports.s3, PORT).into_iter().map(|at| vec![at]).collect(), true)
            }
            Listen::At(addresses) if addresses.is_empty() => return Ok(None),
            Listen::At(addresses) => (vec![addresses.clone()], false),
        };
        let mut failed = Failure::new("the S3 door has no address");
        for listen in attempts {
            let options = options(plan, tls.clone(), cores, listen.clone());
            match Gateway::start_with(guard.clone(), Arc::clone(issuers), options) {
                Ok(gateway) => {
                    if is_kept {
                        ports.s3 = gateway.addresses().first().map(SocketAddr::port);
                    }
                    return Ok(Some(S3Door { gateway, is_tls: tls.is_some() }));
                }
                // Somebody took the port since it was looked at.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    failed = cannot_listen("s3", &error)
                }
                Err(error) if tls.is_some() && error.kind() == io::ErrorKind::InvalidInput => {
                    return Err(super::tls::bad_certificate("s3", &error));
                }
                Err(error) => return Err(cannot_listen("s3", &error)),
            }
        }
        Err(failed)
    }

    /// Where clients on this machine find it.
    pub fn urls(&self) -> Vec<String> {
        let scheme = if self.is_tls { "https" } else { "http" };
        self.gateway.addresses().iter().map(|address| format!("{scheme}://{}", reachable(*address))).collect()
    }

    /// Its numbers.
    pub fn counters(&self) -> Vec<Counter> {
        self.gateway.counters()
    }

    /// Reads certificate and key again; keeps the old ones if the new ones are no good.
    pub fn reload(&self) {
        if !self.is_tls {
            tracing::info!("there is no certificate to read again");
            return;
        }
        match self.gateway.reload() {
            Ok(()) => tracing::info!("the certificate was read again"),
            Err(error) => tracing::error!("the certificate cannot be read again, the old one stays: {error}"),
        }
    }

    /// Takes no more connections and finishes what is under way, for at most this long.
    pub async fn stop(&self, grace: Duration) {
        self.gateway.stop(grace).await;
    }
}

/// An address to connect to: one that listens everywhere is reached here, too.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    }
}

fn options(
    plan: &S3Plan,
    tls: Option<CertificateSource>,
    cores: &Cores,
    listen: Vec<SocketAddr>,
) -> GatewayOptions {
    GatewayOptions {
        listen,
        threads: plan.threads.unwrap_or(cores.count),
        region: plan.region.clone(),
        domains: plan.domains.clone(),
        cors_origins: plan.cors_origins.clone(),
        signature_v2: plan.signature_v2,
        md5_up_to: plan.md5_up_to,
        connections_max: plan.connections_max,
        catalog_patience: plan.catalog_patience,
        tls,
        trace_parent: super::trace_parent().map(TraceParent),
        ..GatewayOptions::default()
    }
}
