//! What would be lost with a node or a cell, and what is.

use std::collections::{BTreeSet, HashMap};

use stoker_format::{DriveId, NodeId, VersionId, VolumeId};
use stoker_schema::rows::keys;
use stoker_store::{LostFile, Result, Risk, RiskReport};

use crate::census::{Census, Fate, Part, Undrained};
use crate::clock;
use crate::core::Core;

/// Lost files that are told at most.
pub(crate) const TOLD_MAX: usize = 10_000;

impl Core {
    /// What would be lost with each node and each cell.
    pub(crate) async fn risk(&self) -> Result<RiskReport> {
        let census = self.census().await?;
        let (view, now_ms) = (self.cell.view(), clock::now_ms());
        let counts = |node: NodeId, drive: DriveId| self.is_readable(&view, node, drive);
        let of_node = |node: NodeId| Risk {
            node: node.to_string(),
            name: view.name(node),
            cell: view.cell_of(node).to_owned(),
            state: view.state_word(node).to_owned(),
            ..census.risk(now_ms, counts, |other| other == node)
        };
        let cells: BTreeSet<&str> = view.nodes().map(|node| view.cell_of(node)).collect();
        let of_cell = |cell: &&str| Risk {
            name: (*cell).to_owned(),
            cell: (*cell).to_owned(),
            ..census.risk(now_ms, counts, |node| view.cell_of(node) == *cell)
        };
        let mut report = RiskReport {
            nodes: match view.size() {
                0 => vec![Risk { name: self.node.to_string(), ..of_node(self.node) }],
                _ => view.nodes().map(of_node).collect(),
            },
            cells: cells.iter().map(of_cell).collect(),
            lost_files: 0,
            lost_bytes: 0,
            at_least: census.at_least,
        };
        report.nodes.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        for one in census.versions.values().filter(|one| census.fate(one, counts) == Fate::Lost) {
            report.lost_files += 1;
            report.lost_bytes += one.bytes;
        }
        Ok(report)
    }

    /// Files of which no copy can be read now, or not all of it, the oldest first.
    pub(crate) async fn lost_files(&self) -> Result<Vec<LostFile>> {
        let census = self.census().await?;
        let view = self.cell.view();
        let counts = |node: NodeId, drive: DriveId| self.is_readable(&view, node, drive);
        let mut lost: Vec<(&VersionId, &Undrained, Fate)> = census
            .versions
            .iter()
            .map(|(version, one)| (version, one, census.fate(one, counts)))
            .filter(|(_, _, fate)| *fate != Fate::Safe)
            .collect();
        lost.sort_by_key(|(version, one, _)| (one.since_ms, **version));
        let mut told = Vec::new();
        for (version, one, fate) in lost.into_iter().take(TOLD_MAX) {
            self.tell_lost(*version, one, fate, &mut told).await?;
        }
        self.tell_lost_parts(&census, |_| true, counts, &mut told).await?;
        Ok(told)
    }

    /// One for each part of an unfinished upload, of those asked for, that no place has which counts.
    pub(crate) async fn tell_lost_parts(
        &self,
        census: &Census,
        is_asked: impl Fn(&Part) -> bool,
        counts: impl Fn(NodeId, DriveId) -> bool,
        told: &mut Vec<LostFile>,
    ) -> Result<()> {
        let is_lost =
            |part: &&Part| is_asked(part) && !part.places.iter().any(|(node, drive)| counts(*node, *drive));
        let lost: Vec<&Part> = census.parts.iter().filter(is_lost).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let mut uploads: HashMap<VersionId, (VolumeId, Vec<u8>)> = HashMap::new();
        self.each(keys::UPLOADS.to_vec(), |row| {
            if let (Some((key, upload)), Some(volume)) =
                (keys::upload_parts(&row.key), keys::volume_part(&row.key))
            {
                uploads.insert(upload, (volume, key.to_vec()));
            }
            Ok(())
        })
        .await?;
        let view = self.cell.view();
        for part in lost.into_iter().take(TOLD_MAX.saturating_sub(told.len())) {
            // Aborted meanwhile.
            let Some((volume, key)) = uploads.get(&part.upload) else { continue };
            let name = self.volumes.by_id(*volume).await?.map(|volume| volume.name.clone());
            let words = format!(" (part {} of an unfinished upload)", part.number);
            let nodes: BTreeSet<String> = part.places.iter().map(|(node, _)| view.name(*node)).collect();
            told.push(LostFile {
                volume: name.unwrap_or_else(|| volume.0.to_string()),
                key: [key, words.as_bytes()].concat(),
                version: part.version.to_string(),
                bytes: part.bytes,
                since_ms: part.since_ms,
                whole: true,
                nodes: nodes.into_iter().collect(),
                may_return: part.places.iter().any(|(_, drive)| view.is_drive_live(*drive)),
            });
        }
        Ok(())
    }

    /// One for each name of a version.
    pub(crate) async fn tell_lost(
        &self,
        version: VersionId,
        one: &Undrained,
        fate: Fate,
        told: &mut Vec<LostFile>,
    ) -> Result<()> {
        let view = self.cell.view();
        let nodes: BTreeSet<String> = one.places.iter().map(|(node, _)| view.name(*node)).collect();
        let may_return = |(node, drive): &(NodeId, DriveId)| {
            !self.is_readable(&view, *node, *drive) && view.is_drive_live(*drive)
        };
        let volume = self.volumes.by_id(VolumeId(one.volume)).await?;
        let lost = LostFile {
            volume: volume.map_or_else(|| one.volume.to_string(), |volume| volume.name.clone()),
            key: Vec::new(),
            version: version.to_string(),
            bytes: one.bytes,
            since_ms: one.since_ms,
            whole: fate == Fate::Lost,
            nodes: nodes.into_iter().collect(),
            may_return: one.places.iter().any(may_return),
        };
        let names = self.names_of(version).await?;
        if names.is_empty() {
            told.push(lost);
            return Ok(());
        }
        for located in names {
            let key = self.names.path_of(&located.spot).await.map_err(crate::error::catalog)?;
            told.push(LostFile { key: key.unwrap_or_default(), ..lost.clone() });
        }
        Ok(())
    }
}
