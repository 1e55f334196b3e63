//! The settings of `up`: what each is called, and where the value of each comes from. (D99)
//!
//! A value is text that was checked when it was taken: from a flag, from a variable of the environment, from the [file] that an
//! earlier start left in the node's directory, in this order; otherwise the default counts. Nothing else may decide that order.

pub mod file;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use stoker_gateway_nfs::Export;
use stoker_node::Labels;
use stoker_registry::Upstream;
use stoker_store::LakeMode;

use crate::failure::Failure;
use crate::tls::check_name;
use crate::{size, span};

/// A lake mode as people write it.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Nobody else writes there.
    Owned,
    /// Others write there too.
    Shared,
    /// Others write there, and we must not.
    ReadOnly,
}

impl From<Mode> for LakeMode {
    fn from(mode: Mode) -> LakeMode {
        match mode {
            Mode::Owned => LakeMode::Owned,
            Mode::Shared => LakeMode::Shared,
            Mode::ReadOnly => LakeMode::ReadOnly,
        }
    }
}

/// A setting that lasts.
#[expect(missing_docs, reason = "named after the flags of `stoker up`, which explains them")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Setting {
    Name,
    Domain,
    Lake,
    LakeMode,
    Drive,
    Size,
    Cores,
    Memory,
    S3,
    Nfs,
    NfsExport,
    Registry,
    RegistryUpstream,
    RegistrySize,
    Admin,
    Peers,
    Grace,
    Tls,
    TlsName,
    TlsCert,
    TlsKey,
    Nodes,
    Cells,
}

impl Setting {
    /// In the order in which they are told.
    pub const ALL: [Setting; 23] = [
        Setting::Name,
        Setting::Domain,
        Setting::Lake,
        Setting::LakeMode,
        Setting::Drive,
        Setting::Size,
        Setting::Cores,
        Setting::Memory,
        Setting::S3,
        Setting::Nfs,
        Setting::NfsExport,
        Setting::Registry,
        Setting::RegistryUpstream,
        Setting::RegistrySize,
        Setting::Admin,
        Setting::Peers,
        Setting::Grace,
        Setting::Tls,
        Setting::TlsName,
        Setting::TlsCert,
        Setting::TlsKey,
        Setting::Nodes,
        Setting::Cells,
    ];

    /// What it is called: `--NAME` on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Setting::Name => "name",
            Setting::Domain => "domain",
            Setting::Lake => "lake",
            Setting::LakeMode => "lake-mode",
            Setting::Drive => "drive",
            Setting::Size => "size",
            Setting::Cores => "cores",
            Setting::Memory => "memory",
            Setting::S3 => "s3",
            Setting::Nfs => "nfs",
            Setting::NfsExport => "nfs-export",
            Setting::Registry => "registry",
            Setting::RegistryUpstream => "registry-upstream",
            Setting::RegistrySize => "registry-size",
            Setting::Admin => "admin",
            Setting::Peers => "peers",
            Setting::Grace => "grace",
            Setting::Tls => "tls",
            Setting::TlsName => "tls-name",
            Setting::TlsCert => "tls-cert",
            Setting::TlsKey => "tls-key",
            Setting::Nodes => "nodes",
            Setting::Cells => "cells",
        }
    }

    /// The one that is called so.
    pub fn named(name: &str) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.name() == name)
    }

    /// Its variable in the environment.
    pub fn variable(self) -> String {
        format!("STOKER_UP_{}", self.name().replace('-', "_").to_ascii_uppercase())
    }

    /// May be given many times.
    fn is_list(self) -> bool {
        matches!(self, Setting::Drive | Setting::NfsExport | Setting::RegistryUpstream | Setting::TlsName)
    }

    /// The text as it is kept: places are absolute, so that the next start may be elsewhere.
    fn taken(self, text: &str) -> Result<String, String> {
        fn checked<T: FromStr>(text: &str, expected: &str) -> Result<(), String> {
            text.parse::<T>().map(|_| ()).map_err(|_| format!("expected {expected}"))
        }
        if text.is_empty() {
            return Err("nothing is given".to_owned());
        }
        match self {
            Setting::Name => {}
            Setting::Domain => parse_labels(text).map(|_| ())?,
            Setting::Lake => return lake_url(text),
            Setting::Drive | Setting::TlsCert | Setting::TlsKey => return absolute(Path::new(text)),
            Setting::Tls if !["on", "off"].contains(&text) => return Err("expected on or off".to_owned()),
            Setting::Tls => {}
            Setting::TlsName => check_name(text)?,
            Setting::LakeMode => <Mode as clap::ValueEnum>::from_str(text, false).map(|_| ())?,
            Setting::Size | Setting::Memory | Setting::RegistrySize => size::parse(text).map(|_| ())?,
            Setting::Cores | Setting::Nodes | Setting::Cells => {
                checked::<NonZeroUsize>(text, "a number from 1 on")?
            }
            Setting::S3 | Setting::Nfs | Setting::Registry | Setting::Admin | Setting::Peers => {
                checked::<SocketAddr>(text, "an address, such as 127.0.0.1:9000")?;
            }
            Setting::NfsExport => text.parse::<Export>().map(|_| ())?,
            Setting::RegistryUpstream => Upstream::parse(text, None).map(|_| ())?,
            Setting::Grace => span::parse(text).map(|_| ())?,
        }
        Ok(text.to_owned())
    }
}

