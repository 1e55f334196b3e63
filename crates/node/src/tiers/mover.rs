//! Moves files as rules say. One node leads a set of rules; it goes through the volumes in pages, within the budget, and writes down every move before
//! and after it is made. How far it is stands in the row of the rules, so whoever goes on begins at that page. What an action does is what a person who asks for it gets: stage, drain
//! and delete of the endpoint, with the etag that was decided about. (D223)

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use stoker_catalog::kv::{Check, Commit, Outcome, Range, Row, Write, prefix_end};
use stoker_format::VersionId;
use stoker_schema::rows::{PolicyRow, RowValue, TIERS_SINCE, tier_keys};
use stoker_store::{
    Condition, DrainState, ErrorKind, FileInfo, ListEntry, ListRequest, PlannedRule, PolicyInfo, PolicyMove,
    PolicyPlan, Result, SetState, StoreError, check_lake_name,
};
use stoker_tiers::cost::{Effort, Prices};
use stoker_tiers::policy::{Action, Condition as RuleCondition, Facts, Policy, Rule};

use super::named::parse;
use crate::core::Core;
use crate::volumes::Volume;
use crate::{clock, error};

/// Sets of rules of a cluster.
const POLICIES_MAX: usize = 100;

/// Files of one page.
const PAGE: usize = 200;

/// Files that a dry run looks at.
const PLAN_FILES_MAX: u64 = 2_000_000;

/// Published sets of a volume that rules know.
const SETS_MAX: usize = 10_000;

/// Moves that are kept for each set of rules, at least.
const MOVES_MAX: usize = 10_000;

/// Moves of one answer.
const MOVES_TOLD: usize = 1_000;

/// Pause between two passes.
const PASS_MS: u64 = 3_600_000;

/// Tries of a transaction that others were quicker with.
const TRIES_MAX: usize = 32;

/// What the row of a set of rules says.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    info: PolicyInfo,
    text: String,
    /// Number of the volume that the pass is in, among those of the rules.
    at: usize,
    /// Everything up to this key is done.
    after: Option<Vec<u8>>,
}

impl Stored {
    fn of(row: &Row) -> Result<Stored> {
        let body = PolicyRow::of(row).map_err(error::catalog)?.body;
        serde_json::from_slice(&body)
            .map_err(|fault| StoreError::new(ErrorKind::Corrupt, format!("a policy cannot be read: {fault}")))
    }

    fn encode(&self) -> Vec<u8> {
        PolicyRow { body: serde_json::to_vec(self).expect("plain data encodes") }.encode()
    }
}

/// What is needed to judge files of a volume.
struct View {
    volume: Arc<Volume>,
    /// Directories of published sets with how many newer ones there are.
    sets: Vec<(Vec<u8>, u32)>,
    prices: Option<Prices>,
    wants_access: bool,
    wants_local: bool,
}

/// With how many newer ones stand beside each, in the same directory: sets of two jobs are no series. The latest comes first.
fn newer_siblings(sets: impl Iterator<Item = Vec<u8>>) -> Vec<(Vec<u8>, u32)> {
    let mut series: HashMap<Vec<u8>, u32> = HashMap::new();
    let count = |path: Vec<u8>| {
        let name = path.strip_suffix(b"/").unwrap_or(&path);
        let parent = name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let newer = series.entry(path[..parent].to_vec()).or_default();
        *newer += 1;
        (path, *newer - 1)
    };
    sets.map(count).collect()
}

fn parsed(text: &str) -> Result<Policy> {
    Policy::parse(text).map_err(|fault| StoreError::new(ErrorKind::Invalid, fault.to_string()))
}

fn unknown(name: &str) -> StoreError {
    let message = format!("there is no policy `{name}`; `stoker policy ls` lists them");
    StoreError::new(ErrorKind::NotFound, message)
}

