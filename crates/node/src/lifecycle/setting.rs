//! Rules of a volume as its settings keep them.

use std::sync::Arc;

use stoker_catalog::kv::{Catalog, Commit, Outcome};
use stoker_format::VolumeId;
use stoker_schema::names::Refusal;
use stoker_schema::rows::{RowValue, SettingRow, VolumeRow, keys};
use stoker_store::{ErrorKind, LIFECYCLE_SETTING, Result, StoreError};
use stoker_tiers::lifecycle::Lifecycle;

use super::pass::Progress;
use crate::core::Core;
use crate::error;
use crate::volumes::Volume;
use crate::volumes::settings::LEN_MAX;

/// Most pieces: a thousand rules with prefixes of half a KiB.
const PIECES_MAX: usize = 16;

/// Tries of a change that others keep getting in the way of.
const TRIES_MAX: usize = 100;

/// The key of a piece. The first one begins with a byte that says how many there are.
fn piece_key(volume: VolumeId, number: usize) -> Vec<u8> {
    match number {
        0 => keys::setting(volume, LIFECYCLE_SETTING),
        number => keys::setting(volume, &format!("{LIFECYCLE_SETTING}/{number:02}")),
    }
}

/// The document, from its first piece on.
async fn document(catalog: &dyn Catalog, volume: VolumeId, first: &[u8]) -> Result<Vec<u8>> {
    let corrupt = || StoreError::new(ErrorKind::Corrupt, "lifecycle rules cannot be read: a piece lacks");
    let (count, start) = first.split_first().ok_or_else(corrupt)?;
    let mut whole = start.to_vec();
    let others: Vec<Vec<u8>> = (1..usize::from(*count)).map(|number| piece_key(volume, number)).collect();
    if !others.is_empty() {
        let asked: Vec<&[u8]> = others.iter().map(Vec::as_slice).collect();
        for row in catalog.get(&asked).await.map_err(error::catalog)? {
            let row = row.ok_or_else(corrupt)?;
            whole.extend(SettingRow::of(&row).map_err(error::catalog)?.document);
        }
    }
    Ok(whole)
}

fn parsed(text: &[u8]) -> Result<Lifecycle> {
    let odd = |message: String| StoreError::new(ErrorKind::Invalid, message);
    let rules: Lifecycle = serde_json::from_slice(text)
        .map_err(|fault| odd(format!("lifecycle rules cannot be read: {fault}")))?;
    rules.check().map_err(|fault| odd(fault.message))?;
    Ok(rules)
}

/// The rules of a volume that is read. Rules that this release cannot read are not carried out, and keep nobody from the volume.
pub(crate) async fn known(
    catalog: &dyn Catalog,
    (volume, name): (VolumeId, &str),
    row: Option<&stoker_catalog::Row>,
) -> Result<Option<Arc<Lifecycle>>> {
    let Some(row) = row else { return Ok(None) };
    let first = SettingRow::of(row).map_err(error::catalog)?.document;
    match document(catalog, volume, &first).await.and_then(|text| parsed(&text)) {
        Ok(rules) => Ok(Some(Arc::new(rules))),
        Err(fault) if matches!(fault.kind, ErrorKind::Invalid | ErrorKind::Corrupt) => {
            tracing::warn!(volume = name, "no lifecycle rule is carried out: {}", fault.message);
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

impl Core {
    /// The rules, for whoever asks for the setting.
    pub async fn lifecycle_text(&self, volume: &Volume) -> Result<Option<Vec<u8>>> {
        for _ in 0..TRIES_MAX {
            let key = piece_key(volume.id, 0);
            let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
            let Some(row) = row else { return Ok(None) };
            let first = SettingRow::of(&row).map_err(error::catalog)?.document;
            match document(&*self.catalog, volume.id, &first).await {
                // Pieces of two documents.
                Err(fault) if fault.kind == ErrorKind::Corrupt => {}
                Ok(text) if serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_err() => {}
                read => return read.map(Some),
            }
        }
        Err(error::refusal(Refusal::Contended))
    }

    /// Changes the rules, or takes them away. The next pass begins at once.
    pub async fn set_lifecycle(self: &Arc<Core>, volume: &str, text: Option<&[u8]>) -> Result<()> {
        let pieces = pieces(text)?;
        for _ in 0..TRIES_MAX {
            let volume = self.volumes.get(volume).await?;
            self.check_writable(&volume)?;
            let row_key = keys::volume(&volume.name);
            let row = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
            let Some(row) = row else {
                self.volumes.refresh().await?;
                continue;
            };
            VolumeRow::of(&row).map_err(error::catalog)?;
            // The row of the volume changes with them, so that other nodes read them anew.
            let mut commit = Commit::new().seq(row_key.clone(), row.seq).put(row_key, row.value);
            commit.checks.extend(self.guards(&volume));
            for number in 0..PIECES_MAX {
                let key = piece_key(volume.id, number);
                commit = match pieces.get(number) {
                    Some(piece) => commit.put(key, SettingRow { document: piece.clone() }.encode()),
                    None => commit.delete(key),
                };
            }
            // A pass that is under way ends: its rules are others.
            let progress = Progress::key(volume.id);
            commit = match pieces.is_empty() {
                true => commit.delete(progress),
                false => commit.put(progress, Progress::default().encode()),
            };
            match self.catalog.commit(commit).await.map_err(error::catalog)? {
                Outcome::Done { seq } => {
                    self.saw(seq);
                    self.volumes.renew(&volume).await?;
                    self.lifecycle_changed.notify_one();
                    return Ok(());
                }
                Outcome::Failed { .. } => self.check_open()?,
            }
        }
        Err(error::refusal(Refusal::Contended))
    }
}

/// Rules in pieces that rows have room for; none if there are to be no rules.
fn pieces(text: Option<&[u8]>) -> Result<Vec<Vec<u8>>> {
    let Some(text) = text else { return Ok(Vec::new()) };
    parsed(text)?;
    let mut pieces: Vec<Vec<u8>> = text.chunks(LEN_MAX - 1).map(<[u8]>::to_vec).collect();
    if pieces.len() > PIECES_MAX {
        let (max, len) = (PIECES_MAX * (LEN_MAX - 1), text.len());
        let message = format!("lifecycle rules have at most {max} bytes as they are kept, not {len}");
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    let count = pieces.len() as u8;
    if let Some(first) = pieces.first_mut() {
        first.insert(0, count);
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_fit_into_rows() {
        let text = |rules: usize, prefix: usize| {
            let rule = |number: usize| {
                format!(
                    r#"{{"id":"{number}","on":true,"filter":{{"prefix":"{}"}},"expiration":{{"days":1}}}}"#,
                    "p".repeat(prefix)
                )
            };
            let rules: Vec<String> = (0..rules).map(rule).collect();
            format!(r#"{{"rules":[{}]}}"#, rules.join(",")).into_bytes()
        };
        assert_eq!(pieces(None).unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(pieces(Some(&text(1, 5))).unwrap(), [[&[1], &text(1, 5)[..]].concat()]);
        let many = pieces(Some(&text(1_000, 500))).unwrap();
        assert!(many.iter().all(|piece| piece.len() <= LEN_MAX) && usize::from(many[0][0]) == many.len());
        assert_eq!(many.concat()[1..], text(1_000, 500));
        for wrong in [text(1_000, 1_000), text(1_001, 1), b"{}".to_vec(), b"nonsense".to_vec()] {
            assert_eq!(pieces(Some(&wrong)).unwrap_err().kind, ErrorKind::Invalid);
        }
    }
}
