//! `stoker demo`: the promises of Stoker, shown on this machine in half a minute: nodes are processes of the same program, and two of them
//! are killed.
//!
//! It must not touch a node that it did not start.

mod board;
mod cell;
mod shards;
mod story;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use self::board::Picture;
use stoker_agent as daemon;
use stoker_agent::settings;
use stoker_command::show;
use stoker_probe::scratch::Scratch;
use stoker_terminal::failure::Failure;
use stoker_terminal::{clock, failure, out, paint, rng, shell, size, span, sys};

/// Arguments of `demo`.
#[derive(clap::Args)]
pub struct Args {
    /// A folder on the drive to use; nodes and lake live in a new folder below it while the demo runs. By default the
    /// temporary one.
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// Bytes of the checkpoint.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size::parse)]
    size: u64,
    /// Shards that it is written in.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(2..=64))]
    shards: u32,
    /// How long a node may be silent before the others go on without it; 30 s where it counts.
    #[arg(long, value_name = "SPAN", default_value = "3s", value_parser = span::parse)]
    grace: Duration,
    /// Leave everything where it is at the end; on a terminal the nodes that are left go on until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Print one object at the end: every step with its figures.
    #[arg(long)]
    json: bool,
}

/// Runs the demo.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let shard_bytes = args.size.div_ceil(u64::from(args.shards)).max(1);
    // Each node keeps all that is written through it, and a copy of some of the rest.
    let ring_bytes = (args.size * 2).max(1 << 30);
    let base = match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|error| Failure::io(dir.display(), &error))?;
            std::path::absolute(dir).map_err(|error| Failure::io(dir.display(), &error))?
        }
        None => std::env::temp_dir(),
    };
    let scratch = Scratch::named(&base, ring_bytes * 3 + args.size, "stoker-demo")?;
    let dir = scratch.join("");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::io("runtime", &error))?;
    let shape = cell::Shape { dir: dir.clone(), ring_bytes, grace: args.grace };
    let shards = shards::Shards {
        volume: "data".into(),
        dir: "run-7/step-1000/".into(),
        count: args.shards,
        shard_bytes,
        seed: 0x5709_e120,
    };
    let mut teller = Teller { quiet: args.json, steps: Vec::new(), picture: Picture::new(!args.json) };
    let told = runtime.block_on(async {
        let drawing = teller.picture.start(&dir);
        let told = story::tell(&shape, &shards, &mut teller).await;
        if told.is_ok() {
            teller.line("\nnothing was lost, and no byte differs")?;
        }
        teller.picture.end();
        drawing.iter().for_each(tokio::task::JoinHandle::abort);
        if let (Ok(nodes), true, true) = (&told, args.keep, teller.picture.is_on()) {
            scratch.keep_when_stopped();
            linger(nodes, &dir).await?;
        }
        // The nodes that are left end here.
        told.map(drop)
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    if args.keep || told.is_err() {
        out::say(format!("everything is left in {}", dir.display()));
        scratch.keep();
    }
    if args.json {
        let why = told.as_ref().err().map(Failure::cause);
        out::json(&json!({ "passed": told.is_ok(), "failure": why, "steps": teller.steps }))?;
    }
    told?;
    Ok(ExitCode::SUCCESS)
}

/// Lets people look at the nodes that are left, until they have seen enough.
async fn linger(nodes: &[cell::Node], dir: &std::path::Path) -> Result<(), Failure> {
    for node in nodes {
        let dir = crate::shell::quoted(&node.dir.display().to_string());
        out::line(format!("console {}  log in with the token in {dir}/token", node.console()))?;
        out::line(format!("        {} status --dir {dir}", crate::shell::program()))?;
    }
    out::say(format!("the nodes go on until Ctrl-C; their files stay in {}", dir.display()));
    // Whoever watches for signals ends the process.
    std::future::pending().await
}

/// Tells what happens, for people and for programs.
struct Teller {
    quiet: bool,
    steps: Vec<Value>,
    picture: Picture,
}

impl Teller {
    fn line(&self, text: &str) -> Result<(), Failure> {
        if self.quiet { Ok(()) } else { self.picture.line(text) }
    }

    /// A step with its figures.
    fn step(&mut self, name: &str, words: &str, figures: Value) -> Result<(), Failure> {
        let mut step = json!({ "step": name });
        if let (Some(step), Value::Object(figures)) = (step.as_object_mut(), figures) {
            step.extend(figures);
        }
        self.steps.push(step);
        self.line(words)
    }
}