impl Core {
    async fn view_for(self: &Arc<Core>, policy: &Policy, name: &str) -> Result<View> {
        let volume = self.volumes.get(name).await?;
        let mut sets = Vec::new();
        if policy.wants_sets(name) {
            let mut after = None;
            loop {
                let page = self.sets_page(&volume, after, 1_000).await?;
                after = page.sets.last().map(|set| set.set);
                sets.extend(page.sets.into_iter().filter(|set| set.state == SetState::Published));
                if !page.more {
                    break;
                }
                if sets.len() >= SETS_MAX {
                    // Of what was not seen nobody knows whether it is newer.
                    let message = format!(
                        "volume `{name}` has more than {SETS_MAX} sets; rules about sets are not for it"
                    );
                    return Err(StoreError::new(ErrorKind::Full, message));
                }
            }
            sets.sort_by_key(|set| std::cmp::Reverse(set.seq));
        }
        let sets = newer_siblings(sets.into_iter().map(|set| set.path.as_bytes().to_vec()));
        let lake = volume.lake_url.as_deref().and_then(parse);
        let prices = match lake {
            Some((lake, _)) => {
                let cost = self.volumes.lakes().named.get(lake).await?.info.cost;
                Some(Prices {
                    writes_1000: cost.writes_1000,
                    reads_1000: cost.reads_1000,
                    gb_read: cost.gb_read,
                })
            }
            None => None,
        };
        let of_volume = || policy.rules.iter().filter(|rule| rule.volumes.iter().any(|one| one == name));
        let is_idle = |rule: &Rule| rule.when.iter().any(|one| matches!(one, RuleCondition::Idle(_)));
        let (wants_access, wants_local) =
            (of_volume().any(is_idle), of_volume().any(|rule| rule.then == Action::Stage));
        Ok(View { volume, sets, prices, wants_access, wants_local })
    }

    /// A page of files with what rules ask of them; true if there are more. Before a time nobody looked who opened what: as if all were opened then.
    async fn facts_page(
        self: &Arc<Core>,
        view: &View,
        after: Option<Vec<u8>>,
        known_since_ms: Option<u64>,
    ) -> Result<(Vec<(FileInfo, Facts)>, bool)> {
        let request = ListRequest { prefix: Vec::new(), delimiter: None, after: after.clone(), limit: PAGE };
        let page = self.list_page(&view.volume, request).await?;
        let infos: Vec<FileInfo> = page
            .entries
            .into_iter()
            .filter_map(|entry| match entry {
                ListEntry::File(info) => Some(*info),
                ListEntry::Prefix(_) => None,
            })
            .collect();
        let seen = match view.wants_access {
            true => {
                let keys: Vec<&[u8]> = infos.iter().map(|info| info.key.as_bytes()).collect();
                self.seen_between(view.volume.id, after.as_deref(), &keys).await?
            }
            false => Default::default(),
        };
        let mut files = Vec::with_capacity(infos.len());
        for info in infos {
            let key = info.key.as_bytes();
            let here_ms = self.recency.here_ms(view.volume.id, key);
            let newer = view.sets.iter().find(|(path, _)| key.starts_with(path)).map(|(_, newer)| *newer);
            let is_clean = info.drain == DrainState::Clean;
            let local_bytes = match view.wants_local && is_clean {
                true => self.local_bytes(&view.volume, key).await?,
                false => 0,
            };
            let facts = Facts {
                key: String::from_utf8_lossy(key).into_owned(),
                size: info.size,
                modified_ms: info.modified_ms,
                accessed_ms: seen.get(key).copied().max(here_ms).max(known_since_ms),
                is_clean,
                local_bytes,
                tags: info.attributes.tags.clone(),
                owner: info.attributes.owner.map(|(uid, _)| uid),
                newer_sets: newer,
            };
            files.push((info, facts));
        }
        Ok((files, page.more))
    }

