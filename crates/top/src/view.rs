//! How a moment looks, in lines that fit the screen. The line of what is at risk is always there; of lists that do not fit,
//! the first rows are, with the number of the others.

use serde_json::{Value, json};
use stoker_store::{DriveInfo, NodeInfo, NodeWord, Risk, SourceStatus, VolumeInfo};

use super::cluster;
use super::sample::Sample;
use crate::{clock, outages, paint, show, size, span};

/// Rows of a list that are shown even if that leaves less for others: its head and one more.
const ROWS_MIN: usize = 2;
/// Characters of a bar of use.
const USE_WIDTH: usize = 4;

/// A moment and the one before it.
pub struct View<'s> {
    pub before: Option<&'s Sample>,
    pub now: &'s Sample,
}

impl View<'_> {
    /// The lines, none wider than `columns` and not more than `rows`.
    pub fn lines(&self, columns: usize, rows: usize) -> Vec<String> {
        let mut lines = vec![self.head(), self.risk(), self.drain(), self.traffic()];
        lines.extend(self.now.history.as_ref().into_iter().flat_map(cluster::lines));
        lines.extend(
            self.now.trouble.as_ref().map(|trouble| format!("trouble  {}", show::name(trouble.as_bytes()))),
        );
        lines.extend(
            self.now
                .outages
                .lost
                .iter()
                .flat_map(|outage| ["LOST    ", "cure    "].into_iter().zip([&outage.summary, &outage.cure]))
                .map(|(what, words)| format!("{what} {}", show::name(words.as_bytes()))),
        );
        lines.extend(outages::age(&self.now.outages, "risk").map(|age| format!("as of    {age}")));
        let lists = [self.nodes(), self.drives(), self.volumes()];
        let lists: Vec<&Vec<Vec<String>>> = lists.iter().filter(|list| list.len() > 1).collect();
        // A blank line before each.
        let room = rows.saturating_sub(lines.len() + lists.len());
        let lens: Vec<usize> = lists.iter().map(|list| list.len()).collect();
        for (list, share) in lists.iter().zip(shares(&lens, room)) {
            lines.push(String::new());
            lines.extend(cut(list, share));
        }
        lines.truncate(rows);
        lines.into_iter().map(|line| paint::table_line(&fitted(&line, columns))).collect()
    }

    fn head(&self) -> String {
        let time = clock::rfc3339(self.now.at_ms);
        let Some(status) = &self.now.status else { return format!("stoker  no answer  {time}") };
        let own = status.nodes.iter().find(|node| node.node == status.node);
        let name = own.map_or(status.node.as_str(), |node| node.name.as_str());
        let ready = if status.ready { "ready" } else { "NOT READY" };
        let up = span::human(self.now.at_ms.saturating_sub(status.started_ms));
        format!("stoker {}  {} {ready}, up {up}  {time}", status.version, show::name(name.as_bytes()))
    }

    /// What would be lost with the node that would be worst.
    fn risk(&self) -> String {
        let Some(risk) = &self.now.risk else { return "risk     not known".into() };
        if risk.lost_files > 0 {
            let files = show::count(risk.lost_files, "file");
            return format!(
                "risk     LOST NOW: {files}, {}: stoker risk --lost",
                size::human(risk.lost_bytes)
            );
        }
        let weight = |risk: &&Risk| (risk.lost_bytes, risk.one_copy_bytes, risk.undrained_bytes);
        let Some(worst) = risk.nodes.iter().max_by_key(weight) else { return "risk     no nodes".into() };
        let oldest = match worst.undrained_files {
            0 => String::new(),
            _ => format!(" for {}", span::human(worst.oldest_age_ms)),
        };
        let at_least = if risk.at_least { " at least" } else { "" };
        format!(
            "risk     if {} dies:{at_least} {} lost, {} in one copy; undrained {}{oldest}",
            show::name(worst.name.as_bytes()),
            size::human(worst.lost_bytes),
            size::human(worst.one_copy_bytes),
            size::human(worst.undrained_bytes)
        )
    }

    fn drain(&self) -> String {
        let Some(status) = &self.now.status else { return "drain    not known".into() };
        if let Some(trouble) = &status.lake_trouble {
            return format!(
                "drain    {} behind; lake: {}",
                size::human(status.dirty_bytes),
                show::name(trouble.as_bytes())
            );
        }
        let behind = match status.dirty_files {
            0 => "nothing behind".to_owned(),
            files => format!(
                "{}, {} behind by {}",
                show::count(files, "file"),
                size::human(status.dirty_bytes),
                span::human(status.dirty_age_ms)
            ),
        };
        let rate = mb_s(self.rate("drained_bytes_total"));
        let conflicts = match status.conflicts {
            0 => String::new(),
            count => format!(", {}", show::count(count, "conflict")),
        };
        format!("drain    {behind}; {} under way, {rate}{conflicts}", show::count(status.drains, "upload"))
    }

    fn traffic(&self) -> String {
        let classes = self.classes();
        let by_class: Vec<String> =
            classes.iter().map(|(class, rate)| format!("{class} {rate:.1}/s")).collect();
        let by_class =
            if by_class.is_empty() { String::new() } else { format!(" ({})", by_class.join(", ")) };
        let leases = match self.rate("leases_total") {
            Some(rate) if rate > 0.0 => format!(", {rate:.0} leases/s"),
            _ => String::new(),
        };
        format!(
            "commits  {}, {}{by_class}; reads {}{leases}",
            self.rate("publishes_total").map_or("-".to_owned(), |rate| format!("{rate:.1}/s")),
            mb_s(self.rate("publish_bytes_total")),
            mb_s(self.rate("read_bytes_total")),
        )
    }

    /// Commits each second by class, where the node tells them apart.
    fn classes(&self) -> Vec<(String, f64)> {
        let by = |name: &str| self.now.rates_by(self.before, name, "class");
        let found = ["commits_total", "publishes_total"].into_iter().map(by).find(|rates| !rates.is_empty());
        found.into_iter().flatten().collect()
    }

    fn rate(&self, name: &str) -> Option<f64> {
        self.now.rate(self.before, name, None)
    }

    fn nodes(&self) -> Vec<Vec<String>> {
        let mut rows =
            vec![["NODE", "STATE", "ANSWERS", "DRIVES", "UNDRAINED", "LATENCY"].map(String::from).to_vec()];
        let mut nodes: Vec<&NodeInfo> = self.now.nodes.iter().collect();
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        rows.extend(nodes.into_iter().map(|node| self.node(node)));
        rows
    }

    fn node(&self, node: &NodeInfo) -> Vec<String> {
        let answers = match NodeWord::of(&node.state, node.since_ms, node.silent_since_ms, 0) {
            NodeWord::Answers { .. } => "yes".to_owned(),
            word => word.words(self.now.at_ms),
        };
        let drives = match node.drives_gone {
            0 => node.drives.to_string(),
            gone => format!("{} ({gone} gone)", node.drives),
        };
        let name = if node.name.is_empty() { &node.node } else { &node.name };
        vec![
            show::name(name.as_bytes()),
            node.state.clone(),
            answers,
            drives,
            size::human(node.undrained_bytes),
            if node.latency_us == 0 { "-".to_owned() } else { format!("{} us", node.latency_us) },
        ]
    }

    fn drives(&self) -> Vec<Vec<String>> {
        let heads = ["DRIVE", "STATE", "WRITE", "READ", "SMALL", "P95", "LARGE", "TO KEEP"];
        let mut rows = vec![heads.map(String::from).to_vec()];
        rows.extend(self.now.drives.iter().map(|drive| self.drive(drive)));
        rows
    }

    /// Rates and times are known of the drives of the node that is asked.
    fn drive(&self, drive: &DriveInfo) -> Vec<String> {
        let rate = |name: &str| mb_s(self.now.rate(self.before, name, Some(("drive", &drive.drive))));
        let source = self.source(drive);
        let us = |time: Option<u64>| time.map_or("-".to_owned(), |us| format!("{us} us"));
        let path = end_of(&show::name(drive.path.as_bytes()), 13);
        vec![
            format!("{} {path}", show::name(drive.name.as_bytes())),
            drive.state.clone(),
            rate("ring_user_bytes_total"),
            rate("ring_read_bytes_total"),
            us(source.and_then(|source| source.small_mean_us)),
            us(source.and_then(|source| source.small_p95_us)),
            us(source.and_then(|source| source.large_mean_us)),
            used(drive),
        ]
    }

    fn source(&self, drive: &DriveInfo) -> Option<&SourceStatus> {
        let status = self.now.status.as_ref().filter(|status| status.node == drive.node)?;
        status.sources.iter().find(|source| source.kind == "drive" && source.name == drive.path)
    }

    fn volumes(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["VOLUME", "CLASS", "FILES", "BYTES"].map(String::from).to_vec()];
        let one = |volume: &VolumeInfo| {
            vec![
                volume.name.clone(),
                volume.policy.class.as_str().to_owned(),
                volume.files.to_string(),
                size::human(volume.bytes),
            ]
        };
        rows.extend(self.now.volumes.iter().map(one));
        rows
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let drive = |drive: &DriveInfo| {
            let mut value = show::plain(drive);
            let rate = |name: &str| self.now.rate(self.before, name, Some(("drive", &drive.drive)));
            value["write_bytes_per_s"] = rate("ring_user_bytes_total").into();
            value["read_bytes_per_s"] = rate("ring_read_bytes_total").into();
            value["latency"] = self.source(drive).map_or(Value::Null, show::plain);
            value
        };
        let classes: serde_json::Map<String, Value> =
            self.classes().into_iter().map(|(class, rate)| (class, rate.into())).collect();
        json!({
            "at": clock::rfc3339(self.now.at_ms),
            "trouble": self.now.trouble,
            "outages": show::plain(&self.now.outages.lost),
            "stale": show::plain(&self.now.outages.stale),
            "node": self.now.status.as_ref().map(|status| &status.node),
            "ready": self.now.status.as_ref().map(|status| status.ready),
            "risk": self.now.risk.as_ref().map(show::plain),
            "drain": {
                "files": self.now.status.as_ref().map(|status| status.dirty_files),
                "bytes": self.now.status.as_ref().map(|status| status.dirty_bytes),
                "age_ms": self.now.status.as_ref().map(|status| status.dirty_age_ms),
                "lag_s": self.now.gauge("drain_lag_seconds"),
                "uploads": self.now.status.as_ref().map(|status| status.drains),
                "bytes_per_s": self.rate("drained_bytes_total"),
            },
            "commits_per_s": self.rate("publishes_total"),
            "commits_per_s_by_class": classes,
            "commit_bytes_per_s": self.rate("publish_bytes_total"),
            "read_bytes_per_s": self.rate("read_bytes_total"),
            "nodes": self.now.nodes.iter().map(show::plain).collect::<Vec<_>>(),
            "drives": self.now.drives.iter().map(drive).collect::<Vec<_>>(),
            "volumes": self.now.volumes.iter().map(show::plain).collect::<Vec<_>>(),
        })
    }
}

