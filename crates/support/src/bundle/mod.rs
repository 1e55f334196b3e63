//! `stoker support-bundle`: what somebody who helps needs to know of a node and its machine, in one archive.
//!
//! Everything goes through [`Redactor`] on its way into the [`archive`]: values that are known to be secret are taken out
//! wherever they turn up, and so is what has the form of one.

mod archive;
mod facts;
pub mod redact;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_client::Client;
use stoker_store::{Order, Report, Store};

use self::archive::Archive;
use self::redact::Redactor;
use crate::connect::{self, Target};
use crate::daemon::place::read_small;
use crate::failure::Failure;
use crate::{clock, doctor, out, size};

/// Small files of a node's directory that say how it is set up.
const FILES: [&str; 6] = ["node.json", "up.json", "ports.json", "seq", "cluster.peers", "gate.json"];

/// Files of a node's directory of which the end counts: what happened.
const JOURNALS: [&str; 2] = ["events.jsonl.1", "events.jsonl"];

/// Arguments of `support-bundle`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to write the archive [default: stoker-support-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The configuration of the node, if it runs by `stoker serve`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file with the node's log; its end is taken. Without it the journal is asked.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print one object: file, bytes, entries, trouble.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What is gathered.
struct Bundle {
    redactor: Redactor,
    entries: Vec<(String, Vec<u8>)>,
    /// What could not be had.
    trouble: Vec<String>,
}

impl Bundle {
    fn add(&mut self, name: &str, text: impl Into<Vec<u8>>) {
        self.entries.push((name.to_owned(), text.into()));
    }

    fn add_json(&mut self, name: &str, value: &Value) {
        let text = serde_json::to_string_pretty(value).unwrap_or_default();
        self.add(name, text);
    }

    /// Adds a file if it is there.
    fn add_file(&mut self, name: &str, path: &Path) {
        match read_small(path) {
            Ok(Some(text)) => self.add(name, text),
            Ok(None) => {}
            Err(failure) => self.trouble.push(failure.cause().to_owned()),
        }
    }
}

/// Gathers and writes. A node that does not run is one of the things to tell.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut bundle = Bundle { redactor: Redactor::default(), entries: Vec::new(), trouble: Vec::new() };
    bundle.redactor.learn_environment(std::env::vars_os());
    let dir = args.target.folder()?;
    if let Some(dir) = &dir {
        bundle.redactor.learn_directory(dir);
        for name in FILES {
            bundle.add_file(&format!("node/{name}"), &dir.join(name));
        }
        for name in JOURNALS {
            if let Some(end) = facts::end_of(&dir.join(name)) {
                bundle.add(&format!("node/{name}"), end);
            }
        }
        bundle.add("node/files.txt", facts::listing(dir));
        match doctor::report(dir, args.config.as_deref()) {
            Ok(report) => bundle.add("doctor.txt", report),
            Err(failure) => bundle.trouble.push(format!("doctor: {}", failure.cause())),
        }
    }
    if let Some(config) = &args.config {
        bundle.add_file("node/config.toml", config);
    }
    let asked = connect::run(&args.target, async |client| {
        ask(&client, &mut bundle).await;
        Ok(ExitCode::SUCCESS)
    });
    if let Err(failure) = asked {
        bundle.trouble.push(format!("the node was not asked: {}", failure.cause()));
    }
    let versions = json!({
        "stoker": env!("CARGO_PKG_VERSION"),
        "taken": clock::rfc3339(clock::unix_ms()),
        "environment": facts::environment_names(std::env::vars_os()),
    });
    bundle.add_json("stoker.json", &versions);
    for (name, text) in facts::machine(dir.as_deref()) {
        bundle.add(&name, text);
    }
    let (log, trouble) = facts::log(args.log.as_deref());
    bundle.trouble.extend(trouble);
    bundle.add("log.txt", log);
    let trouble = bundle.trouble.join("\n");
    bundle.add("trouble.txt", trouble);
    write(args, bundle)
}

