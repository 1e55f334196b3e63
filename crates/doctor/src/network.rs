//! The interfaces that a node listens on: link, MTU, bonds, IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use crate::disk::pci_above;
use crate::drives;
use crate::finding::{Fault, Notes, Verdict};
use crate::machine::{Gap, Machine, if_there};
use crate::plan::Plan;

const NET: &str = "/sys/class/net";
const INET6: &str = "/proc/net/if_inet6";
const ROUTE: &str = "/proc/net/route";
const FIB: &str = "/proc/net/fib_trie";
const IPV6_DISABLED: &str = "/proc/sys/net/ipv6/conf/all/disable_ipv6";

const OPERATIONAL_STATES: [&str; 7] =
    ["up", "down", "unknown", "dormant", "lowerlayerdown", "testing", "notpresent"];

/// Frames of this size and more are jumbo.
const MTU_JUMBO: u32 = 8_900;
/// From this on the number of packets matters, in Mb/s.
const SPEED_FAST: i64 = 25_000;
/// Interfaces that are looked at.
const INTERFACES_MAX: usize = 256;

/// An interface that the node uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// As the kernel calls it.
    pub name: String,
    /// Its PCI function, if it is a card.
    pub pci: Option<PathBuf>,
}

/// The interfaces that the addresses of a plan are on. An address that stands for all is on every card that is up.
pub fn interfaces(machine: &Machine, plan: &Plan) -> Vec<Interface> {
    let mut names: Vec<String> = Vec::new();
    for address in plan.addresses.iter().filter(|address| !address.is_loopback()) {
        let found = if address.is_unspecified() {
            cards_up(machine)
        } else {
            interface_of(machine, *address).into_iter().flatten().collect()
        };
        names.extend(found);
    }
    names.sort();
    names.dedup();
    names.truncate(INTERFACES_MAX);
    let with_pci = |name: String| {
        let pci = machine.real(format!("{NET}/{name}/device")).ok().and_then(|path| pci_above(&path));
        Interface { name, pci }
    };
    names.into_iter().map(with_pci).collect()
}

fn cards_up(machine: &Machine) -> Vec<String> {
    let names = machine.names(NET).unwrap_or_default().into_iter();
    let is_up = |name: &String| {
        machine.has(format!("{NET}/{name}/device"))
            && machine.word(format!("{NET}/{name}/operstate")).is_ok_and(|state| state == "up")
    };
    names.filter(is_up).collect()
}

/// The interface with an address. Of version 4 the kernel lists networks and not addresses in a form that is easily read:
/// the one whose network holds it is meant.
fn interface_of(machine: &Machine, address: IpAddr) -> Result<Option<String>, Gap> {
    match address {
        IpAddr::V6(address) => {
            Ok(inet6(machine)?.into_iter().find(|own| own.address == address).map(|own| own.interface))
        }
        IpAddr::V4(address) => {
            let text = machine.text(ROUTE)?;
            let routes = text.lines().skip(1).filter_map(route);
            let holding =
                routes.filter(|(_, network, mask)| *mask != 0 && u32::from(address) & mask == *network);
            Ok(holding.max_by_key(|(_, _, mask)| *mask).map(|(name, _, _)| name))
        }
    }
}

/// `eth0 0000A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0`: numbers as they lie in memory.
fn route(line: &str) -> Option<(String, u32, u32)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok().map(u32::swap_bytes);
    Some(((*fields.first()?).to_owned(), number(1)?, number(7)?))
}

/// An address of version 6 of this machine.
struct Own {
    address: Ipv6Addr,
    flags: u32,
    interface: String,
}

/// `fe800000000000000000000000000001 02 40 20 80 eth0`
fn inet6(machine: &Machine) -> Result<Vec<Own>, Gap> {
    let text = machine.text(INET6)?;
    let own = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address = Ipv6Addr::from(u128::from_str_radix(fields.first()?, 16).ok()?);
        let flags = u32::from_str_radix(fields.get(4)?, 16).ok()?;
        Some(Own { address, flags, interface: (*fields.get(5)?).to_owned() })
    };
    Ok(text.lines().filter_map(own).collect())
}

