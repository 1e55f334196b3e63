//! Cores by their absolute numbers, as the kernel counts them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::machine::{Gap, Machine};

/// More cores than any machine has.
const CORES_MAX: u32 = 8_192;
/// More NUMA nodes than any machine has.
const NODES_MAX: usize = 1_024;

/// A set of cores, written `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(BTreeSet<u32>);

/// Text that is no list of cores.
#[derive(Debug, PartialEq, Eq)]
pub struct NoList;

impl FromStr for CpuList {
    type Err = NoList;

    fn from_str(text: &str) -> Result<CpuList, NoList> {
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|core| *core < CORES_MAX);
        let mut cores = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first).ok_or(NoList)?, number(last).ok_or(NoList)?);
            if first > last {
                return Err(NoList);
            }
            cores.extend(first..=last);
        }
        Ok(CpuList(cores))
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(cores: I) -> CpuList {
        CpuList(cores.into_iter().filter(|core| *core < CORES_MAX).collect())
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for core in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *core => *last = *core,
                _ => ranges.push((*core, *core)),
            }
        }
        let text = |(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        f.write_str(&ranges.iter().map(text).collect::<Vec<_>>().join(","))
    }
}

impl CpuList {
    /// Whether a core is in it.
    pub fn contains(&self, core: u32) -> bool {
        self.0.contains(&core)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Its cores, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Those that another has, too.
    pub fn common(&self, other: &CpuList) -> CpuList {
        self.0.intersection(&other.0).copied().collect()
    }

    /// Those that another does not have.
    pub fn without(&self, other: &CpuList) -> CpuList {
        self.0.difference(&other.0).copied().collect()
    }
}

/// A list in a file. An empty file is an empty list: a node may have memory and no cores.
pub fn list(machine: &Machine, path: &str) -> Result<CpuList, Gap> {
    let text = machine.text(path)?;
    text.parse().map_err(|NoList| Gap::senseless(path, &text))
}

/// The hardware threads of a core's physical core, itself among them.
pub fn siblings(machine: &Machine, core: u32) -> Result<CpuList, Gap> {
    list(machine, &format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))
}

/// The cores of each NUMA node. A machine without NUMA is one node.
pub fn nodes(machine: &Machine) -> Result<BTreeMap<u32, CpuList>, Gap> {
    let mut nodes = BTreeMap::new();
    let names = match machine.names("/sys/devices/system/node") {
        Err(Gap::Missing(_)) => return Ok([(0, list(machine, "/sys/devices/system/cpu/online")?)].into()),
        names => names?,
    };
    for name in names {
        let Some(node) = name.strip_prefix("node").and_then(|number| number.parse().ok()) else { continue };
        if nodes.len() < NODES_MAX {
            nodes.insert(node, list(machine, &format!("/sys/devices/system/node/{name}/cpulist"))?);
        }
    }
    match nodes.is_empty() {
        true => Err(Gap::Missing("/sys/devices/system/node/node0".into())),
        false => Ok(nodes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_written() {
        for (text, expect) in [
            ("0-3,8", Some("0-3,8")),
            (" 4,2-3,3\n", Some("2-4")),
            ("", Some("")),
            ("3-1", None),
            ("a", None),
            ("0-99999999999", None),
            ("0-4294967295", None),
            ("1-", None),
        ] {
            let list = text.parse::<CpuList>().ok().map(|list| list.to_string());
            assert_eq!(list.as_deref(), expect, "{text}");
        }
    }
}