    /// Bytes of a file on drives of this node.
    async fn local_bytes(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8]) -> Result<u64> {
        let Some(seen) = self.seen(volume, key).await? else { return Ok(0) };
        let runs = self.names.runs(&seen.file).await.map_err(error::catalog)?;
        let here = crate::rings::chunks(&runs)
            .filter(|(chunk, len)| self.rings.find(chunk, *len as usize).is_some())
            .map(|(_, len)| u64::from(len));
        Ok(here.sum())
    }

    /// What rules would do now, and what that takes. Changes nothing.
    pub(super) async fn policy_plan(self: &Arc<Core>, text: &str) -> Result<PolicyPlan> {
        let policy = parsed(text)?;
        let mut plan = PolicyPlan {
            rules: policy
                .rules
                .iter()
                .map(|rule| PlannedRule {
                    rule: rule.name.clone(),
                    action: rule.then.as_str().to_owned(),
                    ..PlannedRule::default()
                })
                .collect(),
            is_priced: true,
            ..PolicyPlan::default()
        };
        let mut total = Effort::default();
        for name in policy.volumes() {
            let view = self.view_for(&policy, &name).await?;
            plan.is_priced &= view.prices.is_some();
            let mut after = None;
            loop {
                self.check_open()?;
                let (files, more) = self.facts_page(&view, after.clone(), None).await?;
                let now_ms = clock::now_ms();
                for (info, facts) in &files {
                    plan.looked += 1;
                    after = Some(info.key.as_bytes().to_vec());
                    let Some(rule) = policy.decide(&name, facts, now_ms) else { continue };
                    let effort = Effort::of(rule.then, facts, u64::from(self.chunk_bytes));
                    let at = policy.rules.iter().position(|one| one.name == rule.name).unwrap_or_default();
                    total = total.and(effort);
                    let planned = &mut plan.rules[at];
                    planned.files += 1;
                    planned.file_bytes += info.size;
                    planned.requests += effort.requests();
                    planned.bytes += effort.bytes();
                    planned.micros += view.prices.map_or(0, |prices| effort.price(&prices));
                }
                if !more || files.is_empty() {
                    break;
                }
                if plan.looked >= PLAN_FILES_MAX {
                    plan.at_least = true;
                    return Ok(plan);
                }
            }
        }
        let span = |units: u64, per_s: u64| units.checked_div(per_s).unwrap_or_default();
        plan.seconds = span(total.requests(), policy.budget.requests_per_s)
            .max(span(total.bytes(), policy.budget.bytes_per_s));
        Ok(plan)
    }

    async fn policy_rows(&self) -> Result<Vec<(Row, Stored)>> {
        let mut rows = Vec::new();
        self.each(tier_keys::POLICIES.to_vec(), |row| {
            match Stored::of(row) {
                Ok(stored) => rows.push((row.clone(), stored)),
                // One that cannot be read stops no other.
                Err(fault) => tracing::warn!("{}", fault.message),
            }
            Ok(())
        })
        .await?;
        Ok(rows)
    }

    /// Every set of rules.
    pub(super) async fn policies(&self) -> Result<Vec<PolicyInfo>> {
        Ok(self.policy_rows().await?.into_iter().map(|(_, stored)| stored.info).collect())
    }

    /// Keeps rules and begins to act by them; those of the same name are replaced.
    pub(super) async fn policy_set(self: &Arc<Core>, name: &str, text: &str) -> Result<PolicyInfo> {
        check_lake_name(name)
            .map_err(|fault| StoreError { message: fault.message.replace("a lake", "a policy"), ..fault })?;
        if self.level.get() < TIERS_SINCE {
            let message = format!("policies need level {TIERS_SINCE} of the cluster; `stoker cluster level`");
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        let policy = parsed(text)?;
        for volume in policy.volumes() {
            self.volumes.get(&volume).await?;
        }
        if self.policy_rows().await?.len() >= POLICIES_MAX {
            return Err(StoreError::new(ErrorKind::Full, format!("at most {POLICIES_MAX} policies")));
        }
        let info = PolicyInfo {
            name: name.to_owned(),
            created_ms: clock::now_ms(),
            volumes: policy.volumes(),
            rules: policy.rules.iter().map(|rule| rule.name.clone()).collect(),
            ..PolicyInfo::default()
        };
        let stored = Stored { info: info.clone(), text: text.to_owned(), at: 0, after: None };
        let commit = Commit::new().put(tier_keys::policy(name), stored.encode());
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => self.saw(seq),
            Outcome::Failed { .. } => return Err(contended()),
        }
        self.drainer.wake();
        Ok(info)
    }

    /// Acts no more by rules, and forgets what was moved by them.
    pub(super) async fn policy_remove(&self, name: &str) -> Result<()> {
        let key = tier_keys::policy(name);
        let moves = tier_keys::moves(name);
        let end = prefix_end(&moves).expect("tables are not 0xff");
        let mut commit = Commit::new().check(Check::Present(key.clone())).delete(key);
        commit.writes.push(Write::DeleteRange(moves, end));
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                Ok(())
            }
            Outcome::Failed { .. } => Err(unknown(name)),
        }
    }

    /// What was moved, oldest first, behind a number.
    pub(super) async fn policy_moves(
        &self,
        name: &str,
        after: Option<(u64, u32)>,
    ) -> Result<(Vec<PolicyMove>, bool)> {
        if !self.policies().await?.iter().any(|info| info.name == name) {
            return Err(unknown(name));
        }
        let mut range = Range::prefix(&tier_keys::moves(name), MOVES_TOLD);
        if let Some((at_ms, number)) = after {
            range = range.after(&tier_keys::moved(name, at_ms, number));
        }
        let page = self.catalog.range(range).await.map_err(error::catalog)?;
        let read = |row: &Row| {
            let body = PolicyRow::of(row).map_err(error::catalog)?.body;
            serde_json::from_slice::<PolicyMove>(&body)
                .map_err(|fault| StoreError::new(ErrorKind::Corrupt, format!("a move: {fault}")))
        };
        Ok((page.rows.iter().map(read).collect::<Result<_>>()?, page.more))
    }

    /// A page of every set of rules that this node leads.
    pub(crate) async fn mover_round(self: &Arc<Core>) -> Result<bool> {
        self.write_recency().await?;
        let rows = self.policy_rows().await?;
        let mut wanted = HashSet::new();
        for (_, stored) in &rows {
            if let Ok(policy) = Policy::parse(&stored.text) {
                for name in policy.volumes() {
                    wanted.extend(self.volumes.get(&name).await.ok().map(|volume| volume.id.0));
                }
            }
        }
        self.recency.want(wanted);
        for (row, stored) in rows {
            if self.cell.is_mine(policy_id(&stored.info.name)) && stored.info.next_ms <= clock::now_ms() {
                let name = stored.info.name.clone();
                if let Err(fault) = self.mover_step(row, stored).await {
                    tracing::warn!(policy = name, "moving files: {fault}");
                }
            }
        }
        Ok(false)
    }

    async fn mover_step(self: &Arc<Core>, mut row: Row, mut stored: Stored) -> Result<()> {
        let policy = parsed(&stored.text)?;
        let volumes = policy.volumes();
        let Some(name) = volumes.get(stored.at) else {
            (stored.at, stored.after) = (0, None);
            stored.info.passes += 1;
            stored.info.next_ms = clock::now_ms() + PASS_MS;
            self.trim_moves(&stored.info.name).await?;
            return self.store_policy(row, &stored, Vec::new()).await.map(|_| ());
        };
        let view = match self.view_for(&policy, name).await {
            Ok(view) => view,
            Err(fault) if fault.kind == ErrorKind::NotFound => {
                (stored.at, stored.after) = (stored.at + 1, None);
                return self.store_policy(row, &stored, Vec::new()).await.map(|_| ());
            }
            Err(fault) => return Err(fault),
        };
        let since_ms = Some(stored.info.created_ms);
        let (files, more) = self.facts_page(&view, stored.after.clone(), since_ms).await?;
        let (at_ms, before) = (clock::now_ms(), stored.encode());
        let (picked, done) = self.pick(&policy, &view, &files, (at_ms, &mut stored));
        if done && !more {
            (stored.at, stored.after) = (stored.at + 1, None);
        }
        // What is about to be done is written down first: a node that dies leaves no move that nobody knows of.
        let policy_name = stored.info.name.clone();
        let key = |number: usize| tier_keys::moved(&policy_name, at_ms, number as u32);
        if !picked.is_empty() {
            // With a new number, so that of two who lead only one begins.
            let mut begun = Commit::new().seq(row.key.clone(), row.seq).put(row.key.clone(), before);
            for (number, (_, one)) in picked.iter().enumerate() {
                begun = begun.put(key(number), encode(one));
            }
            match self.catalog.commit(begun).await.map_err(error::catalog)? {
                Outcome::Done { seq } => row.seq = seq,
                // Somebody else leads, or the rules were replaced.
                Outcome::Failed { .. } => return Ok(()),
            }
        }
        let mut ended = Vec::new();
        for (number, (info, mut one)) in picked.into_iter().enumerate() {
            let now = self.catalog.get(&[&row.key]).await.map_err(error::catalog)?.pop().flatten();
            if self.closing.load(Ordering::Relaxed) || now.is_none_or(|now| now.seq != row.seq) {
                // The node stops, or the rules were taken away or replaced.
                return Ok(());
            }
            let acted = self.act(&view.volume, &info, &one.action).await;
            match acted {
                Ok(()) => {
                    one.result = "done".to_owned();
                    stored.info.moved_files += 1;
                    stored.info.moved_bytes += one.bytes;
                    stored.info.requests += one.requests;
                    stored.info.micros += one.micros;
                }
                Err(fault) => {
                    one.result = format!("failed: {}", fault.message.chars().take(200).collect::<String>());
                    stored.info.failed_files += 1;
                }
            }
            ended.push((key(number), encode(&one)));
        }
        stored.info.next_ms = 0;
        self.store_policy(row, &stored, ended).await.map(|_| ())
    }

    /// What a page's rules do, as far as the budget of this round goes. False if it ended before the page.
    fn pick(
        &self,
        policy: &Policy,
        view: &View,
        files: &[(FileInfo, Facts)],
        (at_ms, stored): (u64, &mut Stored),
    ) -> (Vec<(FileInfo, PolicyMove)>, bool) {
        let (mut picked, mut spent) = (Vec::new(), Effort::default());
        let name = &view.volume.name;
        let over = |units: u64, per_s: u64| per_s > 0 && units > per_s;
        for (info, facts) in files {
            if let Some(rule) = policy.decide(name, facts, at_ms) {
                let effort = Effort::of(rule.then, facts, u64::from(self.chunk_bytes));
                let sum = spent.and(effort);
                let is_over = over(sum.requests(), policy.budget.requests_per_s)
                    || over(sum.bytes(), policy.budget.bytes_per_s);
                // One that is more than a whole budget goes alone.
                if is_over && !picked.is_empty() {
                    return (picked, false);
                }
                spent = sum;
                let one = PolicyMove {
                    at_ms,
                    number: picked.len() as u32,
                    volume: name.clone(),
                    key: facts.key.clone(),
                    rule: rule.name.clone(),
                    action: rule.then.as_str().to_owned(),
                    reason: reason(rule, facts, at_ms),
                    bytes: info.size,
                    requests: effort.requests(),
                    micros: view.prices.map_or(0, |prices| effort.price(&prices)),
                    result: "begun".to_owned(),
                };
                picked.push((info.clone(), one));
            }
            stored.info.looked += 1;
            stored.after = Some(info.key.as_bytes().to_vec());
        }
        (picked, true)
    }

    async fn act(self: &Arc<Core>, volume: &Arc<Volume>, info: &FileInfo, action: &str) -> Result<()> {
        let key = info.key.as_bytes();
        match action {
            "delete" => {
                // What was decided about, and nothing newer.
                let condition = Condition { if_match: Some(vec![info.etag.clone()]), ..Condition::default() };
                self.delete_file(volume, key, &condition).await.map(|_| ())
            }
            "stage" => {
                let seen = self.seen(volume, key).await?;
                let gone = || StoreError::new(ErrorKind::NotFound, "it is gone");
                let seen = seen.ok_or_else(gone)?;
                let extent = self.extent(volume, &seen.file).await?;
                let file = self.open_file(volume, key).await?;
                self.stage_file(&file, extent.as_ref()).await.map(|_| ())
            }
            _ => {
                let seen = self.seen(volume, key).await?;
                if let Some(seen) = seen {
                    self.drainer.demand_once(&seen.file);
                }
                Ok(())
            }
        }
    }

    async fn store_policy(&self, row: Row, stored: &Stored, moves: Vec<(Vec<u8>, Vec<u8>)>) -> Result<bool> {
        let mut commit = Commit::new().seq(row.key.clone(), row.seq).put(row.key, stored.encode());
        for (key, value) in moves {
            commit = commit.put(key, value);
        }
        let done = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    /// Forgets the oldest moves beyond the limit.
    async fn trim_moves(&self, name: &str) -> Result<()> {
        let moves = tier_keys::moves(name);
        for _ in 0..TRIES_MAX {
            let page =
                self.catalog.range(Range::prefix(&moves, MOVES_MAX + 1)).await.map_err(error::catalog)?;
            if page.rows.len() <= MOVES_MAX && !page.more {
                return Ok(());
            }
            let Some(half) = page.rows.get(page.rows.len() / 2) else { return Ok(()) };
            let mut commit = Commit::new();
            commit.writes.push(Write::DeleteRange(moves.clone(), half.key.clone()));
            let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
        }
        Ok(())
    }
}