/// Values of some settings, each checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Values(BTreeMap<Setting, Vec<String>>);

impl Values {
    /// Takes the values of a setting; says what is wrong with one.
    pub fn set(&mut self, setting: Setting, texts: &[String]) -> Result<(), String> {
        if texts.len() > 1 && !setting.is_list() {
            return Err("it is given more than once".to_owned());
        }
        let taken: Vec<String> = texts.iter().map(|text| setting.taken(text)).collect::<Result<_, _>>()?;
        if !taken.is_empty() {
            self.0.insert(setting, taken);
        }
        Ok(())
    }

    /// Takes one away; whether it was there.
    pub fn unset(&mut self, setting: Setting) -> bool {
        self.0.remove(&setting).is_some()
    }

    /// Whether it is set.
    pub fn has(&self, setting: Setting) -> bool {
        self.0.contains_key(&setting)
    }

    /// All of a setting; none if it is not set.
    pub fn all(&self, setting: Setting) -> &[String] {
        self.0.get(&setting).map_or(&[], Vec::as_slice)
    }

    /// The only one of a setting.
    pub fn one(&self, setting: Setting) -> Option<&str> {
        self.all(setting).first().map(String::as_str)
    }

    /// The value of a setting that the standard library can read.
    pub fn parsed<T: FromStr>(&self, setting: Setting) -> Option<T> {
        self.one(setting).map(|text| text.parse().ok().expect("checked when it was taken"))
    }

    /// Bytes.
    pub fn bytes(&self, setting: Setting) -> Option<u64> {
        self.one(setting).map(|text| size::parse(text).expect("checked when it was taken"))
    }

    /// A span of time.
    pub fn span(&self, setting: Setting) -> Option<Duration> {
        self.one(setting).map(|text| span::parse(text).expect("checked when it was taken"))
    }

    /// Where the node stands.
    pub fn labels(&self) -> Labels {
        self.one(Setting::Domain)
            .map_or_else(Labels::default, |text| parse_labels(text).expect("checked when it was taken"))
    }

    /// Who else writes to the lake.
    pub fn lake_mode(&self) -> Option<Mode> {
        let parse =
            |text| <Mode as clap::ValueEnum>::from_str(text, false).expect("checked when it was taken");
        self.one(Setting::LakeMode).map(parse)
    }

    /// The drives that a person named.
    pub fn drives(&self) -> Vec<PathBuf> {
        self.all(Setting::Drive).iter().map(PathBuf::from).collect()
    }

