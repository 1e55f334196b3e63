//! What happens to nodes, drives, cables, the lake and the catalog, and how it is healed.

use std::time::Duration;

use crate::cell::{Cell, soon};
use crate::drives::Kind;
use crate::server::Server;
use crate::storm::cell::{Load, NODES, keeps_catalog, promote};

/// Long for a client, and no death.
const PAUSE_SHORT: Duration = Duration::from_secs(5);
const CUT_SHORT: Duration = Duration::from_secs(3);
/// How long the lake refuses the first time, and then.
const REFUSAL_LONG: Duration = Duration::from_secs(120);
const REFUSAL_SHORT: Duration = Duration::from_secs(15);
/// Bytes a second of a drive that is slow.
const SLOW_BYTES_PER_S: u64 = 2 << 20;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// SIGKILL; it comes back.
    Kill,
    /// All are killed and the others start again: they miss the one that does not.
    OthersRestart,
    /// SIGSTOP for a while, below the grace period.
    PauseShort,
    /// The same until the others declared it down and made up for it.
    PauseLong,
    /// Its cable is pulled for a while.
    Cut,
    /// The same until the others declared it down and made up for it.
    CutLong,
    /// It hears one other node, which does not hear it.
    OneWay,
    /// Its cable carries little.
    Slow,
    /// Its cable loses packets.
    Lossy,
    /// A drive hardly moves.
    DriveSlow,
    /// A drive shares its file system with somebody who takes all the room.
    DriveFull,
    /// The medium of a drive is gone; another drive is put in its place while the node runs.
    DriveFails,
    /// A sound drive is replaced while the node runs.
    DriveReplaced,
    /// The lake does not answer for a while.
    LakePause,
    /// The lake dies and comes back.
    LakeKill,
    /// The lake answers everything with 503.
    LakeRefuses,
    /// The database of the catalog is restarted.
    DatabaseRestart,
    /// Every process of the database is killed.
    DatabaseKill,
}

const OF_PROCESSES: &[Fault] = &[
    Fault::Kill,
    Fault::OthersRestart,
    Fault::PauseShort,
    Fault::PauseLong,
    Fault::LakePause,
    Fault::LakeKill,
    Fault::LakeRefuses,
];
const OF_CABLES: &[Fault] = &[Fault::Cut, Fault::CutLong, Fault::OneWay, Fault::Slow, Fault::Lossy];
const OF_DRIVES: &[Fault] = &[Fault::DriveSlow, Fault::DriveFull, Fault::DriveFails, Fault::DriveReplaced];
const OF_DATABASES: &[Fault] = &[Fault::DatabaseRestart, Fault::DatabaseKill];

/// What can happen to a cell on this machine.
pub fn possible(cell: &Cell, has_database: bool) -> Vec<Fault> {
    let mut all = OF_PROCESSES.to_vec();
    if cell.net.is_some() {
        all.extend(OF_CABLES);
    }
    if cell.drives.iter().all(|drives| !drives.is_empty()) {
        all.extend(OF_DRIVES);
    }
    if has_database {
        all.extend(OF_DATABASES);
    }
    all
}

/// Hurts one of three nodes, or what they need, while a load runs, and heals it again.
pub struct Trouble<'t> {
    pub cell: &'t mut Cell,
    pub load: &'t Load,
    pub database: Option<&'t mut Server>,
    /// The lake refused for long once.
    pub has_refused: bool,
}

