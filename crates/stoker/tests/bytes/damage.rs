//! One fault in one file.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::image::{Image, all_files};
use crate::storm::Dice;
use crate::storm::cell::NODES;

const BLOCK: u64 = 4096;

/// What happens to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One bit is another.
    Flip,
    /// A block is zeros.
    Zero,
    /// It ends early.
    Truncate,
    /// It is gone.
    Remove,
    /// A block of it stands where another one was, and the other way round.
    SwapBlocks,
    /// It and another file of the same place have each other's bytes.
    SwapFiles,
    /// It is as it was some writes before.
    Replay,
}

const KINDS: [Kind; 7] =
    [Kind::Flip, Kind::Zero, Kind::Truncate, Kind::Remove, Kind::SwapBlocks, Kind::SwapFiles, Kind::Replay];

/// What the file is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Ring,
    Catalog,
    /// Keys, identity, notes of the node.
    State,
    Lake,
}

/// One fault.
#[derive(Debug)]
pub struct Damage {
    kind: Kind,
    pub part: Part,
    /// Below the folder of the cell.
    file: PathBuf,
    other: Option<PathBuf>,
    /// Where in the file, and the bit or the other block.
    at: u64,
    with: u64,
    /// Whose file it is; none for the lake's.
    pub node: Option<usize>,
    /// Which other node is lost afterwards.
    pub lost: usize,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { kind, part, file, at, lost, .. } = self;
        write!(f, "{kind:?} of {part:?} {} at {at}, then node {lost} is lost", file.display())
    }
}

impl Damage {
    /// A fault by its number. Each kind of each part comes in turn.
    pub fn choose(folder: &Path, image: &Image, seed: u64, number: u64) -> Damage {
        let mut dice = Dice::new(seed << 32 | number);
        for _ in 0..8 {
            dice.below(2);
        }
        // Rings hold most of what can be damaged.
        let part = [Part::Ring, Part::Catalog, Part::Lake, Part::Ring, Part::State][(number % 5) as usize];
        let mut kind = KINDS[(number % 7) as usize];
        let mut files: Vec<PathBuf> =
            all_files(folder).into_iter().filter(|f| part_of(f) == Some(part)).collect();
        match kind {
            // Objects of the lake that nobody replaced have no older version.
            Kind::Replay if !files.iter().any(|file| image.is_changed(file)) => kind = Kind::Remove,
            Kind::Replay => files.retain(|file| image.is_changed(file)),
            // An empty file has no bit.
            Kind::Flip => files.retain(|file| std::fs::metadata(folder.join(file)).unwrap().len() > 0),
            _ => {}
        }
        assert!(!files.is_empty(), "there is a file of {part:?} for {kind:?}");
        let file = files[dice.below(files.len() as u64) as usize].clone();
        let beside: Vec<&PathBuf> =
            files.iter().filter(|f| f.parent() == file.parent() && **f != file).collect();
        let other = (!beside.is_empty()).then(|| beside[dice.below(beside.len() as u64) as usize].clone());
        let (at, with) = places(&folder.join(&file), kind, &mut dice);
        let node = (0..NODES).find(|at| file.starts_with(format!("node-{at}")));
        let lost = match node {
            Some(node) => (node + 1 + dice.below(NODES as u64 - 1) as usize) % NODES,
            None => dice.below(NODES as u64) as usize,
        };
        // A file that is alone is cut instead.
        let kind = if kind == Kind::SwapFiles && other.is_none() { Kind::Truncate } else { kind };
        Damage { kind, part, file, other, at, with, node, lost }
    }

    /// How many files of the cell it can strike.
    pub fn objects(&self) -> usize {
        if self.kind == Kind::SwapFiles { 2 } else { 1 }
    }