    /// What the environment says.
    pub fn of_environment() -> Result<Values, Failure> {
        let mut values = Values::default();
        for setting in Setting::ALL {
            let name = setting.variable();
            let Some(text) = std::env::var_os(&name).filter(|text| !text.is_empty()) else { continue };
            let text = text.to_string_lossy();
            let texts: Vec<String> = match setting.is_list() {
                true => text.split(';').map(str::to_owned).collect(),
                false => vec![text.into_owned()],
            };
            values.set(setting, &texts).map_err(|wrong| {
                Failure::new(format!("{name}: {wrong}"))
                    .hint(format!("`stoker up --help` says what --{} can be", setting.name()))
            })?;
        }
        Ok(values)
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// On the command line.
    Flag,
    /// In the environment.
    Variable,
    /// In the file that an earlier start left.
    File,
    /// The cluster that the node joins.
    Cluster,
    /// Nowhere.
    Default,
}

/// What counts, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effective {
    /// Of each setting.
    pub values: Values,
    origins: BTreeMap<Setting, Origin>,
}

impl Effective {
    /// The first that has a setting counts.
    pub fn of(flags: &Values, variables: &Values, file: &Values) -> Effective {
        let mut effective = Effective { values: Values::default(), origins: BTreeMap::new() };
        let layers = [(Origin::File, file), (Origin::Variable, variables), (Origin::Flag, flags)];
        for (origin, layer) in layers {
            for (setting, texts) in &layer.0 {
                effective.values.0.insert(*setting, texts.clone());
                effective.origins.insert(*setting, origin);
            }
        }
        effective
    }

    /// What the cluster says of the lake, unless a person does.
    pub fn take_lake_of_cluster(&mut self, url: &str) -> Result<(), Failure> {
        if matches!(self.origin(Setting::Lake), Origin::Flag | Origin::Variable) {
            return Ok(());
        }
        let failed = |wrong| Failure::new(format!("the lake of the cluster: {wrong}"));
        self.values.set(Setting::Lake, &[url.to_owned()]).map_err(failed)?;
        self.origins.insert(Setting::Lake, Origin::Cluster);
        Ok(())
    }

    /// Where the value of a setting comes from.
    pub fn origin(&self, setting: Setting) -> Origin {
        self.origins.get(&setting).copied().unwrap_or(Origin::Default)
    }