impl Trouble<'_> {
    /// One fault, from the moment that it strikes until the cell is whole again. Says what could not be done here.
    pub fn meet(&mut self, fault: Fault, victim: usize) -> Result<(), String> {
        let other = (victim + 1) % NODES;
        let met = self.strike(fault, victim);
        // The next one finds a whole cell.
        self.load.runtime.block_on(self.cell.until(victim, other, "up"));
        self.load.after(10);
        met
    }

    fn strike(&mut self, fault: Fault, victim: usize) -> Result<(), String> {
        let (load, other) = (self.load, (victim + 1) % NODES);
        let kept = self.cell.has_keeper() && load.runtime.block_on(keeps_catalog(&self.cell.dir, victim));
        match fault {
            Fault::Kill => {
                self.cell.nodes[victim].take().unwrap().kill();
                if !kept {
                    load.after(10);
                }
                self.cell.back(victim);
            }
            Fault::OthersRestart => {
                // Names are with the one that keeps them, and with somebody who follows.
                let victim = if kept { other } else { victim };
                let all = [victim, (victim + 1) % NODES, (victim + 2) % NODES];
                for at in all {
                    self.cell.nodes[at].take().unwrap().kill();
                }
                self.cell.back_together(&all[1..]);
                self.until_made_up_for(victim, all[1]);
                self.cell.back(victim);
                load.runtime.block_on(self.cell.until(victim, all[1], "up"));
            }
            Fault::PauseShort => {
                let before = self.cell.verdicts(victim);
                self.cell.live(victim).signal("STOP");
                std::thread::sleep(PAUSE_SHORT);
                self.cell.live(victim).signal("CONT");
                load.after(10);
                assert_eq!(self.cell.verdicts(victim), before, "a pause of {PAUSE_SHORT:?} is no death");
            }
            Fault::PauseLong => {
                self.go_on_without(victim, kept, |cell| cell.live(victim).signal("STOP"));
                // It finds out, and is up again only with another session.
                self.cell.live(victim).signal("CONT");
            }
            Fault::Cut => {
                self.net().cut(victim);
                std::thread::sleep(CUT_SHORT);
                self.net().heal(victim);
            }
            Fault::CutLong => {
                self.go_on_without(victim, kept, |cell| cell.net.as_ref().unwrap().cut(victim));
                self.net().heal(victim);
            }
            Fault::OneWay => {
                self.net().cut_one_way(victim, other);
                std::thread::sleep(CUT_SHORT);
                self.net().mend_one_way(victim, other);
            }
            Fault::Slow => {
                self.net().slow(victim, "20mbit");
                load.after(20);
                self.net().mend_slow(victim);
            }
            Fault::Lossy => {
                if !self.net().lose(victim) {
                    return Err("no nft here".to_owned());
                }
                load.after(20);
                self.net().mend_lose(victim);
            }
            Fault::DriveSlow => {
                let drive = self.drive_at(victim, Kind::Device);
                let pid = self.cell.live(victim).pid();
                let throttle = self.cell.drives[victim][drive].throttle(pid, SLOW_BYTES_PER_S)?;
                load.after(20);
                drop(throttle);
            }
            Fault::DriveFull => {
                let drive = self.drive_at(victim, Kind::Directory);
                self.cell.drives[victim][drive].fill();
                load.after(60);
                self.cell.drives[victim][drive].free();
                self.put_right(victim, drive);
            }
            Fault::DriveFails => {
                let drive = self.drive_at(victim, Kind::Device);
                self.cell.drives[victim][drive].break_down();
                self.until_failed(victim, drive);
                self.replace(victim, drive);
            }
            Fault::DriveReplaced => {
                let drive = self.drive_at(victim, Kind::Directory);
                self.replace(victim, drive);
            }
            Fault::LakePause => {
                self.cell.lake.as_ref().unwrap().signal("STOP");
                load.after(30);
                self.cell.lake.as_ref().unwrap().signal("CONT");
            }
            Fault::LakeKill => {
                self.cell.lake.take().unwrap().kill();
                load.after(30);
                self.cell.start_lake();
            }
            Fault::LakeRefuses => {
                let span = if self.has_refused { REFUSAL_SHORT } else { REFUSAL_LONG };
                self.has_refused = true;
                self.cell.gate.refuse();
                std::thread::sleep(span);
                load.after(10);
                eprintln!("   the lake refused {} requests in {span:?}", self.cell.gate.let_in());
            }
            Fault::DatabaseRestart | Fault::DatabaseKill => {
                let database = self.database.as_mut().expect("there is one");
                match fault {
                    Fault::DatabaseKill => database.kill(),
                    _ => database.stop(),
                }
                std::thread::sleep(CUT_SHORT);
                database.resume();
            }
        }
        Ok(())
    }

    fn net(&self) -> &crate::net::Net {
        self.cell.net.as_ref().expect("there are cables")
    }

    /// The others declare a node down and make up for what it held, all while it is away. Somebody else may stop and continue
    /// the processes of this machine meanwhile, so it is taken away again until that is decided.
    fn go_on_without(&self, victim: usize, kept: bool, take_away: impl Fn(&Cell)) {
        let (load, other) = (self.load, (victim + 1) % NODES);
        take_away(self.cell);
        if kept {
            // The others elect another one by themselves; that it is this one keeps the next steps simple.
            load.runtime.block_on(promote(&self.cell.dir, other));
        }
        let is_down = async || {
            take_away(self.cell);
            self.cell.state(victim, other).await == "down"
        };
        load.runtime.block_on(soon("a node that is away is declared down", is_down));
        self.until_made_up_for(victim, other);
    }

    fn until_made_up_for(&self, victim: usize, other: usize) {
        self.load.runtime.block_on(self.cell.until(victim, other, "down"));
        self.load.after(10);
        self.load.runtime.block_on(self.cell.until_protected(other));
    }

    fn drive_at(&self, victim: usize, kind: Kind) -> usize {
        let drives = &self.cell.drives[victim];
        drives.iter().position(|drive| drive.kind() == kind).expect("a node has one of each kind")
    }

    fn told(&self, victim: usize, drive: usize) -> Option<serde_json::Value> {
        let path = self.cell.drives[victim][drive].path();
        let is_it = |told: &serde_json::Value| told["path"].as_str().is_some_and(|at| at.starts_with(&path));
        self.cell.told_drives(victim).into_iter().find(is_it)
    }

    fn until_failed(&self, victim: usize, drive: usize) {
        let failed = async || self.told(victim, drive).is_some_and(|told| told["state"] == "failed");
        self.load.runtime.block_on(soon("a node finds out that a drive failed", failed));
    }

    /// If it was given up meanwhile, it is replaced.
    fn put_right(&mut self, victim: usize, drive: usize) {
        if self.told(victim, drive).is_none_or(|told| told["state"] != "live") {
            eprintln!("   the drive was given up, and is replaced");
            self.replace(victim, drive);
        }
    }

    /// One command, no restart, and nothing lost.
    fn replace(&mut self, victim: usize, drive: usize) {
        let kind = self.cell.drives[victim][drive].kind();
        let fresh = self.cell.new_drive(victim, kind).expect("there was one before");
        let started = |cell: &Cell| {
            let status: serde_json::Value =
                serde_json::from_str(&cell.done(victim, &["status", "--json"])).unwrap();
            status["started_ms"].clone()
        };
        let before = started(self.cell);
        let old = self.told(victim, drive).expect("it is known")["drive"].as_str().unwrap().to_owned();
        let (node, path) = (format!("n{victim}"), fresh.path());
        self.cell.done(victim, &["drive", "replace", &node, &old, &path, "--size", "512MiB"]);
        self.cell.drives[victim][drive] = fresh;
        let told = self.cell.told_drives(victim);
        assert!(
            told.iter().all(|drive| drive["state"] == "live" && drive["drive"] != old.as_str()),
            "{told:?}"
        );
        assert_eq!(told.len(), self.cell.drives[victim].len(), "{told:?}");
        assert_eq!(started(self.cell), before, "it is the same process");
        let lost = self.cell.done(victim, &["risk", "--lost"]);
        assert!(!lost.contains("lost:"), "{lost}");
    }
}
