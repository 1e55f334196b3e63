//! Three real nodes with a lake, each in a network of its own and on drives of its own where the machine allows it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use stoker_store::{Order, Rebuild, Report, Risk, Store};

use crate::drives::{Drive, Kind};
use crate::gate::Gate;
use crate::net::Net;
use crate::storm::cell::{NODES, connect_to, home};
use crate::storm::{LOCAL, Node};

/// Long enough for a pause that is no death.
pub const GRACE: Duration = Duration::from_secs(10);

/// Bytes of each ring on a drive of its own.
const RING_MIB: u64 = 512;

/// Who may come by NFS: this test, as root.
const NFS_EXPORT: &str = "data:keep-root,allow=10.77.0.0/16";

/// The program as it is now.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_stoker");

/// Looks at something that becomes true by itself; a tenth of a second apart.
const LOOKS_MAX: usize = 1_800;

/// A cell of real nodes.
pub struct Cell {
    pub dir: PathBuf,
    pub net: Option<Net>,
    pub gate: Gate,
    pub lake: Option<Node>,
    pub nodes: Vec<Option<Node>>,
    /// Which program each node runs.
    pub programs: Vec<PathBuf>,
    /// Of each node; none if the machine gives none.
    pub drives: Vec<Vec<Drive>>,
    /// Why not all of that is there.
    pub lacks: Vec<String>,
    /// Names come from a PostgreSQL at this address.
    postgres: Option<String>,
    ids: Vec<String>,
    lake_s3: String,
    drives_made: usize,
}

impl Cell {
    /// Three nodes of one program, with a node outside as their lake.
    pub fn start(dir: &Path, program: &Path, postgres: Option<String>) -> Cell {
        let mut lacks = Vec::new();
        let net = Net::make(NODES).map_err(|why| lacks.push(format!("networks: {why}"))).ok();
        let outside = net.as_ref().map_or("127.0.0.1".to_owned(), Net::outside);
        let mut cell = Cell {
            dir: dir.to_owned(),
            gate: Gate::open(&outside),
            net,
            lake: None,
            nodes: Vec::new(),
            programs: vec![program.to_owned(); NODES],
            drives: Vec::new(),
            lacks,
            postgres,
            ids: Vec::new(),
            lake_s3: LOCAL.to_owned(),
            drives_made: 0,
        };
        cell.start_lake();
        for at in 0..NODES {
            let drives = cell.make_drives(at);
            cell.drives.push(drives);
        }
        let first = cell.first();
        let text = |name: &str| first.ready[name].as_str().unwrap().to_owned();
        let peers = text("peers");
        cell.ids.push(text("id"));
        cell.nodes.push(Some(first));
        for at in 1..NODES {
            let drives = cell.drive_args(at);
            let token_file = cell.dir.join("join-token");
            std::fs::write(&token_file, cell.nodes[0].as_ref().unwrap().join_token()).unwrap();
            let token_file = token_file.to_str().unwrap().to_owned();
            let join =
                [&["join".into(), peers.clone(), "--token-file".into(), token_file], &drives[..]].concat();
            let node = cell.node(at, &join);
            cell.ids.push(node.ready["id"].as_str().unwrap().to_owned());
            cell.nodes.push(Some(node));
        }
        cell
    }

    /// Where clients outside reach the nodes by NFS; nowhere without networks.
    pub fn nfs(&self) -> Vec<String> {
        self.net.iter().flat_map(|net| (0..NODES).map(|at| format!("{}:2049", net.address(at)))).collect()
    }

