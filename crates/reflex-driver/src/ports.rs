//! The ports of network cards that carry a node's addresses: whether each has its link, and how often it lost it.
//!
//! Interfaces are found by their addresses and remembered: one that goes down loses its addresses on many machines, and must
//! not be forgotten for that. What cannot be read says nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use stoker_doctor::Machine;

use crate::sys;

const NET: &str = "/sys/class/net";
/// Ports that are looked at.
const PORTS_MAX: usize = 64;
/// Layers between an interface with an address and a card: VLANs on a bond on cards.
const LAYERS_MAX: usize = 4;
/// The type of the loopback, in the kernel's numbers.
const LOOPBACK: u32 = 772;
/// The flag of an interface that is turned on.
const TURNED_ON: u32 = 1;

/// States of an RDMA port that nothing passes in: down, or not taken in by the subnet manager. Others are sound or unknown.
const RDMA_DOWN: [&str; 3] = ["1:", "2:", "3:"];

/// How a port is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortState {
    /// As the kernel calls the interface.
    pub name: String,
    /// Packets can pass.
    pub is_up: bool,
    /// Times that the link went or came since the machine started, if the kernel counts them.
    pub carrier_changes: Option<u64>,
    /// For people: its state, speed and RDMA ports.
    pub detail: String,
}

/// Looks at ports.
pub struct Ports {
    machine: Machine,
    /// Interfaces that were found, and whether each is a card.
    known: Mutex<BTreeMap<String, bool>>,
}

impl Default for Ports {
    fn default() -> Ports {
        Ports::new(Path::new("/"))
    }
}

impl Ports {
    /// Of the machine whose `/` is that directory.
    pub fn new(root: &Path) -> Ports {
        Ports { machine: Machine::at(root), known: Mutex::default() }
    }

    /// The ports behind the addresses of this node, which may have a port number; one that stands for all is on every card
    /// that has an address. Reads files of the kernel, which does not wait.
    pub fn of_addresses(&self, addresses: &[String]) -> Vec<PortState> {
        let wanted: Vec<IpAddr> = addresses.iter().filter_map(|text| parse(text)).collect();
        let own = sys::interfaces::addresses().unwrap_or_default();
        let is_meant = |name: &str, address: &IpAddr| {
            wanted.iter().any(|wanted| match wanted.is_unspecified() {
                true => is_routed(address) && self.is_card(name),
                false => wanted == address,
            })
        };
        let mut names: Vec<String> =
            own.into_iter().filter(|(name, address)| is_meant(name, address)).map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        self.of_interfaces(&names)
    }

    /// The ports behind these interfaces, and behind those of earlier calls.
    pub fn of_interfaces(&self, names: &[String]) -> Vec<PortState> {
        let mut known = self.known.lock().unwrap();
        for name in names.iter().flat_map(|name| self.cards_below(name)) {
            if known.len() < PORTS_MAX || known.contains_key(&name) {
                let is_card = self.machine.has(net(&name, "device"));
                known.insert(name, is_card);
            }
        }
        known.iter().filter_map(|(name, is_card)| self.state(name, *is_card)).collect()
    }

    /// What the packets of an interface go over: the cards of a bond, the card of a VLAN, or the interface itself.
    fn cards_below(&self, name: &str) -> Vec<String> {
        let (mut cards, mut left) = (Vec::new(), vec![(name.to_owned(), 0)]);
        while let Some((name, layer)) = left.pop() {
            if self.machine.has(net(&name, "device")) {
                if !cards.contains(&name) && cards.len() < PORTS_MAX {
                    cards.push(name);
                }
                continue;
            }
            let below = self.machine.names(net(&name, "")).unwrap_or_default();
            let below = below.iter().filter_map(|entry| entry.strip_prefix("lower_"));
            if layer < LAYERS_MAX && left.len() < PORTS_MAX {
                left.extend(below.take(PORTS_MAX).map(|lower| (lower.to_owned(), layer + 1)));
            }
        }
        if cards.is_empty() && !self.is_loopback(name) && self.machine.has(net(name, "")) {
            cards.push(name.to_owned());
        }
        cards
    }

    fn is_loopback(&self, name: &str) -> bool {
        name == "lo" || self.machine.value::<u32>(net(name, "type")) == Ok(LOOPBACK)
    }

    /// A card, or a bond of cards. Bridges of containers have addresses, too, and no wire.
    fn is_card(&self, name: &str) -> bool {
        self.machine.has(net(name, "device")) || self.machine.has(net(name, "bonding"))
    }

    fn state(&self, name: &str, is_card: bool) -> Option<PortState> {
        if !self.machine.has(net(name, "")) {
            // A card that fell off its bus. Other interfaces are made and removed by programs.
            let is_gone = is_card && self.machine.names(NET).is_ok_and(|others| !others.is_empty());
            let detail = "the card is gone".to_owned();
            return is_gone.then(|| PortState {
                name: name.to_owned(),
                is_up: false,
                carrier_changes: None,
                detail,
            });
        }
        let (mut is_up, mut detail) = self.link(name)?;
        if let Ok(mbit) = self.machine.value::<i64>(net(name, "speed"))
            && mbit > 0
        {
            detail += &format!(", {} Gb/s", mbit as f64 / 1_000.0);
        }
        for (port, state) in self.rdma(name) {
            is_up &= !RDMA_DOWN.iter().any(|down| state.starts_with(down));
            detail += &format!(", RDMA {port} {state}");
        }
        let carrier_changes = self.machine.value(net(name, "carrier_changes")).ok();
        Some(PortState { name: name.to_owned(), is_up, carrier_changes, detail })
    }

