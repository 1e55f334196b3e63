//! How a subcommand reaches a node.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use stoker_client::{Client, ClientOptions, Endpoint};
use stoker_host::identity::Identity;
use stoker_store::{ErrorKind, JobLabel, StoreError};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::small_file::read_small;

/// Where nodes are if nobody says otherwise: those of `stoker up`, and those of the service.
pub const USUAL_DIRS: [&str; 2] = ["stoker-data", "/var/lib/stoker"];
/// Below the directory for configurations of the user.
const CLIENT_FILE: &str = "stoker/client.json";
const SOCKET: &str = "stoker.sock";

/// Which node is meant.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Node")]
pub struct Target {
    /// The folder of a node on this machine [env: STOKER_DIR] [default: stoker-data, then /var/lib/stoker, then what
    /// ~/.config/stoker/client.json says]
    #[arg(long, value_name = "PATH", conflicts_with = "endpoint")]
    dir: Option<PathBuf>,
    /// The address of a node, with its token; tls://HOST:PORT for one in TLS [env: STOKER_ENDPOINT]
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Option<String>,
    /// The token that the node printed at start [env: STOKER_TOKEN]
    #[arg(long, conflicts_with = "token_file")]
    token: Option<String>,
    /// A file with the token, which others then cannot see in the list of processes
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) of the authorities to trust at tls://HOST:PORT, such as `ca.pem` in a node's directory; by default
    /// those of the system [env: STOKER_CA]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The job that it is for.
    #[arg(skip)]
    job: Option<JobLabel>,
}

impl Target {
    /// The node in a folder of this machine.
    pub fn in_folder(dir: &Path) -> Target {
        Target {
            dir: Some(dir.to_owned()),
            endpoint: None,
            token: None,
            token_file: None,
            ca: None,
            job: None,
        }
    }

