//! `stoker csi`: the driver of the Container Storage Interface.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use stoker_client::Endpoint;
use stoker_gateway_csi::proto::{ProbeRequest, ProbeResponse};
use stoker_gateway_csi::{Caller, DRIVER, NodeOptions, Options, TenantDoor};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::{log, out};

/// Where a node is if nobody says otherwise.
const NODE_DIR: &str = "/var/lib/stoker";

/// What is served.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Make, change, list and remove volumes and snapshots: once for a cluster.
    Controller(ServeArgs),
    /// Show volumes on this machine: on each that runs pods.
    Node(NodeArgs),
    /// Both in one process.
    All(NodeArgs),
    /// Ask a driver whether it serves: exit code 0, or 1.
    Probe(ProbeArgs),
}

/// What every driver has.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// The socket that it serves.
    #[arg(long, value_name = "unix:///PATH", value_parser = socket)]
    endpoint: PathBuf,
    /// Its name, as a StorageClass has it.
    #[arg(long, value_name = "NAME", default_value = DRIVER)]
    driver_name: String,
    /// The folder of the node that it asks [env: STOKER_DIR] [default: /var/lib/stoker]
    #[arg(long, value_name = "PATH", conflicts_with = "node_endpoint")]
    node_dir: Option<PathBuf>,
    /// The address of the node that it asks [env: STOKER_ENDPOINT]
    #[arg(long, value_name = "HOST:PORT", requires = "node_token_file")]
    node_endpoint: Option<String>,
    /// A file with the token for that address.
    #[arg(long, value_name = "PATH")]
    node_token_file: Option<PathBuf>,
    /// How much is logged.
    #[arg(long, value_name = "LEVEL", env = "STOKER_LOG", default_value = "info")]
    log: log::Level,
}

/// What shows volumes.
#[derive(clap::Args)]
pub struct NodeArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// The machine's name for the orchestrator; by default its host name.
    #[arg(long, value_name = "NAME")]
    node_id: Option<String>,
    /// The folder that tells what is mounted; it has to survive the driver.
    #[arg(long, value_name = "PATH", default_value = "/var/lib/stoker-csi")]
    state: PathBuf,
    /// The address of the node for volumes of tenants, which users mount by the token in a Secret; tls://HOST:PORT for one in TLS.
    #[arg(long, value_name = "HOST:PORT")]
    tenant_endpoint: Option<Endpoint>,
    /// Certificates (PEM) of the authorities to trust there, if not those of the system.
    #[arg(long, value_name = "FILE", requires = "tenant_endpoint")]
    tenant_ca: Option<PathBuf>,
    /// Volumes that this machine shows at most; each is a process.
    #[arg(long, value_name = "COUNT", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    volumes_max: u32,
    /// Register with the kubelet whose folder of plugins this is, without another program.
    #[arg(long, value_name = "PATH")]
    register: Option<PathBuf>,
    /// The socket as the kubelet sees it, if that is another path than here.
    #[arg(long, value_name = "PATH", requires = "register")]
    kubelet_socket: Option<PathBuf>,
}

/// Arguments of `csi probe`.
#[derive(clap::Args)]
pub struct ProbeArgs {
    /// The socket of the driver.
    #[arg(long, value_name = "unix:///PATH", value_parser = socket)]
    endpoint: PathBuf,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("runtime", &error))?;
    match verb {
        Verb::Controller(args) => runtime.block_on(serve(args, true, None)),
        Verb::Node(args) => runtime.block_on(serve(&args.serve, false, Some(args))),
        Verb::All(args) => runtime.block_on(serve(&args.serve, true, Some(args))),
        Verb::Probe(args) => runtime.block_on(probe(&args.endpoint)),
    }
}

