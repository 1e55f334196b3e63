//! Whether a log is what was written: every line stands where it stood, and none is missing that a signed head speaks of.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::head::{Head, PublicKey};
use crate::line::{Begin, End, Hash, Line, follow, parse};
use crate::segment::{self, HEADS, Lines};
use crate::state::released;

/// Problems that are told; one is enough.
const PROBLEMS_MAX: usize = 100;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Findings {
    /// The node whose log it is.
    pub node: String,
    /// Segments that were looked at.
    pub segments: u64,
    /// The first of them.
    pub segment_first: u64,
    /// Events in them.
    pub events: u64,
    /// The last event.
    pub seq: u64,
    /// Heads whose signature is right.
    pub heads: u64,
    /// The last event that a signed head vouches for. What is behind it can have been cut off.
    pub signed_to: u64,
    /// Keys that were given; without any, heads are checked with the keys that they name, which proves only that they belong together.
    pub keys: u64,
    /// What is wrong.
    pub problems: Vec<String>,
}

impl Findings {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what);
        }
    }
}

struct Check<'k> {
    found: Findings,
    keys: &'k [PublicKey],
    /// Heads that were given beside, by the event that they speak of.
    heads: BTreeMap<u64, Head>,
    chain: Option<Hash>,
    /// Segments that a line says are elsewhere.
    released: u64,
}

/// Looks at the log in a directory.
pub fn verify(dir: &Path, keys: &[PublicKey]) -> io::Result<Findings> {
    let mut check = Check {
        found: Findings { keys: keys.len() as u64, ..Findings::default() },
        keys,
        heads: BTreeMap::new(),
        chain: None,
        released: 0,
    };
    for head in segment::heads(&dir.join(HEADS))? {
        check.heads.insert(head.seq, head);
    }
    let segments = segment::list(dir)?;
    if segments.is_empty() {
        check.found.problem(format!("{}: there is no segment", dir.display()));
    }
    let mut number_before = None;
    for (number, path) in &segments {
        if let Some(before) = number_before
            && before + 1 != *number
        {
            check.found.problem(format!("segments {} to {} are missing", before + 1, number - 1));
            check.chain = None;
        }
        number_before = Some(*number);
        check.segment(*number, path)?;
    }
    Ok(check.ends())
}

impl Check<'_> {
    fn segment(&mut self, number: u64, path: &Path) -> io::Result<()> {
        let name = segment::name(number);
        self.found.segments += 1;
        let mut lines = Lines::open(path)?;
        let (mut count, mut end, mut is_closed) = (0u64, 0, false);
        while let Some((line, offset)) = lines.next_line()? {
            count += 1;
            end = offset;
            let at = format!("{name}, line {count}");
            let parsed = parse(line);
            if count == 1 {
                match &parsed {
                    Some(Line::Begin(begin)) => self.begin(number, begin, &at),
                    _ => {
                        self.found.problem(format!("{at}: the segment does not begin as segments do"));
                        self.chain = None;
                    }
                }
            }
            let chain = self.chain.and_then(|chain| follow(chain, line));
            if chain.is_none() && self.chain.is_some() {
                self.found.problem(format!("{at}: the line was changed, or another one stood here"));
            }
            if is_closed {
                self.found.problem(format!("{at}: there are lines behind the end"));
            }
            let before = self.chain;
            match parsed {
                Some(Line::Entry(entry)) if count > 1 => {
                    if entry.seq != self.found.seq + 1 {
                        let (expected, seq) = (self.found.seq + 1, entry.seq);
                        self.found.problem(format!("{at}: event {seq} stands where {expected} has to be"));
                    }
                    self.found.seq = entry.seq;
                    self.found.events += 1;
                    self.released = self.released.max(released(&entry.event).unwrap_or(0));
                }
                Some(Line::End(End { end })) if count > 1 => {
                    is_closed = true;
                    self.head(&end, before, &at);
                }
                Some(Line::Begin(_)) if count == 1 => {}
                _ => self.found.problem(format!("{at}: this is no line of a log")),
            }
            // After a line that was changed, the chain goes on with what it says: the next problem is another one.
            self.chain = chain.or_else(|| crate::line::split(line).map(|(_, said)| said));
            let is_here = |head: &Head| count > 1 && head.segment == number;
            if self.heads.get(&self.found.seq).is_some_and(is_here)
                && let Some(head) = self.heads.remove(&self.found.seq)
            {
                self.head(&head, self.chain, &at);
            }
        }
        let len = std::fs::metadata(path)?.len();
        if len > end {
            self.found.problem(format!("{name}: {} bytes behind line {count} are no whole line", len - end));
        }
        if count == 0 {
            self.found.problem(format!("{name}: the segment is empty"));
            self.chain = None;
        }
        Ok(())
    }

    fn begin(&mut self, number: u64, begin: &Begin, at: &str) {
        let prev = Hash::parse(&begin.prev);
        if begin.segment != number {
            self.found.problem(format!("{at}: this is segment {}", begin.segment));
        }
        match self.chain {
            None => {
                if prev.is_none() {
                    self.found.problem(format!("{at}: the segment does not say what was before it"));
                }
                if self.found.segments == 1 {
                    self.found.node.clone_from(&begin.node);
                    self.found.segment_first = number;
                    self.found.seq = begin.first.saturating_sub(1);
                    if number == 1 && (begin.first != 1 || prev != Some(Hash::default())) {
                        self.found
                            .problem(format!("{at}: the first segment does not begin with the first event"));
                    }
                }
                self.chain = prev;
            }
            Some(chain) => {
                if prev != Some(chain) {
                    self.found.problem(format!(
                        "{at}: another segment was before this one, or its end was cut off"
                    ));
                }
                self.chain = prev.or(self.chain);
            }
        }
        if begin.node != self.found.node {
            self.found.problem(format!("{at}: the segment is of node {}", begin.node));
        }
        if begin.first != self.found.seq + 1 {
            let (last, first) = (self.found.seq + 1, begin.first.saturating_sub(1));
            self.found.problem(format!("{at}: events {last} to {first} are missing"));
            self.found.seq = begin.first.saturating_sub(1);
        }
    }

    /// A head that speaks of the chain up to here.
    fn head(&mut self, head: &Head, chain: Option<Hash>, at: &str) {
        let own: Vec<PublicKey> = PublicKey::parse(&head.key).into_iter().collect();
        let keys = if self.keys.is_empty() { &own } else { self.keys };
        if !head.is_signed_by(keys) {
            self.found.problem(format!(
                "{at}: the head of event {} is not signed by a key of the cluster",
                head.seq
            ));
            return;
        }
        let is_of_here = head.node == self.found.node && head.seq == self.found.seq;
        if !is_of_here || Hash::parse(&head.chain) != chain {
            self.found.problem(format!(
                "{at}: what stands here is not what the signed head of event {} speaks of",
                head.seq
            ));
            return;
        }
        self.found.heads += 1;
        self.found.signed_to = self.found.signed_to.max(head.seq);
    }

    fn ends(mut self) -> Findings {
        let missing: Vec<Head> = std::mem::take(&mut self.heads).into_values().collect();
        for head in missing {
            let (seq, segment) = (head.seq, head.segment);
            if segment < self.found.segment_first {
                continue;
            }
            self.found.problem(format!(
                "a signed head speaks of event {seq} in segment {segment}, which is not there"
            ));
        }
        let first = self.found.segment_first;
        if first > 1 && self.released + 1 < first {
            let gone = format!(
                "segments {} to {} are not here, and no line says that they are only in the volume",
                self.released + 1,
                first - 1
            );
            self.found.problem(gone);
        }
        self.found
    }
}
