//! `stoker config`: what a node is started with, where each value comes from, and the file that starts it by `serve`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use super::reference::{EXAMPLES, sections};
use super::{Config, export};
use crate::connect::node_directory;
use crate::daemon::limits;
use crate::daemon::place::{read_small, write_small};
use crate::daemon::ports::{self, Ports};
use crate::failure::Failure;
use crate::home::Home;
use crate::up::settings::{self, Effective, Origin, Setting, Values};
use crate::up::{self, Args as UpArgs};
use crate::{daemon, out, size, span};
use stoker_support::bundle::redact::Redactor;

/// What to do with a configuration.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Show every setting, its value, and where that comes from.
    Show(ShowArgs),
    /// Print the configuration file by which `stoker serve` starts the same node.
    Export(ExportArgs),
    /// Forget settings that `up` keeps for a node; the next start takes their defaults.
    Unset(UnsetArgs),
}

/// Arguments of `config show`.
#[derive(clap::Args)]
pub struct ShowArgs {
    #[command(flatten)]
    home: Home,
    /// Print one object per line: setting, value, origin.
    #[arg(long)]
    json: bool,
}

/// Arguments of `config export`.
#[derive(clap::Args)]
pub struct ExportArgs {
    /// The directory of a node that runs by `stoker up` or `stoker join`.
    #[arg(long, value_name = "PATH", env = "STOKER_DIR", default_value = UpArgs::DIR)]
    dir: PathBuf,
    /// Write there instead of to stdout; a file that is there is left alone.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Arguments of `config unset`.
#[derive(clap::Args)]
pub struct UnsetArgs {
    /// Settings as `config show` names them, such as `nfs`.
    #[arg(required = true, value_name = "SETTING")]
    settings: Vec<String>,
    /// The directory of the node.
    #[arg(long, value_name = "PATH", env = "STOKER_DIR", default_value = UpArgs::DIR)]
    dir: PathBuf,
}

/// One line of `show`.
struct Row {
    setting: String,
    value: String,
    origin: String,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Show(args) => {
            let rows = match &args.home.config {
                Some(file) => rows_of_file(file)?,
                None => rows_of_directory(&args.home.dir())?,
            };
            show(rows, args.json)?;
        }
        Verb::Export(args) => {
            let text = export::text(&known(&node_directory(&args.dir))?)?;
            match &args.output {
                None => out::bytes(text.as_bytes())?,
                Some(file) => save(file, &text)?,
            }
        }
        Verb::Unset(args) => unset(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A directory that `up` started something in.
pub struct Known {
    pub dir: PathBuf,
    pub settings: Effective,
    pub ports: Ports,
}

fn known(dir: &Path) -> Result<Known, Failure> {
    let dir = std::path::absolute(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let file = settings::file::read(&dir)?;
    if !stoker_node::is_node(&dir) && !file.has(Setting::Nodes) {
        return Err(Failure::new(format!("{} is not the directory of a node", dir.display()))
            .hint("name it with --dir, or a configuration with --config; `stoker up` makes one"));
    }
    // What `up` starts leaves its settings there or, for several nodes, beside them. Without them, defaults would be told as facts.
    let is_kept = |dir: &Path| dir.join(settings::file::FILE).exists();
    if !is_kept(&dir) && !dir.parent().is_some_and(is_kept) {
        return Err(Failure::new(format!(
            "{} has no settings of `stoker up`: its node is started by a configuration file",
            dir.display()
        ))
        .hint("name that with --config, such as `stoker config show --config /etc/stoker/stoker.toml`"));
    }
    let settings = Effective::of(&Values::default(), &Values::of_environment()?, &file);
    Ok(Known { ports: Ports::read_in(&dir)?, settings, dir })
}

fn rows_of_directory(dir: &Path) -> Result<Vec<Row>, Failure> {
    let known = known(dir)?;
    let is_cell = known.settings.values.has(Setting::Nodes);
    let of_one = |setting: &Setting| is_cell || !matches!(setting, Setting::Nodes | Setting::Cells);
    let row = |setting: Setting| {
        let (value, origin) = match known.settings.origin(setting) {
            Origin::Default => default(&known, setting)?,
            origin => (known.settings.values.all(setting).join(" "), origin_text(&known, setting, origin)),
        };
        Ok(Row { setting: setting.name().to_owned(), value, origin })
    };
    let dir =
        Row { setting: "dir".to_owned(), value: known.dir.display().to_string(), origin: String::new() };
    [Ok(dir)].into_iter().chain(Setting::ALL.into_iter().filter(of_one).map(row)).collect()
}

fn origin_text(known: &Known, setting: Setting, origin: Origin) -> String {
    match origin {
        Origin::Variable => setting.variable(),
        Origin::Default => "default".to_owned(),
        Origin::Flag | Origin::Cluster | Origin::File => {
            known.dir.join(settings::file::FILE).display().to_string()
        }
    }
}

/// What counts for a setting that nobody gave, and why.
fn default(known: &Known, setting: Setting) -> Result<(String, String), Failure> {
    let by_default = |text: String| (text, "default".to_owned());
    let port = |host: IpAddr, port: Option<u16>, usual: u16| match port {
        Some(port) => (
            SocketAddr::new(host, port).to_string(),
            format!("{}, chosen at the first start", known.dir.join(ports::FILE).display()),
        ),
        None => by_default(format!("{}, or a free port", SocketAddr::new(host, usual))),
    };
    let node = Config::default().node;
    Ok(match setting {
        Setting::Name if known.dir.join(daemon::JOINED).exists() => {
            (daemon::default_name(&known.dir)?, known.dir.join(daemon::JOINED).display().to_string())
        }
        Setting::Name => by_default(daemon::default_name(&known.dir)?),
        Setting::Lake => by_default(format!("file://{}", known.dir.join("lake").display())),
        Setting::LakeMode => by_default("owned, or read-only if the lake was not empty".to_owned()),
        Setting::Drive => by_default(known.dir.join("ring").display().to_string()),
        Setting::Size => by_default("auto".to_owned()),
        Setting::Cores => by_default(node.cores.to_string()),
        Setting::Memory => {
            by_default(limits::memory(None).map_or_else(|failure| failure.cause().to_owned(), size::exact))
        }
        Setting::S3 => port(ports::HOST, known.ports.s3, 9000),
        Setting::Admin => port(ports::HOST, known.ports.admin, 9001),
        Setting::Peers => port(daemon::default_host(&known.dir)?, known.ports.peers, 9002),
        Setting::Grace => by_default(span::exact(up::GRACE)),
        Setting::Cells => by_default("1".to_owned()),
        Setting::Tls => by_default("off".to_owned()),
        Setting::TlsName | Setting::TlsCert | Setting::TlsKey => by_default("-".to_owned()),
        Setting::RegistrySize => by_default(size::exact(Config::default().registry.size.0)),
        Setting::Registry | Setting::RegistryUpstream => by_default("-".to_owned()),
        Setting::Domain | Setting::Nfs | Setting::NfsExport | Setting::Nodes => by_default("-".to_owned()),
    })
}

/// Every setting of a configuration file; a value comes from there or is the default.
fn rows_of_file(path: &Path) -> Result<Vec<Row>, Failure> {
    // What it cannot mean is told with its place.
    Config::read(path)?;
    let text = read_small(path)?.unwrap_or_default();
    let broken = |error: toml::de::Error| Failure::new(format!("{}: {error}", path.display()));
    let file: toml::Table = toml::from_str(&text).map_err(broken)?;
    let origin = path.display().to_string();
    let mut rows = Vec::new();
    for (section, settings) in sections() {
        let given = section.split('.').try_fold(&file, |table, part| table.get(part)?.as_table());
        if EXAMPLES.contains(&section) {
            let value = section
                .split_once('.')
                .map_or_else(|| file.get(section), |(of, name)| file.get(of)?.get(name));
            if let Some(value) = value {
                rows.push(Row {
                    setting: section.to_owned(),
                    value: value.to_string(),
                    origin: origin.clone(),
                });
            }
            continue;
        }
        for (name, default) in settings.into_iter().filter_map(|setting| setting.split_once(" = ")) {
            let given = given.and_then(|table| table.get(name)).map(toml::Value::to_string);
            let (value, origin) = match given {
                Some(value) => (value, origin.clone()),
                None => (default.to_owned(), "default".to_owned()),
            };
            rows.push(Row { setting: format!("{section}.{name}"), value, origin });
        }
    }
    Ok(rows)
}

/// A URL may hold a password.
fn show(mut rows: Vec<Row>, json: bool) -> Result<(), Failure> {
    let redactor = Redactor::default();
    for row in &mut rows {
        row.value = String::from_utf8_lossy(&redactor.redact(row.value.as_bytes())).into_owned();
    }
    if json {
        return rows.iter().try_for_each(|row| {
            out::json(&json!({ "setting": row.setting, "value": row.value, "origin": row.origin }))
        });
    }
    let width =
        |of: fn(&Row) -> &String| rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0).min(48);
    let (settings, values) = (width(|row| &row.setting), width(|row| &row.value));
    rows.iter().try_for_each(|row| {
        let value = crate::show::name(row.value.as_bytes());
        out::line(format!("{:settings$}  {value:values$}  {}", row.setting, row.origin).trim_end())
    })
}

fn save(file: &Path, text: &str) -> Result<(), Failure> {
    if file.exists() {
        return Err(Failure::new(format!("{} is there already", file.display()))
            .hint("choose another name with --output"));
    }
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::new(format!("{} is no file", file.display())))?;
    write_small(dir, name, text)?;
    out::say(format!(
        "start it with `stoker serve --config {}`, once `stoker up` was stopped",
        file.display()
    ));
    Ok(())
}

fn unset(args: &UnsetArgs) -> Result<(), Failure> {
    let dir = node_directory(&args.dir);
    let mut values = settings::file::read(&dir)?;
    for name in &args.settings {
        let names = || Setting::ALL.map(Setting::name).join(", ");
        let setting = Setting::named(name.trim_start_matches("--")).ok_or_else(|| {
            Failure::new(format!("`{name}` is no setting")).hint(format!("known are {}", names()))
        })?;
        if !values.unset(setting) {
            return Err(Failure::new(format!("{name} is not set in {}", dir.display()))
                .hint("see what is with `stoker config show`"));
        }
    }
    settings::file::write(&dir, &values)?;
    out::say(format!("the next start takes the default for {}", args.settings.join(", ")));
    Ok(())
}