    /// One line that says what comes from where; none if everything was said on the command line or by nobody.
    pub fn summary(&self, dir: &Path) -> Option<String> {
        let of = |origin: Origin, value: &dyn Fn(Setting) -> String| {
            let texts: Vec<String> = Setting::ALL
                .into_iter()
                .filter(|setting| self.origin(*setting) == origin)
                .map(value)
                .collect();
            (!texts.is_empty()).then(|| texts.join(", "))
        };
        let with_value =
            |setting: Setting| format!("{} {}", setting.name(), self.values.all(setting).join(" "));
        let file = of(Origin::File, &with_value);
        let variables =
            of(Origin::Variable, &|setting| format!("{} ({})", with_value(setting), setting.variable()));
        if file.is_none() && variables.is_none() {
            return None;
        }
        let parts = [
            of(Origin::Flag, &|setting| format!("--{}", setting.name()))
                .map(|texts| format!("from flags: {texts}")),
            variables.map(|texts| format!("from the environment: {texts}")),
            file.map(|texts| format!("from {}: {texts}", dir.join(file::FILE).display())),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        Some(format!("settings {}; the rest by default", parts.join("; ")))
    }
}

/// Labels as people write them: `cell=NAME,tor=SWITCH,power=FEED`.
pub fn parse_labels(text: &str) -> Result<Labels, String> {
    let mut labels = Labels::default();
    for label in text.split(',').filter(|label| !label.is_empty()) {
        match label.split_once('=') {
            Some(("cell", value)) => labels.cell = value.to_owned(),
            Some(("tor", value)) => labels.tor = value.to_owned(),
            Some(("power", value)) => labels.power = value.to_owned(),
            _ => return Err(format!("`{label}`: expected cell=NAME, tor=SWITCH or power=FEED")),
        }
    }
    Ok(labels)
}

/// The same the other way round.
pub fn labels_text(labels: &Labels) -> String {
    let all = [("cell", &labels.cell), ("tor", &labels.tor), ("power", &labels.power)];
    let set = all.into_iter().filter(|(_, value)| !value.is_empty());
    set.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

/// A URL as it is, or the URL of a directory.
fn lake_url(text: &str) -> Result<String, String> {
    if text.contains("://") {
        return Ok(text.to_owned());
    }
    // A slip in a url must not become a directory of that name.
    for scheme in ["s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "file"] {
        let rest = text.strip_prefix(scheme).filter(|rest| rest.starts_with(':') || rest.starts_with("//"));
        if let Some(rest) = rest {
            let meant = format!("{scheme}://{}", rest.trim_start_matches([':', '/']));
            return Err(format!("`{text}` is not a lake; did you mean {meant}?"));
        }
    }
    absolute(Path::new(text)).map(|path| format!("file://{path}"))
}

fn absolute(path: &Path) -> Result<String, String> {
    let absolute = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    absolute.to_str().map(str::to_owned).ok_or_else(|| format!("{} is not text", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(all: &[(Setting, &str)]) -> Values {
        let mut values = Values::default();
        all.iter().for_each(|(setting, text)| values.set(*setting, &[(*text).to_owned()]).unwrap());
        values
    }

    #[test]
    fn flags_come_before_the_environment_and_that_before_the_file() {
        let flags = values(&[(Setting::Name, "by-flag")]);
        let variables = values(&[(Setting::Name, "by-variable"), (Setting::Memory, "1GiB")]);
        let file = values(&[(Setting::Name, "by-file"), (Setting::Memory, "2GiB"), (Setting::Cores, "3")]);
        let effective = Effective::of(&flags, &variables, &file);
        let check = |setting, text, origin| {
            assert_eq!(
                (effective.values.one(setting), effective.origin(setting)),
                (text, origin),
                "{setting:?}"
            );
        };
        check(Setting::Name, Some("by-flag"), Origin::Flag);
        check(Setting::Memory, Some("1GiB"), Origin::Variable);
        check(Setting::Cores, Some("3"), Origin::File);
        check(Setting::Grace, None, Origin::Default);
        assert_eq!(
            effective.summary(Path::new("/d")).unwrap(),
            "settings from flags: --name; from the environment: memory 1GiB (STOKER_UP_MEMORY); from /d/up.json: cores 3; the \
             rest by default"
        );
        assert_eq!(
            Effective::of(&flags, &Values::default(), &Values::default()).summary(Path::new("/d")),
            None
        );
    }

    #[test]
    fn every_setting_refuses_what_it_cannot_be() {
        let check = |setting: Setting, good: &str, bad: &str| {
            let mut values = Values::default();
            values
                .set(setting, &[good.to_owned()])
                .unwrap_or_else(|wrong| panic!("{setting:?} {good}: {wrong}"));
            assert!(values.set(setting, &[bad.to_owned()]).is_err(), "{setting:?} {bad}");
            assert_eq!(Setting::named(setting.name()), Some(setting));
        };
        for setting in Setting::ALL {
            match setting {
                Setting::Name => check(setting, "a", ""),
                Setting::Domain => check(setting, "tor=t1,power=p", "rack=7"),
                Setting::Lake | Setting::Drive | Setting::TlsCert | Setting::TlsKey => {
                    check(setting, "there", "")
                }
                Setting::Tls => check(setting, "on", "perhaps"),
                Setting::TlsName => check(setting, "s3.example.com", "https://s3"),
                Setting::LakeMode => check(setting, "read-only", "mine"),
                Setting::Size | Setting::Memory | Setting::RegistrySize => check(setting, "1GiB", "much"),
                Setting::Cores | Setting::Nodes | Setting::Cells => check(setting, "3", "0"),
                Setting::S3 | Setting::Nfs | Setting::Registry | Setting::Admin | Setting::Peers => {
                    check(setting, "[::1]:9", "here")
                }
                Setting::NfsExport => check(setting, "data:read-only", ":"),
                Setting::RegistryUpstream => check(setting, "https://ghcr.io", "ftp://ghcr.io"),
                Setting::Grace => check(setting, "30s", "soon"),
            }
        }
        for slip in ["s3//bucket", "s3:bucket", "s3:/bucket", "gs//b/p"] {
            assert!(lake_url(slip).unwrap_err().contains("did you mean"), "{slip}");
        }
        assert!(lake_url("s3").unwrap().starts_with("file:///"), "a directory may be called so");
        assert!(Values::default().set(Setting::Name, &["a".into(), "b".into()]).is_err());
        assert_eq!(labels_text(&parse_labels("power=p,cell=c").unwrap()), "cell=c,power=p");
    }
}