    fn first(&self) -> Node {
        if let Some(url) = &self.postgres {
            // The first node is told where names are; from then on its directory knows.
            let config = self.dir.join("postgres.toml");
            let words = format!(
                "[node]\ndir = {:?}\n[catalog]\nkind = \"postgres\"\nurl = {url:?}\n[s3]\nlisten = []\n[admin]\nlisten = {LOCAL:?}\n\
                 [[drive]]\npath = {:?}\nsize = \"{RING_MIB}MiB\"\n",
                home(&self.dir, 0),
                self.postgres_drive(),
            );
            std::fs::create_dir_all(self.postgres_drive()).unwrap();
            std::fs::write(&config, words).unwrap();
            let mut command = Command::new(&self.programs[0]);
            self.lake_env(&mut command);
            command.args(["serve", "--json", "--config"]).arg(&config);
            Node::run(command, &home(&self.dir, 0)).stop();
        }
        let mut up: Vec<String> = vec!["up".into(), "--lake".into(), "s3://data/cell".into()];
        match self.postgres {
            Some(_) => up.extend(["--drive".into(), self.postgres_drive().to_str().unwrap().into()]),
            None => up.extend(self.drive_args(0)),
        }
        self.node(0, &up)
    }

    fn postgres_drive(&self) -> PathBuf {
        self.dir.join("drive-of-first")
    }

    fn make_drives(&mut self, at: usize) -> Vec<Drive> {
        if self.postgres.is_some() {
            return Vec::new();
        }
        let made = [Kind::Directory, Kind::Device].map(|kind| self.new_drive(at, kind));
        let made: Result<Vec<Drive>, String> = made.into_iter().collect();
        made.unwrap_or_else(|why| {
            self.lacks.push(format!("drives of node {at}: {why}"));
            Vec::new()
        })
    }

    /// A drive that nothing is on yet.
    pub fn new_drive(&mut self, at: usize, kind: Kind) -> Result<Drive, String> {
        self.drives_made += 1;
        let place = self.dir.join(format!("drive-{at}-{}", self.drives_made));
        Drive::make(&place, kind, RING_MIB)
    }

    fn drive_args(&self, at: usize) -> Vec<String> {
        let mut args: Vec<String> =
            self.drives[at].iter().flat_map(|drive| ["--drive".to_owned(), drive.path()]).collect();
        if !args.is_empty() {
            args.extend(["--size".to_owned(), format!("{RING_MIB}MiB")]);
        }
        args
    }

    /// Starts the lake, where it was if it was before.
    pub fn start_lake(&mut self) {
        let dir = self.dir.join("lake");
        let lake = Node::start_by(Command::new(PROGRAM), &["up"], [LOCAL, &self.lake_s3], &dir);
        self.lake_s3 = lake.ready["s3"].as_str().unwrap().trim_start_matches("http://").to_owned();
        self.gate.lead_to(&self.lake_s3);
        self.lake = Some(lake);
    }

    fn lake_env(&self, command: &mut Command) {
        let lake = &self.lake.as_ref().unwrap().ready;
        let names = [("AWS_ACCESS_KEY_ID", "access_key"), ("AWS_SECRET_ACCESS_KEY", "secret_key")];
        for (name, field) in names.into_iter().chain([("AWS_REGION", "region")]) {
            command.env(name, lake[field].as_str().unwrap());
        }
        command.env("AWS_ENDPOINT_URL", format!("http://{}", self.gate.address));
    }

    fn node(&self, at: usize, verb: &[String]) -> Node {
        let program = &self.programs[at];
        let (mut command, peers) = match &self.net {
            Some(net) => (net.command(at, program), format!("{}:0", net.address(at))),
            None => (Command::new(program), LOCAL.to_owned()),
        };
        self.lake_env(&mut command);
        let (grace, name) = (format!("{}s", GRACE.as_secs()), format!("n{at}"));
        let verb: Vec<&str> = verb.iter().map(String::as_str).collect();
        let mut verb = [&verb[..], &["--grace", &grace, "--name", &name]].concat();
        if self.net.is_some() {
            verb.extend(["--nfs", "0.0.0.0:2049", "--nfs-export", NFS_EXPORT]);
        }
        Node::start_by(command, &verb, [&peers, LOCAL], &home(&self.dir, at))
    }

    /// Starts a node again.
    pub fn back(&mut self, at: usize) {
        self.nodes[at] = Some(self.node(at, &["up".to_owned()]));
    }

