//! Notices on their way to those who repair. Each is sent until it is taken; what nobody takes is kept and can be seen. Of one work order
//! each target gets one notice at a time, in order.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::order::{OrderStatus, WorkOrder};
use crate::time::Time;

/// Notices that are kept.
pub const NOTICES_MAX: usize = 1_024;

/// Pause after the first failure; doubled by each further one.
const PAUSE_MS: u64 = 5_000;

/// Longest pause.
const PAUSE_MS_MAX: u64 = 900_000;

/// Words that are kept of a failure.
const WHY_LEN_MAX: usize = 300;

/// What is to be sent, to whom, and what became of it so far.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Notice {
    /// Names it in answers.
    pub id: u64,
    /// The target's name.
    pub target: String,
    /// What.
    pub order: WorkOrder,
    /// Tries so far. From the second on it may have arrived before.
    pub tries: u32,
    /// Not before.
    pub due: Time,
    /// Why the last try failed.
    pub why: Option<String>,
    /// The target does not want it, and will not want it the next time. It waits for a person.
    pub parked: bool,
    /// The id that the target gave the work order.
    pub remote: Option<String>,
}

/// What a try came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It was taken; with the id that the target gave it, if it gives any.
    Taken {
        /// The id.
        remote: Option<String>,
    },
    /// Not now.
    Later {
        /// Why.
        why: String,
    },
    /// Not like this.
    Never {
        /// Why.
        why: String,
    },
}

impl Answer {
    /// Of an HTTP status: what a repetition may change is tried again.
    pub fn of_status(status: u16, remote: Option<String>) -> Answer {
        let why = format!("status {status}");
        match status {
            200..300 => Answer::Taken { remote },
            // A wrong token or address may be put right without us noticing.
            401 | 403 | 404 | 408 | 425 | 429 | 500.. => Answer::Later { why },
            _ => Answer::Never { why },
        }
    }
}

/// Everything that is to be sent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Outbox {
    next_id: u64,
    notices: Vec<Notice>,
    /// Ids that targets gave, of work orders that are open: target, key, id.
    remotes: Vec<(String, String, String)>,
    /// Notices that found no room.
    pub dropped: u64,
}

impl Outbox {
    /// Keeps a notice for a target until it is taken. The same twice is once.
    pub fn push(&mut self, target: &str, order: &WorkOrder, now: Time) {
        let of_order = |notice: &&mut Notice| notice.target == target && notice.order.key == order.key;
        let mut waiting: Vec<&mut Notice> = self.notices.iter_mut().filter(of_order).collect();
        if waiting.iter().any(|notice| notice.order == *order) {
            return;
        }
        // What nobody was told yet is told as it is now, and an end that came before the beginning was told is no news.
        if let Some(last) = waiting.last_mut().filter(|notice| notice.tries == 0) {
            match (last.order.status, order.status) {
                (OrderStatus::Opened, OrderStatus::Closed) => {
                    let id = last.id;
                    self.notices.retain(|notice| notice.id != id);
                    return;
                }
                (OrderStatus::Opened, _) => {
                    last.order = WorkOrder { status: OrderStatus::Opened, ..order.clone() };
                    return;
                }
                (OrderStatus::Updated, OrderStatus::Updated) => {
                    last.order = order.clone();
                    return;
                }
                _ => {}
            }
        }
        if self.notices.len() >= NOTICES_MAX && !self.make_room() {
            self.dropped += 1;
            return;
        }
        self.next_id += 1;
        self.notices.push(Notice {
            id: self.next_id,
            target: target.to_owned(),
            order: order.clone(),
            tries: 0,
            due: now,
            why: None,
            parked: false,
            remote: None,
        });
    }

    /// Drops what matters least: an update, whose successor says more.
    fn make_room(&mut self) -> bool {
        let least = self.notices.iter().position(|notice| notice.order.status == OrderStatus::Updated);
        if let Some(at) = least {
            self.notices.remove(at);
            self.dropped += 1;
        }
        least.is_some()
    }

