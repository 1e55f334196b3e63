//! The registry door.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use stoker_registry::Upstream;

use super::value::{self, Size};
use crate::plan::RegistryPlan;

/// Images of other registries.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Registry {
    pub listen: Vec<SocketAddr>,
    pub upstreams: Vec<RegistryUpstream>,
    #[serde(deserialize_with = "value::optional")]
    pub ca: Option<PathBuf>,
    pub volume: String,
    pub size: Size,
    pub tag_s: u32,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry {
            listen: Vec::new(),
            upstreams: Vec::new(),
            ca: None,
            volume: "images".to_owned(),
            size: Size(100 << 30),
            tag_s: 300,
        }
    }
}

/// A registry that images come from.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(try_from = "String")]
pub struct RegistryUpstream(pub String);

impl TryFrom<String> for RegistryUpstream {
    type Error = String;

    fn try_from(text: String) -> Result<RegistryUpstream, String> {
        Upstream::parse(&text, None).map(|_| RegistryUpstream(text))
    }
}

impl Registry {
    /// What a node does with it.
    pub fn plan(&self) -> Result<RegistryPlan, String> {
        if !self.listen.is_empty() && self.upstreams.is_empty() {
            return Err("the registry has an address and no upstream to pull through from".to_owned());
        }
        let upstream = |one: &RegistryUpstream| Upstream::parse(&one.0, self.ca.clone());
        Ok(RegistryPlan {
            listen: self.listen.clone(),
            upstreams: self.upstreams.iter().map(upstream).collect::<Result<_, _>>()?,
            volume: self.volume.clone(),
            bytes_max: self.size.0,
            tag_age: Duration::from_secs(self.tag_s.into()),
        })
    }
}