    /// Starts a node by a program that is to refuse; what that says.
    pub fn refused(&self, at: usize, program: &Path) -> String {
        let patience = Path::new("timeout");
        let mut command = match &self.net {
            Some(net) => net.command(at, patience),
            None => Command::new(patience),
        };
        self.lake_env(&mut command);
        command.arg("60").arg(program).args(["up", "--s3", LOCAL, "--admin", LOCAL, "--dir"]);
        let done = command.arg(home(&self.dir, at)).stdin(Stdio::null()).output().unwrap();
        let words = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && done.status.code() != Some(124), "it starts: {words}");
        words
    }

    /// Starts several again at the same time: the one that keeps the names may wait for another.
    pub fn back_together(&mut self, which: &[usize]) {
        let cell = &*self;
        let started: Vec<Node> = std::thread::scope(|scope| {
            let starts: Vec<_> =
                which.iter().map(|at| scope.spawn(|| cell.node(*at, &["up".to_owned()]))).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        for (at, node) in which.iter().zip(started) {
            self.nodes[*at] = Some(node);
        }
    }

    pub fn live(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().expect("it runs")
    }

    /// Whether some node keeps the catalog.
    pub fn has_keeper(&self) -> bool {
        self.postgres.is_none()
    }

    /// Runs a command of the program against a node; its output and whether it went well.
    pub fn ask(&self, at: usize, args: &[&str]) -> (bool, String) {
        let done = Command::new(&self.programs[at])
            .args(args)
            .env("STOKER_DIR", home(&self.dir, at))
            .output()
            .expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.success(), text(&done.stdout) + &text(&done.stderr))
    }

    /// The same, which goes well.
    pub fn done(&self, at: usize, args: &[&str]) -> String {
        let (well, words) = self.ask(at, args);
        assert!(well, "stoker {args:?} on node {at}: {words}");
        words
    }

    /// The drives of a node, as it tells them.
    pub fn told_drives(&self, at: usize) -> Vec<Value> {
        let words = self.done(at, &["drive", "ls", &format!("n{at}"), "--json"]);
        words.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What the others decided about a node, as one of them sees it.
    pub async fn state(&self, of: usize, seen_by: usize) -> String {
        let status = connect_to(&self.dir, seen_by).await.status().await;
        let nodes = status.map(|status| status.nodes).unwrap_or_default();
        let found = nodes.into_iter().find(|node| node.node == self.ids[of]);
        found.map_or_else(|| "unknown".into(), |node| node.state)
    }

    pub async fn until(&self, of: usize, seen_by: usize, state: &str) {
        let why = format!("node {of} is {state}, as node {seen_by} sees it");
        soon(&why, async || self.state(of, seen_by).await == state).await;
    }

    /// How often a node found out that the others had gone on without it.
    pub fn verdicts(&self, at: usize) -> usize {
        let words = std::fs::read_to_string(home(&self.dir, at).with_extension("log")).unwrap_or_default();
        words.matches("declared it down").count()
    }

    pub async fn rebuild(&self, at: usize) -> Option<Rebuild> {
        match connect_to(&self.dir, at).await.operate(Order::Rebuild).await {
            Ok(Report::Rebuild(status)) => Some(status),
            _ => None,
        }
    }

    pub async fn risks(&self, at: usize) -> Option<Vec<Risk>> {
        match connect_to(&self.dir, at).await.operate(Order::Risk).await {
            Ok(Report::Risk(report)) => Some(report.nodes),
            _ => None,
        }
    }

    /// Everything that a lost node held has its copies again, or is in the lake; nothing is lost.
    pub async fn until_protected(&self, seen_by: usize) {
        soon("what a lost node held is protected again", async || {
            let status = self.rebuild(seen_by).await;
            status.is_some_and(|status| (status.files_left, status.lost_files) == (0, 0))
        })
        .await;
    }
}

/// Waits for something that becomes true by itself.
pub async fn soon(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..LOOKS_MAX {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("never: {what}");
}
