//! The network around the node, from what the kernel counts anyway: network cards, TCP, RDMA.
//!
//! Files that are missing or make no sense are left out: a machine without RDMA has none of its numbers.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use stoker_store::Counter;

use crate::clock;

/// Numbers are read again after this long: anybody may ask for them.
const AGE_MAX: Duration = Duration::from_secs(2);
/// Network cards, and ports of RDMA cards, that are told of.
const DEVICES_MAX: usize = 64;
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Interfaces of containers and of the machine itself: they come and go, and no wire is behind them.
const INNER: [&str; 7] = ["lo", "veth", "docker", "cali", "cni", "flannel", "br-"];

/// Counters of a network card: file, name, help.
const NET: [(&str, &str, &str); 8] = [
    ("rx_bytes", "net_received_bytes_total", "Bytes that a network card received."),
    ("tx_bytes", "net_sent_bytes_total", "Bytes that a network card sent."),
    ("rx_packets", "net_received_packets_total", "Packets that a network card received."),
    ("tx_packets", "net_sent_packets_total", "Packets that a network card sent."),
    ("rx_errors", "net_received_errors_total", "Packets that came damaged."),
    ("tx_errors", "net_sent_errors_total", "Packets that could not be sent."),
    ("rx_dropped", "net_received_drops_total", "Packets that came and were dropped."),
    ("tx_dropped", "net_sent_drops_total", "Packets that were dropped instead of sent."),
];

/// Counters of TCP and IP: table, column, name, help.
const PROTOCOLS: [(&str, &str, &str, &str); 6] = [
    ("Tcp", "RetransSegs", "tcp_retransmits_total", "Segments that were sent again, of the whole machine."),
    ("Tcp", "OutSegs", "tcp_segments_sent_total", "Segments that were sent, of the whole machine."),
    ("TcpExt", "TCPTimeouts", "tcp_timeouts_total", "Times that no acknowledgement came in time."),
    (
        "TcpExt",
        "ListenDrops",
        "tcp_listen_drops_total",
        "Connections that were dropped because nobody took them.",
    ),
    ("TcpExt", "TCPRcvQDrop", "tcp_receive_drops_total", "Segments that were dropped for want of memory."),
    ("IpExt", "InCEPkts", "ip_ecn_marked_packets_total", "Packets that a switch marked as congested (ECN)."),
];

/// Counters of a port of an RDMA card: file, name, value of the label `kind` if it has one, factor.
const RDMA: [(&str, &str, Option<&str>, u64); 21] = [
    // Counted in words of four bytes.
    ("counters/port_rcv_data", "rdma_received_bytes_total", None, 4),
    ("counters/port_xmit_data", "rdma_sent_bytes_total", None, 4),
    ("counters/port_rcv_errors", "rdma_errors_total", Some("received"), 1),
    ("counters/symbol_error", "rdma_errors_total", Some("symbol"), 1),
    ("counters/local_link_integrity_errors", "rdma_errors_total", Some("link_integrity"), 1),
    ("counters/link_downed", "rdma_errors_total", Some("link_downed"), 1),
    ("counters/link_error_recovery", "rdma_errors_total", Some("link_recovery"), 1),
    ("counters/port_xmit_discards", "rdma_drops_total", Some("sent"), 1),
    ("hw_counters/out_of_buffer", "rdma_drops_total", Some("out_of_buffer"), 1),
    ("hw_counters/rx_icrc_encapsulated", "rdma_drops_total", Some("icrc"), 1),
    ("hw_counters/out_of_sequence", "rdma_retransmits_total", Some("out_of_sequence"), 1),
    ("hw_counters/packet_seq_err", "rdma_retransmits_total", Some("sequence_nak"), 1),
    ("hw_counters/local_ack_timeout_err", "rdma_retransmits_total", Some("ack_timeout"), 1),
    ("hw_counters/rnr_nak_retry_err", "rdma_retransmits_total", Some("receiver_not_ready"), 1),
    ("hw_counters/roce_adp_retrans", "rdma_retransmits_total", Some("adaptive"), 1),
    ("hw_counters/roce_slow_restart", "rdma_retransmits_total", Some("slow_restart"), 1),
    ("hw_counters/np_ecn_marked_roce_packets", "rdma_ecn_total", Some("marked"), 1),
    ("hw_counters/np_cnp_sent", "rdma_ecn_total", Some("notice_sent"), 1),
    ("hw_counters/rp_cnp_handled", "rdma_ecn_total", Some("notice_handled"), 1),
    ("hw_counters/rp_cnp_ignored", "rdma_ecn_total", Some("notice_ignored"), 1),
    ("counters/port_xmit_wait", "rdma_wait_ticks_total", None, 1),
];