async fn serve(args: &ServeArgs, controller: bool, node: Option<&NodeArgs>) -> Result<ExitCode, Failure> {
    log::start(args.log, log::Format::Text, None);
    let (door, token, target) = door(args)?;
    let node = match node {
        None => None,
        Some(node) => Some(NodeOptions {
            id: match &node.node_id {
                Some(id) => id.clone(),
                None => host_name()?,
            },
            state: node.state.clone(),
            program: std::env::current_exe().map_err(|error| Failure::io("this program", &error))?,
            target,
            tenants: node
                .tenant_endpoint
                .clone()
                .map(|endpoint| TenantDoor { endpoint, ca: node.tenant_ca.clone() }),
            volumes_max: i64::from(node.volumes_max),
            registry: node.register.clone(),
            kubelet_socket: node.kubelet_socket.clone(),
        }),
    };
    let socket = args.endpoint.clone();
    let options =
        Options { driver: args.driver_name.clone(), socket: socket.clone(), door, token, controller, node };
    let caught = |kind| signal(kind).map_err(|error| Failure::io("signals", &error));
    let (mut interrupt, mut terminate) = (caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?);
    let stop = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let ready = || {
        // Who closed stdout does not want to know.
        let _ = out::line(format!("serving unix://{}", socket.display()));
    };
    stoker_gateway_csi::serve(options, ready, stop)
        .await
        .map_err(|error| Failure::io(format!("serving {}", args.endpoint.display()), &error))?;
    Ok(ExitCode::SUCCESS)
}

/// The node that is asked, and how `stoker mount` is told of it.
fn door(args: &ServeArgs) -> Result<(Endpoint, Option<String>, Vec<String>), Failure> {
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let address = args
        .node_endpoint
        .clone()
        .or_else(|| args.node_dir.is_none().then(|| env("STOKER_ENDPOINT")).flatten());
    let Some(address) = address else {
        let dir = args.node_dir.clone().or_else(|| env("STOKER_DIR").map(PathBuf::from));
        let dir = dir.unwrap_or_else(|| PathBuf::from(NODE_DIR));
        // The process of a mount works elsewhere.
        let dir = std::path::absolute(&dir).map_err(|error| Failure::io(dir.display(), &error))?;
        let target = vec!["--dir".to_owned(), dir.display().to_string()];
        return Ok((Endpoint::Unix(dir.join("stoker.sock")), None, target));
    };
    let endpoint = address.parse().map_err(|error| Failure::new(format!("{error}")))?;
    let mut target = vec!["--endpoint".to_owned(), address];
    let token = match &args.node_token_file {
        None => env("STOKER_TOKEN"),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::io(format!("the token file {}", path.display()), &error))?;
            let path = std::path::absolute(path).map_err(|error| Failure::io(path.display(), &error))?;
            target.extend(["--token-file".to_owned(), path.display().to_string()]);
            Some(text.trim().to_owned())
        }
    };
    Ok((endpoint, token, target))
}

fn host_name() -> Result<String, Failure> {
    let path = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(path).map_err(|error| Failure::io(path, &error))?;
    Ok(name.trim().to_owned())
}

async fn probe(socket: &Path) -> Result<ExitCode, Failure> {
    let silent = |error: &std::io::Error| Failure::io(format!("the driver on {}", socket.display()), error);
    let mut caller = Caller::connect(socket).await.map_err(|error| silent(&error))?;
    let asked = caller.call::<_, ProbeResponse>("/csi.v1.Identity/Probe", ProbeRequest {});
    let answer = tokio::time::timeout(std::time::Duration::from_secs(10), asked)
        .await
        .map_err(|_| Failure::new("the driver does not answer"))?
        .map_err(|status| Failure::new(format!("the driver says: {}", status.message())))?;
    let is_ready = answer.ready.is_some_and(|ready| ready.value);
    out::line(if is_ready { "ready" } else { "healthy, but its node does not answer" })?;
    // A driver is not restarted because its node is.
    Ok(ExitCode::SUCCESS)
}

/// A socket as the specification writes it.
fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    if path.starts_with('/') {
        Ok(path.into())
    } else {
        Err("it is unix:///PATH, with an absolute path".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_absolute_paths() {
        for text in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(socket(text).unwrap(), Path::new("/csi/csi.sock"));
        }
        for text in ["", "csi.sock", "unix://csi.sock", "tcp://h:1"] {
            assert!(socket(text).is_err(), "{text}");
        }
    }
}