    /// Where a node may be, first the most likely. Flags count before the environment, a named endpoint before a folder; if nobody
    /// says anything, the usual places, then what the client configuration says. `stoker.connect()` of Python looks in the same order.
    fn candidates(&self, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<Candidate>, Failure> {
        let one = |endpoint: Endpoint, why: &str| {
            vec![Candidate { endpoint, why: why.to_owned(), token: None, ca: None }]
        };
        let parsed = |text: &str| text.parse().map_err(|error| Failure::new(format!("{error}")));
        let text = |name: &str| env(name).map(|value| value.to_string_lossy().into_owned());
        if let Some(endpoint) = &self.endpoint {
            return Ok(one(parsed(endpoint)?, "--endpoint"));
        }
        if let Some(dir) = &self.dir {
            return Ok(one(socket_in(dir), "--dir"));
        }
        if let Some(endpoint) = text("STOKER_ENDPOINT") {
            return Ok(one(parsed(&endpoint)?, "STOKER_ENDPOINT"));
        }
        if let Some(dir) = env("STOKER_DIR") {
            return Ok(one(socket_in(Path::new(&dir)), "STOKER_DIR"));
        }
        let mut all: Vec<Candidate> = USUAL_DIRS
            .iter()
            .flat_map(|dir| one(socket_in(Path::new(dir)), &format!("the usual place {dir}")))
            .collect();
        all.extend(client_file(env).map(|path| of_client_file(&path)).transpose()?.flatten());
        Ok(all)
    }

    /// The folder of the node, if it is one of this machine: the first place that is there.
    pub fn folder(&self) -> Result<Option<PathBuf>, Failure> {
        let candidates = self.candidates(&of_env)?;
        let folder = |candidate: &Candidate| match &candidate.endpoint {
            Endpoint::Unix(socket) => socket.parent().map(Path::to_path_buf),
            Endpoint::Tcp(_) | Endpoint::Tls(_) => None,
        };
        let found = candidates.iter().filter_map(folder).find(|dir| dir.join("node.json").exists());
        Ok(found.or_else(|| candidates.first().and_then(folder)))
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

    /// The same for a job. What was said by `STOKER_JOB` counts no more.
    pub fn for_job(self, job: JobLabel) -> Target {
        Target { job: Some(job), ..self }
    }

    /// What a connection to a candidate trusts, and for which job it works.
    fn options(&self, candidate: &Candidate) -> Result<ClientOptions, Failure> {
        let job = match (&self.job, of_env("STOKER_JOB")) {
            (Some(job), _) => Some(job.clone()),
            (None, Some(job)) => Some(JobLabel::parse(&job.to_string_lossy()).map_err(|fault| {
                Failure::from(fault).hint("set STOKER_JOB to the id of the job, or unset it")
            })?),
            (None, None) => None,
        };
        Ok(ClientOptions { job, ..self.trusting(candidate)? })
    }

    fn trusting(&self, candidate: &Candidate) -> Result<ClientOptions, Failure> {
        let named = || of_env("STOKER_CA").map(PathBuf::from);
        match self.ca.clone().or_else(named).or_else(|| candidate.ca.clone()) {
            Some(ca) if matches!(candidate.endpoint, Endpoint::Tls(_)) => {
                ClientOptions::default().trusting(&ca).map_err(|error| {
                    Failure::new(error.to_string())
                        .hint("it is a PEM file, such as `ca.pem` in the directory of a node with --tls")
                })
            }
            _ => Ok(ClientOptions::default()),
        }
    }

    /// A connection to it: to the first candidate that answers.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let candidates = self.candidates(&of_env)?;
        let given = self.token()?;
        if let [only] = candidates.as_slice() {
            return Client::connect_with(&only.endpoint, given.as_deref(), self.options(only)?)
                .await
                .map_err(|e| refused(&only.endpoint, e));
        }
        let mut tried = Vec::new();
        for candidate in &candidates {
            let token = given.as_deref().or(candidate.token.as_deref());
            match Client::connect_with(&candidate.endpoint, token, self.options(candidate)?).await {
                Ok(client) => return Ok(client),
                // There is one, and it does not want us: another one is not what is meant.
                Err(error) if error.kind == ErrorKind::Denied => {
                    return Err(refused(&candidate.endpoint, error));
                }
                Err(error) => tried.push(format!("\n  {}: {}", candidate.why, error.message)),
            }
        }
        let cause = format!("no node answers; tried{}", tried.concat());
        let advice = match candidates.iter().any(|candidate| is_closed_to_us(&candidate.endpoint)) {
            true => CLOSED,
            false => {
                "start a node with `stoker up` (a service: `systemctl start stoker`), or name one with --dir, --endpoint or STOKER_DIR"
            }
        };
        Err(Failure::new(cause).hint(advice))
    }
}

/// What somebody does for whom the socket is not.
const CLOSED: &str = "its socket is for root and the user of the node: be one of them, or name an address of the node with --endpoint \
                      and a token (`Who reaches it` in docs/install.md)";

/// Whether there is a socket, or a folder of one, that this user may not use.
fn is_closed_to_us(endpoint: &Endpoint) -> bool {
    let Endpoint::Unix(path) = endpoint else { return false };
    UnixStream::connect(path).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// A place where a node may be.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Candidate {
    endpoint: Endpoint,
    /// Why it is one.
    why: String,
    /// The token that goes with it.
    token: Option<String>,
    /// The authorities to trust there.
    ca: Option<PathBuf>,
}

/// What a person says once for all commands of theirs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientFile {
    endpoint: Option<String>,
    dir: Option<PathBuf>,
    token: Option<String>,
    ca: Option<PathBuf>,
}

fn of_env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn socket_in(dir: &Path) -> Endpoint {
    Endpoint::Unix(dir.join(SOCKET))
}

/// Where the client configuration is, if there is a home for it.
fn client_file(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let base =
        env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| Some(Path::new(&env("HOME")?).join(".config")));
    base.map(|base| base.join(CLIENT_FILE))
}

