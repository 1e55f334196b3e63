//! The socket: HTTP/2 connections, and what serves their calls.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::authority::AnyHost;
use crate::controller::Controller;
use crate::door::Door;
use crate::identity::Identity;
use crate::node::Node;
use crate::registration::Registration;
use crate::table::{Services, answer};
use crate::{Options, registration};

/// Connections at a time; an orchestrator has a handful.
const CONNECTIONS_MAX: usize = 64;
/// Calls at a time on each.
const STREAMS_MAX: u32 = 128;

/// Serves until `stop` is done. `ready` is called once the socket takes connections.
pub async fn serve(
    options: Options,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let door = Arc::new(Door::new(options.door.clone(), options.token.clone()));
    let node = match &options.node {
        None => None,
        Some(node) => Some(Arc::new(Node::open(door.clone(), &options.driver, node)?)),
    };
    let services = Arc::new(Services {
        identity: Identity {
            driver: options.driver.clone(),
            has_controller: options.controller,
            door: door.clone(),
        },
        controller: options.controller.then(|| Arc::new(Controller::new(door.clone(), &options.driver))),
        node: node.clone(),
        registration: None,
    });
    let listener = listen(&options.socket)?;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(accept(listener, services));
    if let Some(node) = &node {
        tasks.spawn(node.clone().watch());
    }
    let registry = options.node.as_ref().and_then(|node| node.registry.as_ref());
    let registered = registry.map(|folder| registration::socket(folder, &options.driver));
    if let Some(path) = &registered {
        let services =
            Services { registration: Some(Registration::of(&options)), ..Services::none(&options, door) };
        tasks.spawn(accept(listen(path)?, Arc::new(services)));
    }
    ready();
    stop.await;
    tasks.shutdown().await;
    // A kubelet takes a socket that is gone for a driver that left.
    for path in registered.iter().chain([&options.socket]) {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// A socket for root alone; one that a driver left behind is replaced, anything else is not.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            let message = format!("{} is there and no socket", path.display());
            return Err(std::io::Error::new(std::io::ErrorKind::AlreadyExists, message));
        }
        std::fs::remove_file(path)?;
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, services: Arc<Services>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let services = services.clone();
                tokio::spawn(async move {
                    converse(stream, services).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: those that end give theirs back.
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, services: Arc<Services>) {
    let served = service_fn(move |request| {
        let services = services.clone();
        async move { Ok::<_, std::convert::Infallible>(answer(services, request).await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(STREAMS_MAX);
    if let Err(error) = builder.serve_connection(TokioIo::new(AnyHost::new(stream)), served).await {
        tracing::debug!(%error, "a connection ended");
    }
}