/// Asks the node all that it tells. One answer that lacks does not stop the others.
async fn ask(client: &Client, bundle: &mut Bundle) {
    // First, so that their secrets are known before anything else is looked at.
    match client.access_keys().await {
        Ok(keys) => {
            let names: Vec<Value> = keys
                .iter()
                .map(|key| json!({ "access_key": key.access_key, "created_ms": key.created_ms, "access": key.access }))
                .collect();
            keys.iter().for_each(|key| bundle.redactor.learn(&key.secret_key));
            bundle.add_json("keys.json", &json!(names));
        }
        Err(fault) => bundle.trouble.push(fault.message),
    }
    match client.status().await {
        Ok(status) => bundle.add_json("status.json", &json!(status)),
        Err(fault) => bundle.trouble.push(fault.message),
    }
    match client.volumes().await {
        Ok(volumes) => bundle.add_json("volumes.json", &json!(volumes)),
        Err(fault) => bundle.trouble.push(fault.message),
    }
    match client.conflicts(None).await {
        Ok(conflicts) => bundle.add_json("conflicts.json", &json!({ "count": conflicts.len() })),
        Err(fault) => bundle.trouble.push(fault.message),
    }
    match client.counters().await {
        Ok(counters) => {
            let line = |counter: &stoker_store::Counter| {
                let labels: Vec<String> =
                    counter.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
                format!("stoker_{}{{{}}} {}\n", counter.name, labels.join(","), counter.value)
            };
            bundle.add("metrics.txt", counters.iter().map(line).collect::<String>());
        }
        Err(fault) => bundle.trouble.push(fault.message),
    }
    match client.operate(Order::Note { name: stoker_reflex_driver::NOTE.to_owned() }).await {
        Ok(Report::Note(note)) => bundle.add("slo.json", note.unwrap_or_default()),
        Ok(_) => bundle.trouble.push("slo: unexpected response type".to_owned()),
        Err(fault) => bundle.trouble.push(format!("slo: {}", fault.message)),
    }
    for (name, order) in [("catalog.json", Order::Catalog), ("protection.json", Order::Protection)] {
        match client.operate(order).await {
            Ok(Report::Catalog(status)) => bundle.add_json(name, &json!(status)),
            Ok(Report::Protection(volumes)) => bundle.add_json(name, &json!(volumes)),
            Ok(_) => bundle.trouble.push(format!("{name}: unexpected response type")),
            Err(fault) => bundle.trouble.push(fault.message),
        }
    }
}

fn write(args: &Args, bundle: Bundle) -> Result<ExitCode, Failure> {
    let now_ms = clock::unix_ms();
    let default = || PathBuf::from(format!("stoker-support-{}.tar.gz", now_ms / 1_000));
    let path = args.output.clone().unwrap_or_else(default);
    let io = |error: std::io::Error| Failure::io(path.display(), &error);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::new(format!("{} is there already", path.display()))
            .hint("choose another name with --output"),
        _ => io(error),
    })?;
    let mut archive = Archive::begin(file, now_ms / 1_000).map_err(io)?;
    for (name, text) in &bundle.entries {
        let text = bundle.redactor.redact(text);
        archive.add(&format!("stoker-support/{name}"), &text).map_err(io)?;
    }
    let bytes = archive.end().map_err(io)?;
    if args.json {
        let names: Vec<&String> = bundle.entries.iter().map(|(name, _)| name).collect();
        out::json(&json!({ "file": path, "bytes": bytes, "entries": names, "trouble": bundle.trouble }))?;
        return Ok(ExitCode::SUCCESS);
    }
    bundle.trouble.iter().for_each(|trouble| out::say(format!("  {trouble}")));
    out::line(format!("{}: {} files, {}", path.display(), bundle.entries.len(), size::human(bytes)))?;
    out::say(
        "secrets were taken out; names of files and volumes were not: look through it before you send it",
    );
    Ok(ExitCode::SUCCESS)
}
