//! RDMA devices: whether their ports are up, at the speed of their like, and which GID leads out of each.

use std::net::Ipv6Addr;

use crate::finding::{Fault, Notes, Verdict};
use crate::machine::{Gap, Machine, if_there};

const DEVICES: &str = "/sys/class/infiniband";
/// Entries of a port's table of GIDs that are looked at.
const GIDS_MAX: usize = 256;

const PORT_STATES: [&str; 6] = ["0: NOP", "1: DOWN", "2: INIT", "3: ARMED", "4: ACTIVE", "5: ACTIVE_DEFER"];
const LINK_LAYERS: [&str; 2] = ["InfiniBand", "Ethernet"];

/// A port that is up.
struct Port {
    /// `mlx5_0/1`
    name: String,
    is_ethernet: bool,
    /// In Gb/s.
    rate: u32,
    board: String,
    /// For RoCE: the first entry of version 2 with an address that is routed.
    gid: Option<usize>,
}

/// Makes the checks.
pub fn check(machine: &Machine, notes: &mut Notes) {
    let devices = match machine.names(DEVICES) {
        Err(Gap::Missing(_)) => return,
        Err(gap) => return notes.judge("rdma.port", "", Err(gap)),
        Ok(devices) => devices,
    };
    let mut up = Vec::new();
    for device in devices {
        let ports = match machine.names(format!("{DEVICES}/{device}/ports")) {
            Ok(ports) => ports,
            Err(gap) => {
                notes.judge("rdma.port", device, Err(gap));
                continue;
            }
        };
        for number in ports {
            let name = format!("{device}/{number}");
            let verdict = port_state(machine, &device, &number);
            let is_up = matches!(verdict, Ok(None));
            notes.judge("rdma.port", name.clone(), verdict);
            if is_up {
                match port(machine, &device, &number, name.clone()) {
                    Ok(port) => up.push(port),
                    Err(gap) => notes.judge("rdma.gid", name, Err(gap)),
                }
            }
        }
    }
    for port in &up {
        notes.judge("rdma.rate", port.name.clone(), Ok(rate(port, &up)));
    }
    let roce: Vec<&Port> = up.iter().filter(|port| port.is_ethernet).collect();
    for port in &roce {
        notes.judge("rdma.gid", port.name.clone(), Ok(routed(port)));
    }
    if roce.len() > 1 {
        notes.judge("rdma.gid_index", "", Ok(same_index(&roce)));
    }
}

fn base(device: &str, number: &str) -> String {
    format!("{DEVICES}/{device}/ports/{number}")
}

/// `4: ACTIVE`
fn port_state(machine: &Machine, device: &str, number: &str) -> Verdict {
    let file = format!("{}/state", base(device, number));
    let state = machine.one_of(&file, &PORT_STATES)?;
    let physical =
        if_there(machine.word(format!("{}/phys_state", base(device, number))))?.unwrap_or_default();
    if state == "4: ACTIVE" {
        return Ok(None);
    }
    // A port without a cable, or turned off, is likely meant to be.
    let is_spare = state == "1: DOWN" && !physical.ends_with("LinkUp");
    let what = format!("port {number} of {device} is {state} ({physical})");
    let fault = match is_spare {
        true => Fault::info(what, "nothing goes over it; if it should, a cable or a switch port is missing"),
        false => Fault::warning(
            what,
            "the link is there and not in use: on InfiniBand the subnet manager did not take it in",
        ),
    };
    Ok(Some(fault.fix(format!("ibstat {device}; rdma link show {device}/{number}; systemctl status opensm on the subnet manager")).saw(file, state)))
}

fn port(machine: &Machine, device: &str, number: &str, name: String) -> Result<Port, Gap> {
    let base = base(device, number);
    let file = format!("{base}/rate");
    let text = machine.word(&file)?;
    let rate = text.split_whitespace().next().and_then(|rate| rate.parse::<f64>().ok());
    let rate = rate.ok_or_else(|| Gap::senseless(file, &text))? as u32;
    let is_ethernet = machine.one_of(format!("{base}/link_layer"), &LINK_LAYERS)? == "Ethernet";
    let board = if_there(machine.word(format!("{DEVICES}/{device}/board_id")))?.unwrap_or_default();
    let gid = if is_ethernet { gid(machine, &base)? } else { None };
    Ok(Port { name, is_ethernet, rate, board, gid })
}

/// The first entry that routers let through: version 2, and no address of the link alone.
fn gid(machine: &Machine, base: &str) -> Result<Option<usize>, Gap> {
    let mut entries: Vec<usize> =
        machine.names(format!("{base}/gids"))?.iter().filter_map(|name| name.parse().ok()).collect();
    entries.sort_unstable();
    for index in entries.into_iter().take(GIDS_MAX) {
        // The kernel refuses to tell the kind of an empty entry.
        let Ok(kind) = machine.word(format!("{base}/gid_attrs/types/{index}")) else { continue };
        let address: Ipv6Addr = match machine.value(format!("{base}/gids/{index}")) {
            Ok(address) => address,
            Err(_) => continue,
        };
        let is_routed = !address.is_unspecified() && !address.is_unicast_link_local();
        if kind == "RoCE v2" && is_routed {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn rate(port: &Port, all: &[Port]) -> Option<Fault> {
    let alike = all.iter().filter(|other| other.board == port.board && other.is_ethernet == port.is_ethernet);
    let best = alike.map(|other| other.rate).max()?;
    (port.rate < best).then(|| {
        Fault::warning(
            format!("{} runs at {} Gb/s, others of its kind at {best}", port.name, port.rate),
            "a bad cable or transceiver drops lanes without an error; the slowest rail holds the others up",
        )
        .fix(format!(
            "mlxlink -d {} ; reseat or replace the cable",
            port.name.split('/').next().unwrap_or_default()
        ))
        .saw("rate", port.rate)
    })
}

fn routed(port: &Port) -> Option<Fault> {
    port.gid.is_none().then(|| {
        Fault::warning(
            format!("{} has no GID of RoCE v2 with a routed address", port.name),
            "RDMA ends at the first router, or falls back to another network without a word",
        )
        .fix("give the interface an address (ip addr add), then: show_gids")
    })
}

fn same_index(ports: &[&Port]) -> Option<Fault> {
    let of = |port: &&Port| Some((port.name.clone(), port.gid?));
    let found: Vec<(String, usize)> = ports.iter().filter_map(of).collect();
    let first = found.first()?.1;
    let list = || found.iter().map(|(name, index)| format!("{name} {index}")).collect::<Vec<_>>().join(", ");
    found.iter().any(|(_, index)| *index != first).then(|| {
        Fault::warning(
            format!("the GID that leads out has not the same index everywhere: {}", list()),
            "one number (NCCL_IB_GID_INDEX, FI_VERBS_GID_IDX) stands for all devices: on some it means another address or another \
             version of RoCE. The order depends on which address came first at boot",
        )
        .fix("give all interfaces the same kinds of addresses, bring them up in the same order, and check with show_gids after a boot")
    })
}