    /// Whether there is a link, and in which words; none if nobody says.
    fn link(&self, name: &str) -> Option<(bool, String)> {
        let flags = self.machine.word(net(name, "flags")).ok();
        let flags = flags.and_then(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
        if flags.is_some_and(|flags| flags & TURNED_ON == 0) {
            return Some((false, "turned off".into()));
        }
        let carrier = self.machine.value::<u8>(net(name, "carrier")).ok();
        match self.machine.word(net(name, "operstate")).ok().as_deref() {
            Some("up") => Some((true, "up".into())),
            Some(state @ ("down" | "lowerlayerdown" | "notpresent" | "dormant" | "testing")) => {
                Some((false, state.to_owned()))
            }
            // Some drivers never tell their state; all tell the link.
            _ => match carrier? {
                0 => Some((false, "no link".into())),
                _ => Some((true, "link".into())),
            },
        }
    }

    /// Ports of the RDMA device of a card, with their states, such as `4: ACTIVE`.
    fn rdma(&self, name: &str) -> Vec<(String, String)> {
        let devices = self.machine.names(net(name, "device/infiniband")).unwrap_or_default();
        let number: Option<u32> = self.machine.value(net(name, "dev_port")).ok();
        let mut all = Vec::new();
        for device in devices.into_iter().take(PORTS_MAX) {
            let dir = PathBuf::from("/sys/class/infiniband").join(&device).join("ports");
            let ports = self.machine.names(&dir).unwrap_or_default();
            // With several ports on one function each interface has one of them, counted from 0 and from 1.
            let own = number.map(|number| (number + 1).to_string()).filter(|own| ports.contains(own));
            let is_own = |port: &&String| ports.len() == 1 || own.as_ref().is_none_or(|own| own == *port);
            for port in ports.iter().filter(is_own).take(PORTS_MAX) {
                let state = self.machine.word(dir.join(port).join("state"));
                all.extend(state.ok().map(|state| (format!("{device}/{port}"), state)));
            }
        }
        all
    }
}

fn net(name: &str, file: &str) -> PathBuf {
    Path::new(NET).join(name).join(file)
}

/// An address, with or without a port number.
fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

/// Not one that every link has by itself.
fn is_routed(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// An interface with some files; a card if it has an address on the bus.
    fn interface(root: &Path, name: &str, pci: Option<&str>, files: &[(&str, &str)]) {
        write(root, &format!("sys/class/net/{name}/ifindex"), "1\n");
        for (file, text) in files {
            write(root, &format!("sys/class/net/{name}/{file}"), &format!("{text}\n"));
        }
        if let Some(pci) = pci {
            let device = format!("sys/devices/pci0000:00/{pci}");
            std::fs::create_dir_all(root.join(&device)).unwrap();
            let _ = symlink(format!("/{device}"), root.join(format!("sys/class/net/{name}/device")));
        }
    }

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    fn state(name: &str, is_up: bool, carrier_changes: Option<u64>, detail: &str) -> PortState {
        PortState { name: name.into(), is_up, carrier_changes, detail: detail.into() }
    }

    #[test]
    fn cards_and_their_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let up = [
            ("operstate", "up"),
            ("carrier", "1"),
            ("carrier_changes", "7"),
            ("speed", "200000"),
            ("flags", "0x1003"),
        ];
        interface(root, "eth0", Some("0000:01:00.0"), &up);
        interface(
            root,
            "eth1",
            Some("0000:02:00.0"),
            &[("operstate", "down"), ("carrier_changes", "12"), ("speed", "-1")],
        );
        interface(root, "eth2", Some("0000:03:00.0"), &[("operstate", "down"), ("flags", "0x1002")]);
        interface(
            root,
            "eth3",
            Some("0000:04:00.0"),
            &[("operstate", "unknown"), ("carrier", "1"), ("speed", "2500")],
        );
        interface(root, "eth4", Some("0000:05:00.0"), &[("operstate", "unknown"), ("carrier", "0")]);
        // Nobody says anything of these.
        interface(root, "eth5", Some("0000:06:00.0"), &[("operstate", "unknown")]);
        interface(root, "eth6", Some("0000:07:00.0"), &[("operstate", "\u{fffd}"), ("carrier", "many")]);
        interface(root, "lo", None, &[("operstate", "unknown"), ("carrier", "1"), ("type", "772")]);
        interface(root, "lo9", None, &[("operstate", "up"), ("type", "772")]);
        let all = names(&["eth0", "eth1", "eth2", "eth3", "eth4", "eth5", "eth6", "lo", "lo9", "none"]);
        assert_eq!(
            Ports::new(root).of_interfaces(&all),
            [
                state("eth0", true, Some(7), "up, 200 Gb/s"),
                state("eth1", false, Some(12), "down"),
                state("eth2", false, None, "turned off"),
                state("eth3", true, None, "link, 2.5 Gb/s"),
                state("eth4", false, None, "no link"),
            ]
        );
    }