/// Makes the checks.
pub fn check(machine: &Machine, plan: &Plan, interfaces: &[Interface], notes: &mut Notes) {
    for address in plan.addresses.iter().filter(|address| !address.is_loopback()) {
        notes.judge("network.address", address.to_string(), known(machine, *address));
        if let IpAddr::V6(address) = address {
            notes.judge("network.ipv6", address.to_string(), ipv6(machine, *address));
        }
    }
    for interface in interfaces {
        notes.judge("network.link", interface.name.clone(), link(machine, interface));
        notes.judge("network.mtu", interface.name.clone(), mtu(machine, interface));
        if machine.has(format!("{NET}/{}/bonding", interface.name)) {
            notes.judge("network.bond", interface.name.clone(), bond(machine, interface));
        }
        if let Some(pci) = interface.pci.as_ref().filter(|pci| drives::has_link(machine, pci)) {
            notes.judge("network.pcie", interface.name.clone(), drives::link(machine, pci, &interface.name));
        }
    }
    if interfaces.len() > 1 {
        notes.judge("network.mtu_equal", "", equal_mtu(machine, interfaces));
    }
}

fn known(machine: &Machine, address: IpAddr) -> Verdict {
    let is_own = match address {
        address if address.is_unspecified() => true,
        IpAddr::V6(address) => inet6(machine)?.iter().any(|own| own.address == address),
        IpAddr::V4(address) => {
            let table = machine.text(FIB)?;
            if !table.contains("Local:") && !table.contains("Main:") {
                return Err(Gap::senseless(FIB, &table));
            }
            owns(&table, address)
        }
    };
    Ok((!is_own).then(|| {
        Fault::error(
            format!("this machine has no address {address}"),
            "the node cannot listen there, so it does not start",
        )
        .fix(format!("ip addr add {address}/PREFIX dev INTERFACE, or change `listen`"))
    }))
}

/// Whether a table of routes knows an address as one of this machine: `|-- 10.20.0.11`, then `/32 host LOCAL`.
fn owns(table: &str, address: Ipv4Addr) -> bool {
    let mut last = None;
    table.lines().any(|line| match line.split_once("-- ") {
        Some((_, text)) => {
            last = text.trim().parse::<Ipv4Addr>().ok();
            false
        }
        None => line.contains("/32 host LOCAL") && last == Some(address),
    })
}

fn ipv6(machine: &Machine, address: Ipv6Addr) -> Verdict {
    const TENTATIVE: u32 = 0x40;
    const DUPLICATE: u32 = 0x08;
    const DEPRECATED: u32 = 0x20;
    if if_there(machine.value::<u8>(IPV6_DISABLED))? == Some(1) {
        let fault = Fault::error(
            format!("{address} is to be listened on, and IPv6 is turned off"),
            "others are told an address that nobody answers on",
        );
        return Ok(Some(
            fault
                .fix("sysctl -w net.ipv6.conf.all.disable_ipv6=0, or use an address of version 4")
                .saw(IPV6_DISABLED, 1),
        ));
    }
    if address.is_unicast_link_local() {
        let fault = Fault::warning(
            format!("{address} is an address of one link"),
            "other nodes need the name of their own interface with it, so an address that is handed on leads nowhere",
        );
        return Ok(Some(fault.fix("listen on a global or unique local address")));
    }
    if address.is_unspecified() {
        return Ok(None);
    }
    let Some(own) = inet6(machine)?.into_iter().find(|own| own.address == address) else { return Ok(None) };
    let what = match own.flags {
        flags if flags & DUPLICATE != 0 => "another machine has it, too",
        flags if flags & TENTATIVE != 0 => "it is not checked for duplicates yet",
        flags if flags & DEPRECATED != 0 => "it is deprecated, new connections avoid it",
        _ => return Ok(None),
    };
    let fault = Fault::warning(
        format!("{address}: {what}"),
        "connections fail, or silently take another address or version 4",
    );
    Ok(Some(
        fault
            .fix(format!("ip -6 addr show dev {}", own.interface))
            .saw(INET6, format!("flags {:#x}", own.flags)),
    ))
}

fn link(machine: &Machine, interface: &Interface) -> Verdict {
    let name = &interface.name;
    let file = format!("{NET}/{name}/operstate");
    let state = machine.one_of(&file, &OPERATIONAL_STATES)?;
    // Tunnels and some virtual interfaces do not know; then they are likely up.
    Ok((!matches!(state, "up" | "unknown")).then(|| {
        Fault::error(
            format!("{name} is {state}"),
            "the node listens where nobody can reach it: others call it down",
        )
        .fix(format!("ip link set {name} up; ethtool {name}"))
        .saw(file, state)
    }))
}

