//! A network of its own for each node: namespaces on a bridge, and what can go wrong with cables.

use std::path::Path;
use std::process::Command;

/// Namespaces, each with one address on a common bridge. They go when this is dropped.
pub struct Net {
    tag: String,
    third: u8,
    count: usize,
}

pub fn try_run(program: &str, args: &str) -> Result<(), String> {
    let done = Command::new(program).args(args.split(' ')).output().map_err(|error| error.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {args}: {}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

pub fn run(program: &str, args: &str) {
    try_run(program, args).unwrap_or_else(|why| panic!("{why}"));
}

impl Net {
    /// Makes the network; says why it cannot be had.
    pub fn make(count: usize) -> Result<Net, String> {
        let pid = std::process::id();
        let net = Net { tag: format!("sk{}", pid % 100_000), third: (pid % 250) as u8, count };
        let bridge = net.bridge();
        try_run("ip", &format!("link add {bridge} type bridge"))?;
        try_run("ip", &format!("addr add {}/24 dev {bridge}", net.outside()))?;
        try_run("ip", &format!("link set {bridge} up"))?;
        for at in 0..count {
            let (space, cable) = (net.space(at), net.cable(at));
            try_run("ip", &format!("netns add {space}"))?;
            try_run("ip", &format!("link add {cable} type veth peer name eth0 netns {space}"))?;
            try_run("ip", &format!("link set {cable} master {bridge} up"))?;
            let address = net.address(at);
            for args in [&format!("addr add {address}/24 dev eth0"), "link set eth0 up", "link set lo up"] {
                try_run("ip", &format!("-n {space} {args}"))?;
            }
        }
        Ok(net)
    }

    fn bridge(&self) -> String {
        format!("{}b", self.tag)
    }

    pub fn space(&self, at: usize) -> String {
        format!("{}n{at}", self.tag)
    }

    fn cable(&self, at: usize) -> String {
        format!("{}v{at}", self.tag)
    }

    pub fn address(&self, at: usize) -> String {
        format!("10.77.{}.{}", self.third, at + 1)
    }

    /// Where nodes reach what is in no network of theirs.
    pub fn outside(&self) -> String {
        format!("10.77.{}.254", self.third)
    }

    /// The program, inside the network of a node. It sees the same mounts as everybody: `ip netns exec` would give it a copy, in
    /// which drives that come later are not there.
    pub fn command(&self, at: usize, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.space(at))).arg("--").arg(program);
        command
    }

    /// Pulls the cable of a node.
    pub fn cut(&self, at: usize) {
        run("ip", &format!("link set {} down", self.cable(at)));
    }

    pub fn heal(&self, at: usize) {
        run("ip", &format!("link set {} up", self.cable(at)));
    }

    /// What a node sends to another one does not arrive; the other way is open.
    pub fn cut_one_way(&self, from: usize, to: usize) {
        run("ip", &format!("-n {} route add blackhole {}/32", self.space(from), self.address(to)));
    }

    pub fn mend_one_way(&self, from: usize, to: usize) {
        run("ip", &format!("-n {} route del blackhole {}/32", self.space(from), self.address(to)));
    }

    /// So many bits a second go to a node at most.
    pub fn slow(&self, at: usize, rate: &str) {
        let shape = format!("rate {rate} burst 32kb latency 200ms");
        run("tc", &format!("qdisc add dev {} root tbf {shape}", self.cable(at)));
    }

    pub fn mend_slow(&self, at: usize) {
        run("tc", &format!("qdisc del dev {} root", self.cable(at)));
    }

    /// Every tenth packet to a node is lost, by chance. False if this machine has no nft.
    pub fn lose(&self, at: usize) -> bool {
        let space = self.space(at);
        let rules = "add table inet storm; add chain inet storm in { type filter hook input priority 0; }; \
                     add rule inet storm in iifname \"eth0\" numgen random mod 10 == 0 drop";
        let done = Command::new("ip").args(["netns", "exec", &space, "nft", rules]).output();
        done.is_ok_and(|done| done.status.success())
    }

    pub fn mend_lose(&self, at: usize) {
        run("ip", &format!("netns exec {} nft delete table inet storm", self.space(at)));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for at in 0..self.count {
            let _ = try_run("ip", &format!("netns del {}", self.space(at)));
        }
        let _ = try_run("ip", &format!("link del {}", self.bridge()));
    }
}