fn encode(one: &PolicyMove) -> Vec<u8> {
    PolicyRow { body: serde_json::to_vec(one).expect("plain data encodes") }.encode()
}

/// Why a rule acts on a file, in words.
fn reason(rule: &Rule, facts: &Facts, now_ms: u64) -> String {
    let days = |since_ms: u64| now_ms.saturating_sub(since_ms) / 86_400_000;
    let parts: Vec<String> = rule
        .when
        .iter()
        .map(|condition| match condition {
            RuleCondition::Idle(_) => {
                format!(
                    "not opened for {} days",
                    days(facts.modified_ms.max(facts.accessed_ms.unwrap_or_default()))
                )
            }
            RuleCondition::Older(_) => format!("written {} days ago", days(facts.modified_ms)),
            RuleCondition::Larger(_) | RuleCondition::Smaller(_) => format!("{} bytes", facts.size),
            RuleCondition::Prefix(prefix) => format!("below {prefix}"),
            RuleCondition::Tag(name, value) => format!("tag {name}={value}"),
            RuleCondition::Owner(owner) => format!("owner {owner}"),
            RuleCondition::SetsBut(_) => {
                format!("{} newer sets", facts.newer_sets.unwrap_or_default())
            }
        })
        .collect();
    if parts.is_empty() { "every file".to_owned() } else { parts.join(", ") }
}

fn policy_id(name: &str) -> VersionId {
    let mut id = [0x70; 12];
    id[8..].copy_from_slice(&stoker_format::crc32c(name.as_bytes()).to_be_bytes());
    VersionId(id)
}

fn contended() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "policies are contended; try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_two_series_are_counted_apart() {
        let sets = ["a/step-3/", "b/step-9/", "a/step-2/", "step-1/", "a/step-1/", "b/step-8/"];
        let found = newer_siblings(sets.iter().map(|path| path.as_bytes().to_vec()));
        let newer: Vec<u32> = found.iter().map(|(_, newer)| *newer).collect();
        assert_eq!(newer, [0, 0, 1, 0, 2, 1]);
        assert_eq!(found[2].0, b"a/step-2/");
    }
}