    /// Does it. Times of the file stay as they were: nobody told the node.
    pub fn apply(&self, folder: &Path, image: &Image) {
        let path = folder.join(&self.file);
        let times = std::fs::metadata(&path).unwrap();
        let open = || std::fs::File::options().read(true).write(true).open(&path).unwrap();
        match self.kind {
            Kind::Flip => {
                let (file, mut byte) = (open(), [0]);
                file.read_exact_at(&mut byte, self.at).unwrap();
                file.write_all_at(&[byte[0] ^ 1 << (self.with % 8)], self.at).unwrap();
            }
            Kind::Zero => {
                let len = BLOCK.min(times.len() - self.at);
                open().write_all_at(&vec![0; len as usize], self.at).unwrap();
            }
            Kind::Truncate => open().set_len(self.at).unwrap(),
            Kind::Remove => return std::fs::remove_file(&path).unwrap(),
            Kind::SwapBlocks => {
                let len = BLOCK.min(times.len() - self.at.max(self.with)) as usize;
                let (file, mut a, mut b) = (open(), vec![0; len], vec![0; len]);
                file.read_exact_at(&mut a, self.at).unwrap();
                file.read_exact_at(&mut b, self.with).unwrap();
                file.write_all_at(&b, self.at).unwrap();
                file.write_all_at(&a, self.with).unwrap();
            }
            Kind::SwapFiles => {
                let other = folder.join(self.other.as_ref().expect("there is one"));
                let aside = path.with_extension("aside");
                std::fs::rename(&path, &aside).unwrap();
                std::fs::rename(&other, &path).unwrap();
                return std::fs::rename(&aside, &other).unwrap();
            }
            Kind::Replay => {
                let before = image.before(&self.file).expect("it was there");
                std::fs::write(&path, std::fs::read(before).unwrap()).unwrap();
            }
        }
        let times = std::fs::FileTimes::new().set_modified(times.modified().unwrap());
        open().set_times(times).unwrap();
    }
}

/// Where it strikes: in what is not zeros anyway.
fn places(path: &Path, kind: Kind, dice: &mut Dice) -> (u64, u64) {
    let len = std::fs::metadata(path).unwrap().len();
    if len == 0 {
        return (0, 0);
    }
    let used = used_blocks(path);
    let mut block = || used[dice.below(used.len() as u64) as usize] * BLOCK;
    let (first, second) = (block(), block());
    let within = dice.below(BLOCK.min(len - first));
    match kind {
        Kind::Flip => (first + within, dice.below(8)),
        Kind::Truncate => (first + within, 0),
        _ => (first, second),
    }
}

/// Blocks that hold something; the first one of a file of zeros.
fn used_blocks(path: &Path) -> Vec<u64> {
    let mut file = std::fs::File::open(path).unwrap();
    let (mut used, mut block) = (Vec::new(), vec![0; BLOCK as usize]);
    for at in 0.. {
        let mut len = 0;
        while len < block.len() {
            match file.read(&mut block[len..]).unwrap() {
                0 => break,
                more => len += more,
            }
        }
        if len == 0 {
            break;
        }
        if block[..len].iter().any(|byte| *byte != 0) {
            used.push(at);
        }
    }
    if used.is_empty() {
        used.push(0);
    }
    used
}

/// None for what a cell may lose without anybody noticing: logs of the test, locks, sockets.
fn part_of(file: &Path) -> Option<Part> {
    let name = file.file_name()?.to_str()?;
    let first = file.components().next()?.as_os_str().to_str()?;
    let text = file.to_str()?;
    if first == "lake" {
        return (!text.contains(".stoker-tmp/lock")).then_some(Part::Lake);
    }
    if !first.starts_with("node-") || first.ends_with(".log") || name.ends_with(".lock") || name == "lock" {
        return None;
    }
    match () {
        () if name.starts_with("catalog") => Some(Part::Catalog),
        () if text.contains("/ring") || text.contains("segment") || text.contains("/drive") => {
            Some(Part::Ring)
        }
        () => Some(Part::State),
    }
}