/// What a number of RDMA means.
fn rdma_help(name: &str) -> &'static str {
    match name {
        "rdma_received_bytes_total" => "Bytes that a port received.",
        "rdma_sent_bytes_total" => "Bytes that a port sent.",
        "rdma_errors_total" => "Errors of a port, by kind.",
        "rdma_drops_total" => "Packets that a port dropped, by reason.",
        "rdma_retransmits_total" => "Events that make a port send again, by kind.",
        "rdma_ecn_total" => "Marks and notices of congestion, by kind.",
        _ => "Ticks in which a port had something to send and could not.",
    }
}

/// Reads the counters of a machine.
pub struct Fabric {
    /// `/`, or where a test keeps its own.
    root: PathBuf,
    last: Mutex<Option<(Instant, Vec<Counter>)>>,
}

impl Fabric {
    /// The fabric below a root, `/` but in tests.
    pub fn new(root: PathBuf) -> Fabric {
        Fabric { root, last: Mutex::default() }
    }

    /// Everything, not older than a moment.
    pub fn counters(&self) -> Vec<Counter> {
        // Whoever reads holds the lock, and the others wait for the same answer.
        let mut last = self.last.lock().unwrap();
        let now = clock::now();
        if let Some((at, counters)) = &*last
            && now.duration_since(*at) < AGE_MAX
        {
            return counters.clone();
        }
        let counters = self.read();
        *last = Some((now, counters.clone()));
        counters
    }

    fn read(&self) -> Vec<Counter> {
        let mut all = Vec::new();
        self.read_cards(&mut all);
        self.read_protocols(&mut all);
        self.read_rdma(&mut all);
        all
    }

    fn read_cards(&self, into: &mut Vec<Counter>) {
        let is_inner = |name: &String| {
            // `lo` is a whole name, the others are beginnings.
            name == INNER[0] || INNER[1..].iter().any(|front| name.starts_with(front))
        };
        let class = self.root.join("sys/class/net");
        for card in names_in(&class).into_iter().filter(|name| !is_inner(name)).take(DEVICES_MAX) {
            let labels = [("device", card.as_str())];
            for (file, name, help) in NET {
                let value = number_in(&class.join(&card).join("statistics").join(file));
                into.extend(value.map(|value| Counter::new(name, help, &labels, value as f64)));
            }
            // A card without a cable says -1 or nothing.
            let speed_mbit = number_in(&class.join(&card).join("speed"));
            into.extend(speed_mbit.map(|mbit| {
                let help = "What a network card can carry in a second.";
                Counter::new("net_speed_bytes", help, &labels, mbit as f64 * 1e6 / 8.0)
            }));
        }
    }

    fn read_protocols(&self, into: &mut Vec<Counter>) {
        let tables: String = ["snmp", "netstat"]
            .iter()
            .filter_map(|file| text_of(&self.root.join("proc/net").join(file)))
            .collect();
        for (table, column, name, help) in PROTOCOLS {
            let value = column_of(&tables, table, column);
            into.extend(value.map(|value| Counter::new(name, help, &[], value as f64)));
        }
    }

    fn read_rdma(&self, into: &mut Vec<Counter>) {
        let class = self.root.join("sys/class/infiniband");
        let ports = |card: &String| {
            let ports = names_in(&class.join(card).join("ports"));
            ports.into_iter().map(|port| (card.clone(), port)).collect::<Vec<_>>()
        };
        for (card, port) in names_in(&class).iter().flat_map(ports).take(DEVICES_MAX) {
            let dir = class.join(&card).join("ports").join(&port);
            let labels = [("device", card.as_str()), ("port", port.as_str())];
            for (file, name, kind, factor) in RDMA {
                let Some(value) = number_in(&dir.join(file)) else { continue };
                let labels: Vec<(&str, &str)> =
                    labels.into_iter().chain(kind.map(|kind| ("kind", kind))).collect();
                let value = value.saturating_mul(factor) as f64;
                into.push(Counter::new(name, rdma_help(name), &labels, value));
            }
            // Such as "4: ACTIVE".
            into.extend(text_of(&dir.join("state")).map(|state| {
                let is_active = state.trim_start().starts_with('4');
                Counter::new("rdma_port_up", "1 if a port is active.", &labels, f64::from(is_active))
            }));
        }
    }
}

/// Names of a directory, sorted; none if there is none.
fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn text_of(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}

fn number_in(path: &Path) -> Option<u64> {
    text_of(path)?.trim().parse().ok()
}

