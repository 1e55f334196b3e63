//! How a subcommand reaches a node.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use stoker_client::{Client, Endpoint};
use stoker_store::ErrorKind;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

const DIR_DEFAULT: &str = "stoker-data";
const SOCKET: &str = "stoker.sock";

/// Which node is meant.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Node")]
pub struct Target {
    /// The folder of a node on this machine [env: STOKER_DIR] [default: stoker-data]
    #[arg(long, value_name = "PATH", conflicts_with = "endpoint")]
    dir: Option<PathBuf>,
    /// The address of a node, with its token [env: STOKER_ENDPOINT]
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Option<String>,
    /// The token that the node printed at start [env: STOKER_TOKEN]
    #[arg(long, conflicts_with = "token_file")]
    token: Option<String>,
    /// A file with the token, which others then cannot see in the list of processes
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
}

impl Target {
    /// The node in a folder of this machine.
    pub fn in_folder(dir: &Path) -> Target {
        Target { dir: Some(dir.to_owned()), endpoint: None, token: None, token_file: None }
    }

    /// Flags count before the environment, a named endpoint before a folder.
    fn endpoint(&self) -> Result<Endpoint, Failure> {
        let of_env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let env_text = |name: &str| of_env(name).map(|value| value.to_string_lossy().into_owned());
        let named = match (&self.endpoint, &self.dir) {
            (Some(endpoint), _) => Some(endpoint.clone()),
            (None, Some(_)) => None,
            (None, None) => env_text("STOKER_ENDPOINT"),
        };
        if let Some(text) = named {
            return text.parse().map_err(|error| Failure::new(format!("{error}")));
        }
        let dir = self.dir.clone().or_else(|| of_env("STOKER_DIR").map(PathBuf::from));
        Ok(Endpoint::Unix(dir.unwrap_or_else(|| DIR_DEFAULT.into()).join(SOCKET)))
    }

    /// The folder of the node, if it is one of this machine.
    pub fn folder(&self) -> Result<Option<PathBuf>, Failure> {
        Ok(match self.endpoint()? {
            Endpoint::Unix(socket) => socket.parent().map(Path::to_path_buf),
            Endpoint::Tcp(_) => None,
        })
    }

    fn token(&self) -> Result<Option<String>, Failure> {
        if let Some(path) = &self.token_file {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::io(format!("the token file {}", path.display()), &error))?;
            let token = text.trim();
            if token.is_empty() {
                return Err(Failure::new(format!("the token file {} is empty", path.display())));
            }
            return Ok(Some(token.to_owned()));
        }
        let token = self.token.clone().or_else(|| std::env::var("STOKER_TOKEN").ok());
        Ok(token.filter(|token| !token.is_empty()))
    }

    /// A connection to it.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let endpoint = self.endpoint()?;
        Client::connect(&endpoint, self.token()?.as_deref()).await.map_err(|error| {
            let advice = match (&endpoint, error.kind) {
                (_, ErrorKind::Denied) => {
                    "give the node's token with --token-file, --token or STOKER_TOKEN".to_owned()
                }
                (Endpoint::Unix(path), ErrorKind::Unavailable) => {
                    let dir = path.parent().unwrap_or(path).display();
                    format!(
                        "start a node with `stoker up --dir {dir}`, or name another with --dir or --endpoint"
                    )
                }
                (Endpoint::Tcp(_), ErrorKind::Unavailable) => {
                    "check that the node runs and that this is its client address; on its machine use --dir"
                        .to_owned()
                }
                _ => return Failure::from(error),
            };
            Failure::new(error.message).hint(advice)
        })
    }
}

/// Connects and acts. A signal drops what is under way, so that nothing half-made stays behind.
pub fn run(
    target: &Target,
    act: impl AsyncFnOnce(Client) -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).min(4))
        .enable_all()
        .build()
        .map_err(|error| Failure::io("runtime", &error))?;
    let done = runtime.block_on(async {
        let caught = |kind| signal(kind).map_err(|error| Failure::io("signals", &error));
        let (mut interrupt, mut terminate) =
            (caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?);
        tokio::select! {
            done = async { act(target.connect().await?).await } => done,
            _ = interrupt.recv() => Ok(ExitCode::from(128 + libc::SIGINT as u8)),
            _ = terminate.recv() => Ok(ExitCode::from(128 + libc::SIGTERM as u8)),
        }
    });
    // Tasks are dropped here, and with them their half-made files. A read of stdin cannot be called off; the process
    // ends without it.
    runtime.shutdown_timeout(Duration::from_millis(500));
    done
}