/// How much of a drive must stay: its share as a bar, then its bytes.
fn used(drive: &DriveInfo) -> String {
    let share = if drive.bytes == 0 { 0.0 } else { drive.keep_bytes as f64 / drive.bytes as f64 };
    format!("{} {}", paint::bar(share, USE_WIDTH), size::human(drive.keep_bytes))
}

pub fn mb_s(bytes_per_s: Option<f64>) -> String {
    bytes_per_s.map_or("-".to_owned(), |rate| format!("{:.1} MB/s", rate / 1e6))
}

/// The end of a text, which tells more of a path than its beginning.
fn end_of(text: &str, len: usize) -> String {
    let count = text.chars().count();
    if count <= len {
        return text.to_owned();
    }
    format!("…{}", text.chars().skip(count - len + 1).collect::<String>())
}

/// A line of at most so many characters.
fn fitted(line: &str, columns: usize) -> String {
    match line.chars().count() <= columns {
        true => line.to_owned(),
        false => line.chars().take(columns.saturating_sub(1)).chain(['…']).take(columns).collect(),
    }
}

/// How many rows each list gets: all that it has, if that fits; else what others leave, and a little in any case.
fn shares(lens: &[usize], room: usize) -> Vec<usize> {
    let mut shares: Vec<usize> = lens.iter().map(|len| (*len).min(ROWS_MIN)).collect();
    loop {
        let used: usize = shares.iter().sum();
        let hungry = (0..lens.len()).filter(|at| shares[*at] < lens[*at]).min_by_key(|at| shares[*at]);
        match hungry {
            Some(at) if used < room => shares[at] += 1,
            _ => return shares,
        }
    }
}

/// So many lines of a table, the last of which counts what is left out.
fn cut(rows: &[Vec<String>], share: usize) -> Vec<String> {
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(|at| width(at).unwrap_or(0)).collect();
    // Numbers with their heads lie to the right, so that they can be compared.
    let is_number = |column: usize| {
        let cells = rows.iter().skip(1).filter_map(|row| row.get(column)).filter(|cell| *cell != "-");
        column > 0
            && cells.clone().count() > 0
            && cells.clone().all(|cell| cell.starts_with(|c: char| c.is_ascii_digit()))
    };
    let to_right: Vec<bool> = (0..widths.len()).map(is_number).collect();
    let line = |row: &Vec<String>| {
        let cells =
            row.iter().zip(widths.iter().zip(&to_right)).map(|(cell, (width, to_right))| match to_right {
                true => format!("{cell:>width$}", width = *width),
                false => format!("{cell:width$}", width = *width),
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    if rows.len() <= share {
        return rows.iter().map(line).collect();
    }
    let shown = share.saturating_sub(1);
    let more = rows.len() - shown;
    rows.iter().take(shown).map(line).chain([format!("… and {more} more")]).collect()
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