    /// A notice is being sent: from now on somebody may have been told. To be kept before it is sent.
    pub fn begin(&mut self, id: u64) {
        if let Some(notice) = self.notices.iter_mut().find(|notice| notice.id == id) {
            notice.tries = notice.tries.saturating_add(1);
        }
    }

    /// It was not sent after all.
    pub fn not_begun(&mut self, id: u64) {
        if let Some(notice) = self.notices.iter_mut().find(|notice| notice.id == id) {
            notice.tries = notice.tries.saturating_sub(1);
        }
    }

    /// What is to be sent now. It stays until it is answered.
    pub fn due(&self, now: Time) -> Vec<Notice> {
        let mut busy: BTreeSet<(&str, &str)> = BTreeSet::new();
        let mut due = Vec::new();
        for notice in self.notices.iter().filter(|notice| !notice.parked) {
            let whose = (notice.target.as_str(), notice.order.key.as_str());
            if !busy.insert(whose) {
                continue;
            }
            // A clock that was set back must not keep it for longer than any pause.
            if notice.due <= now || notice.due.since_ms(now) > PAUSE_MS_MAX * 2 {
                due.push(Notice {
                    remote: self.remote(whose.0, whose.1).map(str::to_owned),
                    ..notice.clone()
                });
            }
        }
        due
    }

    /// What became of a try.
    pub fn answered(&mut self, id: u64, now: Time, answer: Answer) {
        let Some(at) = self.notices.iter().position(|notice| notice.id == id) else { return };
        let why = match answer {
            Answer::Taken { remote } => {
                let notice = self.notices.remove(at);
                self.remember(notice, remote);
                return;
            }
            Answer::Later { why } => why,
            Answer::Never { why } => {
                self.notices[at].parked = true;
                why
            }
        };
        let notice = &mut self.notices[at];
        notice.why = Some(why.chars().take(WHY_LEN_MAX).collect());
        notice.due = Time(now.0.saturating_add(pause_ms(notice.id, notice.tries)));
    }

    fn remember(&mut self, notice: Notice, remote: Option<String>) {
        let (target, key) = (notice.target, notice.order.key);
        if notice.order.status == OrderStatus::Closed {
            self.remotes.retain(|(of, order, _)| *of != target || *order != key);
        } else if let Some(remote) = remote
            && self.remote(&target, &key).is_none()
        {
            if self.remotes.len() >= NOTICES_MAX {
                self.remotes.remove(0);
            }
            self.remotes.push((target, key, remote));
        }
    }

    fn remote(&self, target: &str, key: &str) -> Option<&str> {
        let found = self.remotes.iter().find(|(of, order, _)| of == target && order == key);
        found.map(|(_, _, remote)| remote.as_str())
    }

    /// Everything that was not taken yet, for people.
    pub fn waiting(&self) -> &[Notice] {
        &self.notices
    }

    /// Tries everything again at once, also what was not wanted: a person says that the reason is gone.
    pub fn retry_all(&mut self, now: Time) {
        for notice in &mut self.notices {
            (notice.parked, notice.due) = (false, now);
        }
    }

    /// Drops what is for targets that are not configured any more.
    pub fn keep_targets(&mut self, is_known: impl Fn(&str) -> bool) {
        self.notices.retain(|notice| is_known(&notice.target));
        self.remotes.retain(|(target, ..)| is_known(target));
    }
}

/// The pause after so many tries, up to a quarter shorter so that notices do not all come at once.
fn pause_ms(id: u64, tries: u32) -> u64 {
    let pause_ms = PAUSE_MS.saturating_mul(1 << (tries.saturating_sub(1)).min(20)).min(PAUSE_MS_MAX);
    pause_ms - id.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (pause_ms / 4)
}

#[cfg(test)]
mod tests;