fn mtu(machine: &Machine, interface: &Interface) -> Verdict {
    let name = &interface.name;
    let file = format!("{NET}/{name}/mtu");
    let mtu: u32 = machine.value(&file)?;
    // Virtual cards have no speed, or refuse to tell it.
    let speed = machine.value::<i64>(format!("{NET}/{name}/speed")).unwrap_or(-1);
    Ok((speed >= SPEED_FAST && mtu < MTU_JUMBO).then(|| {
        Fault::warning(
            format!("{name} has {} Gb/s and an MTU of {mtu}", speed / 1_000),
            "six times as many packets as with 9000, and the cores to handle them; switches and all nodes have to agree",
        )
        .fix(format!("ip link set {name} mtu 9000, on every node and switch port; then: ping -M do -s 8972 OTHER-NODE"))
        .saw(file, mtu)
    }))
}

/// Cards of the same speed are taken for rails of one network; one for management may differ.
fn equal_mtu(machine: &Machine, interfaces: &[Interface]) -> Verdict {
    let mut found: Vec<(i64, u32, &str)> = Vec::new();
    for interface in interfaces {
        let speed = machine.value(format!("{NET}/{}/speed", interface.name)).unwrap_or(-1);
        found.push((speed, machine.value(format!("{NET}/{}/mtu", interface.name))?, &interface.name));
    }
    found.sort_unstable();
    let differs =
        |pair: &[(i64, u32, &str)]| pair[0].0 == pair[1].0 && pair[0].0 > 0 && pair[0].1 != pair[1].1;
    let Some(pair) = found.windows(2).find(|pair| differs(pair)) else { return Ok(None) };
    let list = pair.iter().map(|(_, mtu, name)| format!("{name} {mtu}")).collect::<Vec<_>>().join(", ");
    let fault = Fault::warning(
        format!("the rails have different MTUs: {list}"),
        "the same message fits on one rail and is cut, or lost, on the other",
    );
    Ok(Some(fault.fix(format!("ip link set {} mtu {}", pair[0].2, pair[1].1))))
}

fn bond(machine: &Machine, interface: &Interface) -> Verdict {
    let name = &interface.name;
    let slaves = machine.word(format!("{NET}/{name}/bonding/slaves"))?;
    let with_rdma: Vec<&str> = slaves
        .split_whitespace()
        .filter(|slave| machine.has(format!("{NET}/{slave}/device/infiniband")))
        .collect();
    Ok((with_rdma.len() > 1).then(|| {
        Fault::warning(
            format!("{name} is a bond of the RDMA cards {}", with_rdma.join(", ")),
            "a bond takes their own addresses and GIDs away, so RDMA uses one card; Stoker uses several addresses side by side without one",
        )
        .fix("bond macvlans on the cards instead, let the cards keep their addresses, and list these in [peers] listen")
        .saw(format!("{NET}/{name}/bonding/slaves"), &slaves)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine() {
        let table = "Local:\n  +-- 10.20.0.0/24 2 0 2\n     |-- 10.20.0.0\n        /24 link UNICAST\n     |-- 10.20.0.11\n        /32 host LOCAL\n";
        assert!(owns(table, Ipv4Addr::new(10, 20, 0, 11)));
        assert!(!owns(table, Ipv4Addr::new(10, 20, 0, 0)));
        assert!(!owns("/32 host LOCAL", Ipv4Addr::UNSPECIFIED));
    }

    #[test]
    fn routes_are_read_as_they_lie_in_memory() {
        let line = "eth0\t0000140A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0";
        let expect = (u32::from(Ipv4Addr::new(10, 20, 0, 0)), u32::from(Ipv4Addr::new(255, 255, 255, 0)));
        assert_eq!(route(line), Some(("eth0".to_owned(), expect.0, expect.1)));
        for line in ["", "eth0", "eth0 x 0 0 0 0 0 0", "eth0 1 2 3 4 5 6"] {
            assert_eq!(route(line), None, "{line}");
        }
    }
}