    #[test]
    fn rdma_ports_of_a_card() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let up = [("operstate", "up"), ("dev_port", "0")];
        interface(root, "eth0", Some("0000:01:00.0"), &up);
        interface(root, "eth1", Some("0000:02:00.0"), &up);
        interface(root, "eth9", Some("0000:04:00.0"), &up);
        interface(root, "ib0", Some("0000:03:00.0"), &up);
        interface(root, "ib1", Some("0000:03:00.0"), &[("operstate", "up"), ("dev_port", "1")]);
        for (pci, device, ports) in [
            ("0000:01:00.0", "mlx5_0", &[("1", "4: ACTIVE")][..]),
            ("0000:04:00.0", "odd_0", &[("1", "many")]),
            ("0000:02:00.0", "mlx5_1", &[("1", "1: DOWN")]),
            ("0000:03:00.0", "mlx4_0", &[("1", "4: ACTIVE"), ("2", "2: INIT")]),
        ] {
            std::fs::create_dir_all(root.join(format!("sys/devices/pci0000:00/{pci}/infiniband/{device}")))
                .unwrap();
            for (port, state) in ports {
                write(
                    root,
                    &format!("sys/class/infiniband/{device}/ports/{port}/state"),
                    &format!("{state}\n"),
                );
            }
        }
        assert_eq!(
            Ports::new(root).of_interfaces(&names(&["eth0", "eth1", "eth9", "ib0", "ib1"])),
            [
                state("eth0", true, None, "up, RDMA mlx5_0/1 4: ACTIVE"),
                state("eth1", false, None, "up, RDMA mlx5_1/1 1: DOWN"),
                state("eth9", true, None, "up, RDMA odd_0/1 many"),
                state("ib0", true, None, "up, RDMA mlx4_0/1 4: ACTIVE"),
                state("ib1", false, None, "up, RDMA mlx4_0/2 2: INIT"),
            ]
        );
    }

    #[test]
    fn what_is_below_a_bond_or_vlan_is_meant() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        interface(root, "eth0", Some("0000:01:00.0"), &[("operstate", "up")]);
        interface(root, "eth1", Some("0000:02:00.0"), &[("operstate", "down")]);
        interface(root, "bond0", None, &[("operstate", "up"), ("lower_eth0/x", ""), ("lower_eth1/x", "")]);
        interface(root, "bond0.7", None, &[("operstate", "up"), ("lower_bond0/x", "")]);
        // As in a container: an end of a pair, of which the other is elsewhere.
        interface(root, "veth7", None, &[("operstate", "up"), ("carrier_changes", "2")]);
        // Layers that never end.
        interface(root, "odd", None, &[("operstate", "up"), ("lower_odd/x", "")]);
        let ports = Ports::new(root);
        let found = ports.of_interfaces(&names(&["bond0.7", "veth7", "odd"]));
        let expect = [
            state("eth0", true, None, "up"),
            state("eth1", false, None, "down"),
            state("odd", true, None, "up"),
            state("veth7", true, Some(2), "up"),
        ];
        assert_eq!(found, expect);
    }

    #[test]
    fn a_port_that_was_there_is_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        interface(root, "eth0", Some("0000:01:00.0"), &[("operstate", "up")]);
        interface(root, "eth1", Some("0000:02:00.0"), &[("operstate", "up")]);
        interface(root, "veth7", None, &[("operstate", "up")]);
        let ports = Ports::new(root);
        assert_eq!(ports.of_interfaces(&names(&["eth0", "eth1", "veth7"])).len(), 3);
        write(root, "sys/class/net/eth0/operstate", "down");
        for gone in ["eth1", "veth7"] {
            std::fs::remove_dir_all(root.join("sys/class/net").join(gone)).unwrap();
        }
        let expect = [state("eth0", false, None, "down"), state("eth1", false, None, "the card is gone")];
        assert_eq!(ports.of_interfaces(&[]), expect);
        // Without `/sys` nothing is known.
        std::fs::remove_dir_all(root.join("sys")).unwrap();
        assert!(ports.of_interfaces(&[]).is_empty());
    }

    #[test]
    fn addresses_of_this_machine() {
        assert_eq!(parse("10.0.0.1"), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(parse("[fd00::1]:9002"), Some("fd00::1".parse().unwrap()));
        for odd in ["", "gpu-07:9002", "fe80::1%eth0", "10.0.0.256"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
        assert!(!is_routed(&"fe80::1".parse().unwrap()) && is_routed(&"fd00::1".parse().unwrap()));
        // Which ports this machine has is not known; the loopback is none.
        let ports = Ports::default().of_addresses(&names(&["127.0.0.1", "[::1]:9002", "0.0.0.0:9002"]));
        assert!(ports.iter().all(|port| port.name != "lo"), "{ports:?}");
    }
}