/// What it says; nothing if it is not there.
fn of_client_file(path: &Path) -> Result<Option<Candidate>, Failure> {
    let Some(text) = read_small(path)? else { return Ok(None) };
    let wrong = |why: String| {
        Failure::new(format!("{}: {why}", path.display()))
            .hint("it is {\"endpoint\": \"HOST:PORT\", \"token\": \"...\", \"ca\": \"FILE\"} or {\"dir\": \"/path\"}")
    };
    let file: ClientFile = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let endpoint = match (file.endpoint, file.dir) {
        (Some(endpoint), _) => endpoint.parse().map_err(|error| wrong(format!("{error}")))?,
        (None, Some(dir)) => socket_in(&dir),
        (None, None) => return Err(wrong("it names neither an endpoint nor a dir".to_owned())),
    };
    Ok(Some(Candidate { endpoint, why: path.display().to_string(), token: file.token, ca: file.ca }))
}

/// The directory of a node for commands that need none that runs: the one that was said, or the usual one of a service.
pub fn node_directory(dir: &Path) -> PathBuf {
    let is_default = dir == Path::new(USUAL_DIRS[0]) && !dir.exists();
    let service = Path::new(USUAL_DIRS[1]);
    if is_default && Identity::exists(service) { service.to_owned() } else { dir.to_owned() }
}

/// Why a place that was named does not answer, and what to do.
fn refused(endpoint: &Endpoint, error: StoreError) -> Failure {
    let advice = match (endpoint, error.kind) {
        (_, ErrorKind::Denied) => {
            "give the node's token with --token-file, --token or STOKER_TOKEN".to_owned()
        }
        (Endpoint::Unix(_), ErrorKind::Unavailable) if is_closed_to_us(endpoint) => CLOSED.to_owned(),
        (Endpoint::Unix(path), ErrorKind::Unavailable) => {
            let dir = path.parent().unwrap_or(path);
            if dir.exists() && !dir.is_dir() {
                return Failure::new(format!("{} is not a directory", dir.display()))
                    .hint("--dir names the directory of a node");
            }
            format!(
                "start a node with `stoker up --dir {}`, or name another with --dir or --endpoint",
                dir.display()
            )
        }
        (Endpoint::Tcp(_) | Endpoint::Tls(_), ErrorKind::Unavailable) => {
            "check that the node runs and that this is its client address; on its machine use --dir"
                .to_owned()
        }
        _ => return Failure::from(error),
    };
    Failure::new(error.message).hint(advice)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_looked_for_where_python_looks() {
        let home = tempfile::tempdir().unwrap();
        let check = |target: &Target, set: &[(&str, &str)], expect: &[&str]| {
            let env = |name: &str| match name {
                "HOME" => Some(home.path().into()),
                _ => set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into()),
            };
            let found = target.candidates(&env).unwrap();
            let found: Vec<String> = found.iter().map(|candidate| candidate.endpoint.to_string()).collect();
            assert_eq!(found, expect, "{set:?}");
        };
        let nothing =
            Target { dir: None, endpoint: None, token: None, token_file: None, ca: None, job: None };
        let usual = ["unix:stoker-data/stoker.sock", "unix:/var/lib/stoker/stoker.sock"];
        check(&nothing, &[], &usual);
        check(&Target::in_folder(Path::new("d")), &[("STOKER_ENDPOINT", "h:1")], &["unix:d/stoker.sock"]);
        check(&nothing, &[("STOKER_ENDPOINT", "h:1"), ("STOKER_DIR", "d")], &["h:1"]);
        check(&nothing, &[("STOKER_DIR", "d")], &["unix:d/stoker.sock"]);
        let file = home.path().join(".config").join(CLIENT_FILE);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, r#"{"endpoint": "node-1:9010", "token": "t"}"#).unwrap();
        check(&nothing, &[], &[usual[0], usual[1], "node-1:9010"]);
        std::fs::write(&file, r#"{"dir": "/srv/node"}"#).unwrap();
        check(&nothing, &[], &[usual[0], usual[1], "unix:/srv/node/stoker.sock"]);
        check(&nothing, &[("XDG_CONFIG_HOME", "/nowhere")], &usual);
        for wrong in ["", "{}", "[]", "{\"endpoint\": \"nonsense\"}", "{\"dri\": \"/d\"}"] {
            std::fs::write(&file, wrong).unwrap();
            assert!(of_client_file(&file).unwrap_err().cause().contains("client.json: "), "{wrong}");
        }
    }
}