/// A number of `/proc/net/snmp` or `netstat`: a line of names, then one of numbers, both with the table in front.
fn column_of(text: &str, table: &str, column: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(": ")).filter(|(name, _)| *name == table);
    let (names, values) = (lines.next()?.1, lines.next()?.1);
    let at = names.split_whitespace().position(|name| name == column)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn value(counters: &[Counter], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |counter: &&Counter| {
            counter.name == name && Counter::new("", "", labels, 0.0).labels == counter.labels
        };
        counters.iter().find(has).map(|counter| counter.value)
    }

    #[test]
    fn a_machine_with_cards_and_rdma() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "sys/class/net/eth0/statistics/rx_bytes", "1234\n");
        write(root, "sys/class/net/eth0/statistics/tx_dropped", "7\n");
        write(root, "sys/class/net/eth0/speed", "200000\n");
        write(root, "sys/class/net/eth1/speed", "-1\n");
        write(root, "sys/class/net/lo/statistics/rx_bytes", "99\n");
        write(root, "sys/class/net/veth12/statistics/rx_bytes", "99\n");
        write(
            root,
            "proc/net/snmp",
            "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm OutSegs RetransSegs\nTcp: 1 1000 17\n",
        );
        write(
            root,
            "proc/net/netstat",
            "TcpExt: TCPTimeouts ListenDrops\nTcpExt: 5 2\nIpExt: InCEPkts\nIpExt: 3\n",
        );
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        write(root, &format!("{port}/state"), "4: ACTIVE\n");
        write(root, &format!("{port}/counters/port_rcv_data"), "10\n");
        write(root, &format!("{port}/hw_counters/packet_seq_err"), "6\n");
        write(root, &format!("{port}/hw_counters/np_ecn_marked_roce_packets"), "8\n");
        write(root, "sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
        let counters = Fabric::new(root.into()).counters();
        let check = |name: &str, labels: &[(&str, &str)], expect: Option<f64>| {
            assert_eq!(value(&counters, name, labels), expect, "{name} {labels:?}");
        };
        check("net_received_bytes_total", &[("device", "eth0")], Some(1234.0));
        check("net_sent_drops_total", &[("device", "eth0")], Some(7.0));
        check("net_speed_bytes", &[("device", "eth0")], Some(25e9));
        check("net_speed_bytes", &[("device", "eth1")], None);
        check("net_received_bytes_total", &[("device", "lo")], None);
        check("net_received_bytes_total", &[("device", "veth12")], None);
        check("tcp_retransmits_total", &[], Some(17.0));
        check("tcp_timeouts_total", &[], Some(5.0));
        check("ip_ecn_marked_packets_total", &[], Some(3.0));
        check("tcp_receive_drops_total", &[], None);
        let port = [("device", "mlx5_0"), ("port", "1")];
        check("rdma_received_bytes_total", &port, Some(40.0));
        check("rdma_port_up", &port, Some(1.0));
        check("rdma_retransmits_total", &[port[0], port[1], ("kind", "sequence_nak")], Some(6.0));
        check("rdma_ecn_total", &[port[0], port[1], ("kind", "marked")], Some(8.0));
        check("rdma_port_up", &[("device", "mlx5_1"), ("port", "1")], Some(0.0));
    }

    #[test]
    fn files_that_make_no_sense_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(Fabric::new(root.into()).counters().is_empty());
        write(root, "sys/class/net/eth0/statistics/rx_bytes", "many\n");
        std::fs::write(root.join("sys/class/net/eth0/speed"), [0xff, 0xfe]).unwrap();
        write(root, "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", &"9".repeat(30));
        for text in ["", "Tcp", "Tcp: ", "Tcp: OutSegs\n", "Tcp: OutSegs\nTcp: \n", "Tcp: OutSegs\nTcp: -1\n"]
        {
            write(root, "proc/net/snmp", text);
            assert!(Fabric::new(root.into()).counters().is_empty(), "{text:?}");
        }
    }

    #[test]
    fn every_name_is_documented() {
        let page = include_str!("../../../docs/metrics.md");
        let names = NET.iter().map(|(_, name, _)| *name);
        let names = names.chain(PROTOCOLS.iter().map(|(_, _, name, _)| *name));
        let names = names.chain(RDMA.iter().map(|(_, name, ..)| *name));
        for name in names.chain(["net_speed_bytes", "rdma_port_up"]) {
            assert!(page.contains(&format!("`stoker_{name}`")), "{name}");
        }
    }

    #[test]
    fn numbers_are_kept_for_a_moment() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "proc/net/snmp", "Tcp: OutSegs\nTcp: 1\n");
        let fabric = Fabric::new(dir.path().into());
        let first = fabric.counters();
        write(dir.path(), "proc/net/snmp", "Tcp: OutSegs\nTcp: 2\n");
        assert_eq!(fabric.read()[0].value, 2.0);
        *fabric.last.lock().unwrap() = Some((clock::now(), first.clone()));
        assert_eq!(fabric.counters(), first);
    }
}
