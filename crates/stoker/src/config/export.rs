//! The settings of `up` as a configuration file for `serve`.

use std::fmt::Write;
use std::net::SocketAddr;

use super::Config;
use super::verb::Known;
use crate::daemon::{self, ports};
use crate::failure::Failure;
use crate::up::settings::Setting;

/// The file. It is read back before it is given away.
pub fn text(known: &Known) -> Result<String, Failure> {
    let values = &known.settings.values;
    if values.has(Setting::Nodes) && !stoker_node::is_node(&known.dir) {
        return Err(Failure::new(format!("{} holds several nodes", known.dir.display()))
            .hint(format!("export one of them: --dir {}", known.dir.join("node-1").display())));
    }
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let list = |texts: &[String]| texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ");
    let kept = |port: Option<u16>| port.map(|port| SocketAddr::new(ports::HOST, port).to_string());
    let listen = |setting, port| values.one(setting).map(str::to_owned).or_else(|| kept(port));
    let mut text = format!(
        "# What `stoker up` kept of the node in {}, for `stoker serve --config FILE`. deploy/stoker.toml shows what else can be \
         set.\n# The address and credentials of a lake that came from the environment (AWS_...) have to be in that of the \
         service, too.\n",
        crate::show::name(known.dir.display().to_string().as_bytes())
    );
    let mut section = |header: &str, lines: &[(&str, Option<String>)]| {
        let set: Vec<String> = lines
            .iter()
            .filter_map(|(name, value)| Some(format!("{name} = {}\n", value.as_ref()?)))
            .collect();
        if !set.is_empty() {
            let _ = write!(text, "\n{header}\n{}", set.concat());
        }
    };
    let of_text = |setting| values.one(setting).map(quoted);
    section(
        "[node]",
        &[
            ("dir", Some(quoted(&known.dir.display().to_string()))),
            ("cores", values.one(Setting::Cores).map(str::to_owned)),
            ("memory", of_text(Setting::Memory)),
        ],
    );
    for drive in values.all(Setting::Drive) {
        section("[[drive]]", &[("path", Some(quoted(drive))), ("size", of_text(Setting::Size))]);
    }
    section("[lake]", &[("url", of_text(Setting::Lake))]);
    let one = |address: Option<String>| address.map(|address| format!("[{}]", quoted(&address)));
    let is_own = values.one(Setting::Tls) == Some("on") && !values.has(Setting::TlsCert);
    let names = values.all(Setting::TlsName);
    section(
        "[tls]",
        &[
            ("cert", values.one(Setting::TlsCert).map(quoted)),
            ("key", values.one(Setting::TlsKey).map(quoted)),
            ("own", is_own.then(|| "true".to_owned())),
            ("names", (!names.is_empty()).then(|| format!("[{}]", list(names)))),
        ],
    );
    section(
        "[s3]",
        &[
            ("listen", one(listen(Setting::S3, known.ports.s3))),
            ("domains", Some("[\"localhost\"]".to_owned())),
        ],
    );
    section(
        "[nfs]",
        &[
            ("listen", one(values.one(Setting::Nfs).map(str::to_owned))),
            ("exports", Some(format!("[{}]", list(values.all(Setting::NfsExport))))),
        ],
    );
    let upstreams = values.all(Setting::RegistryUpstream);
    section(
        "[registry]",
        &[
            ("listen", one(values.one(Setting::Registry).map(str::to_owned))),
            ("upstreams", (!upstreams.is_empty()).then(|| format!("[{}]", list(upstreams)))),
            ("size", of_text(Setting::RegistrySize)),
        ],
    );
    let name = match values.one(Setting::Name) {
        Some(name) => name.to_owned(),
        None => daemon::default_name(&known.dir)?,
    };
    let labels = values.labels();
    let label = |text: &str| (!text.is_empty()).then(|| quoted(text));
    // The file has whole seconds: a shorter silence than asked for must not count.
    let grace = values.span(Setting::Grace).map(|span| span.as_millis().div_ceil(1000).max(1).to_string());
    section(
        "[peers]",
        &[
            ("listen", one(peers(known)?)),
            ("name", Some(quoted(&name))),
            ("cell", label(&labels.cell)),
            ("tor", label(&labels.tor)),
            ("power", label(&labels.power)),
            ("grace_s", grace),
        ],
    );
    section("[admin]", &[("listen", listen(Setting::Admin, known.ports.admin).as_deref().map(quoted))]);
    match Config::parse(&text) {
        Ok(_) => Ok(text),
        Err(fault) => Err(Failure::new(format!("the settings make no configuration: {}", fault.told(&text)))),
    }
}

/// Where others reach the node: a port that was chosen stays.
fn peers(known: &Known) -> Result<Option<String>, Failure> {
    let host = daemon::default_host(&known.dir)?;
    let given: Option<SocketAddr> = known.settings.values.parsed(Setting::Peers);
    let address = match (given, known.ports.peers) {
        (Some(address), Some(port)) if address.port() == 0 => Some(SocketAddr::new(address.ip(), port)),
        (Some(address), _) => Some(address),
        (None, port) => port.map(|port| SocketAddr::new(host, port)),
    };
    Ok(address.map(|address| address.to_string()))
}
