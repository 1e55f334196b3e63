//! `stoker bench catalog`: many clients publish and open files, in a catalog on this machine and in PostgreSQL, beside the
//! bare database below each of them.

mod bare;
mod finding;
mod load;
mod server;
mod subject;

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_catalog::CatalogError;
use tokio::runtime::Runtime;

use self::bare::{BarePostgres, BareRedb};
use self::finding::Finding;
use self::load::{Call, Clients};
use self::server::Server;
use self::subject::Subject;
use super::scratch::Scratch;
use super::{machine, measure::Side};
use crate::failure::Failure;
use crate::out;
use crate::progress::Progress;

/// What a catalog is called on the command line.
const ENGINES: [&str; 2] = ["redb", "postgres"];
/// Room for the files of all sides together; a minute of publishes takes a fraction of it.
const SPACE_BYTES: u64 = 4 << 30;

/// Arguments of `bench catalog`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; everything is made in a folder of it that is removed at the end.
    #[arg(long, value_name = "PATH", default_value = ".")]
    dir: PathBuf,
    /// Length of one round of one side.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = super::ring::seconds)]
    seconds: f64,
    /// Rounds of each side, alternating.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Clients at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// Connections to PostgreSQL that the clients share; the bare side has as many.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    connections: u16,
    /// Files that are there before anything is measured; they are what is opened.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    files: u64,
    /// Catalogs to measure, comma-separated: redb, postgres. PostgreSQL is skipped if it is not installed; its server is
    /// looked for in STOKER_POSTGRES, on the path and where Debian puts it.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_value = "redb,postgres")]
    engines: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn wants(&self, engine: &str) -> bool {
        self.engines.iter().any(|name| name == engine)
    }

    fn clients(&self) -> Clients {
        Clients { count: u64::from(self.clients), seconds: self.seconds }
    }
}

/// Measures catalogs.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(unknown) = args.engines.iter().find(|name| !ENGINES.contains(&name.as_str())) {
        return Err(Failure::new(format!("there is no catalog `{unknown}`")).hint(ENGINES.join(", ")));
    }
    let scratch = Scratch::new(&args.dir, SPACE_BYTES)?;
    let runtime = Runtime::new().map_err(|e| Failure::io("runtime", &e))?;
    let steps = args.engines.len() as u64 * 4 * u64::from(args.rounds);
    let progress = Progress::over_steps(steps, args.json);
    let mut findings = Vec::new();
    if args.wants("redb") {
        findings.extend(runtime.block_on(redb(args, &scratch, &progress))?);
    }
    if args.wants("postgres")
        && let Some(server) = Server::start(&scratch.join("postgres"), args.connections, &runtime)?
    {
        findings.extend(runtime.block_on(postgres(args, &server, &progress))?);
        server.stop()?;
    }
    drop(progress);
    let machine = describe(args);
    if args.json {
        let workloads: Vec<Value> = findings.iter().map(Finding::json).collect();
        out::json(&json!({ "bench": "catalog", "workloads": workloads, "machine": machine }))?;
    } else {
        finding::print(&findings)?;
        out::say(format!("{machine}"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn redb(args: &Args, scratch: &Scratch, progress: &Progress) -> Result<Vec<Finding>, Failure> {
    let subject = Subject::embedded(&scratch.join("catalog.redb"))?;
    let bare = BareRedb::make(&scratch.join("bare.redb"), args.files)?;
    progress.say("redb: fill");
    subject.fill(args.files).await?;
    // The store has one writer at a time, so more clients would only wait for each other.
    let alone = Clients { count: 1, ..args.clients() };
    let publish = measure(args, &subject.publisher(), (&bare.writer(), alone), progress).await?;
    let open = measure(args, &subject.opener(args.files), (&bare.reader(), args.clients()), progress).await?;
    let finding = |name, (stoker, bare)| Finding {
        name,
        engine: "redb",
        clients: args.clients,
        stoker,
        bare,
        conflicts: None,
    };
    Ok(vec![finding("publish", publish), finding("open", open)])
}

async fn postgres(args: &Args, server: &Server, progress: &Progress) -> Result<Vec<Finding>, Failure> {
    let subject = Subject::postgres(&server.address(), usize::from(args.connections)).await?;
    let bare = BarePostgres::make(&server.address(), usize::from(args.connections), args.files).await?;
    progress.say("postgres: fill");
    subject.fill(args.files).await?;
    let filled = subject.conflicts();
    let each = Clients { count: u64::from(args.connections), ..args.clients() };
    let publish = measure(args, &subject.publisher(), (&bare.writer(), each), progress).await?;
    let conflicts = subject.conflicts() - filled;
    let open = measure(args, &subject.opener(args.files), (&bare.reader(), each), progress).await?;
    let finding = |name, (stoker, bare), conflicts| Finding {
        name,
        engine: "postgres",
        clients: args.clients,
        stoker,
        bare,
        conflicts,
    };
    Ok(vec![finding("publish", publish, Some(conflicts)), finding("open", open, None)])
}

/// Alternates rounds of the catalog and of the bare database, as a, b, b, a, so that drift cancels out.
async fn measure(
    args: &Args,
    stoker: &Call,
    (bare, bare_clients): (&Call, Clients),
    progress: &Progress,
) -> Result<(Side, Side), Failure> {
    let (mut stoker_side, mut bare_side) = (Side::default(), Side::default());
    for round in 0..args.rounds {
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                stoker_side.0.push(load::round(args.clients(), stoker).await?);
            } else {
                bare_side.0.push(load::round(bare_clients, bare).await?);
            }
            progress.add(1);
        }
    }
    Ok((stoker_side, bare_side))
}

fn describe(args: &Args) -> Value {
    let mut machine = machine::describe(&args.dir);
    machine["seconds"] = args.seconds.into();
    machine["rounds"] = args.rounds.into();
    machine["connections"] = args.connections.into();
    machine["files"] = args.files.into();
    machine
}

fn failed(error: CatalogError) -> Failure {
    Failure::new(format!("the catalog: {}", error.message))
}
