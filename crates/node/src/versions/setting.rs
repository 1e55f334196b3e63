//! Whether a volume keeps versions, and for how long at least.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Commit, Outcome};
use stoker_schema::names::{Names, Refusal};
use stoker_schema::rows::{RowValue, SettingRow, VERSIONS_SINCE, VolumeRow, keys};
use stoker_store::{
    DefaultRetention, ErrorKind, Keeps, LOCK_SETTING, LakeMode, Result, StoreError, Subject,
    VERSIONING_SETTING, Versioning,
};

use super::not_shared;
use crate::core::Core;
use crate::error;
use crate::volumes::Volume;

/// Tries of a change that others keep getting in the way of.
const TRIES_MAX: usize = 100;

/// What somebody wants to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// Whether versions are kept.
    Keeps(Keeps),
    /// Versions can be locked, and are for so long if nobody says.
    Lock(Option<DefaultRetention>),
}

fn state(message: &str) -> StoreError {
    StoreError::about(ErrorKind::Conflict, Subject::Volume, message)
}

impl Wish {
    /// Reads the document of a setting.
    fn parse(name: &str, document: Option<&[u8]>) -> Result<Wish> {
        let document = document.ok_or_else(|| {
            StoreError::new(
                ErrorKind::Invalid,
                "a volume that keeps versions does so for good; `suspended` is as far as it goes",
            )
        })?;
        let text = std::str::from_utf8(document).unwrap_or_default();
        let given: Versioning = match name {
            LOCK_SETTING => format!("enabled {text}").parse()?,
            _ => text.parse()?,
        };
        match name {
            LOCK_SETTING if given.has_lock => Ok(Wish::Lock(given.default)),
            VERSIONING_SETTING if given.keeps != Keeps::Nothing && !given.has_lock => {
                Ok(Wish::Keeps(given.keeps))
            }
            LOCK_SETTING => Err(StoreError::new(
                ErrorKind::Invalid,
                "give `lock`, and behind it perhaps `governance 30 days`",
            )),
            _ => Err(StoreError::new(ErrorKind::Invalid, "give `enabled` or `suspended`")),
        }
    }

    /// What a volume keeps from now on.
    fn carried_out(self, old: Versioning) -> Result<Versioning> {
        match self {
            Wish::Keeps(Keeps::Last) if old.has_lock => {
                Err(state("a volume with object lock keeps its versions; it cannot be suspended"))
            }
            Wish::Keeps(keeps) => Ok(Versioning { keeps, ..old }),
            Wish::Lock(_) if old.keeps != Keeps::Versions => {
                Err(state("versions of a volume can be locked once it keeps them: enable versioning first"))
            }
            Wish::Lock(default) => Ok(Versioning { has_lock: true, default, ..old }),
        }
    }
}

impl Core {
    /// What a volume keeps, for whoever asks for the setting; none if it never kept any, or cannot lock.
    pub fn versioning_text(&self, volume: &Volume, name: &str) -> Option<Vec<u8>> {
        let known = volume.versions.versioning;
        let is_set = match name {
            LOCK_SETTING => known.has_lock,
            _ => known.keeps != Keeps::Nothing,
        };
        is_set.then(|| known.to_string().into_bytes())
    }

    /// Changes what a volume keeps.
    pub async fn set_versioning(
        self: &Arc<Core>,
        volume: &str,
        name: &str,
        document: Option<&[u8]>,
    ) -> Result<()> {
        let wish = Wish::parse(name, document)?;
        for _ in 0..TRIES_MAX {
            // Another node may have changed it a moment ago.
            self.volumes.refresh().await?;
            let volume = self.volumes.get(volume).await?;
            let versioning = wish.carried_out(volume.versions.versioning)?;
            if versioning == volume.versions.versioning {
                return Ok(());
            }
            let row_key = keys::volume(&volume.name);
            let row = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
            let Some(row) = row else { continue };
            VolumeRow::of(&row).map_err(error::catalog)?;
            let setting = keys::setting(volume.id, VERSIONING_SETTING);
            let document = versioning.to_string().into_bytes();
            // The row of the volume changes with it, so that other nodes read it anew.
            let mut commit = Commit::new()
                .seq(row_key.clone(), row.seq)
                .put(row_key, row.value.clone())
                .put(setting, SettingRow { document }.encode());
            commit.checks.extend(self.guards(&volume));
            if volume.versions.keeps() == Keeps::Nothing {
                self.check_can_keep(&volume)?;
                commit.checks.push(Names::no_links(volume.id));
                commit.checks.push(no_open_sets(&volume));
            }
            match self.catalog.commit(commit).await.map_err(error::catalog)? {
                Outcome::Done { seq } => {
                    self.saw(seq);
                    self.volumes.refresh().await?;
                    return Ok(());
                }
                Outcome::Failed { check } if check > self.guards(&volume).len() => {
                    return Err(state(
                        "versions are kept of files with one name: the volume has files with several, or open checkpoint sets",
                    ));
                }
                Outcome::Failed { .. } => self.check_open()?,
            }
        }
        Err(error::refusal(Refusal::Contended))
    }

    fn check_can_keep(&self, volume: &Volume) -> Result<()> {
        self.check_writable(volume)?;
        let level = self.level.get();
        if level < VERSIONS_SINCE {
            let message = format!(
                "volumes keep versions at level {VERSIONS_SINCE} of the cluster, which is at {level}: upgrade every node, see `stoker \
                 cluster level`"
            );
            return Err(StoreError::new(ErrorKind::Unavailable, message));
        }
        if volume.policy.lake_mode != LakeMode::Owned {
            return Err(not_shared());
        }
        if volume.asks_lake() {
            let message = "the first listing of the volume's lake is not done; try again when it is";
            return Err(StoreError::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// Refuses what makes no versions, in a volume that keeps them.
    pub fn check_keeps_nothing(&self, volume: &Volume, what: &str) -> Result<()> {
        if volume.versions.keeps() == Keeps::Nothing {
            return Ok(());
        }
        let message = format!("volume `{}` keeps versions, and {what}", volume.name);
        Err(StoreError::new(ErrorKind::Invalid, message))
    }
}

fn no_open_sets(volume: &Volume) -> Check {
    let start = keys::open_set(volume.id, b"");
    let end = stoker_catalog::kv::prefix_end(&start).expect("a table is not 0xff");
    Check::AtMost { start, end, max: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_goes_from_state_to_state() {
        let of = |text: &str| text.parse::<Versioning>().unwrap();
        for (old, name, document, then) in [
            ("off", VERSIONING_SETTING, "enabled", Some("enabled")),
            ("off", VERSIONING_SETTING, "suspended", Some("suspended")),
            ("enabled", VERSIONING_SETTING, "suspended", Some("suspended")),
            ("suspended", VERSIONING_SETTING, "enabled", Some("enabled")),
            ("enabled", VERSIONING_SETTING, "off", None),
            ("enabled", VERSIONING_SETTING, "enabled lock", None),
            ("off", LOCK_SETTING, "lock", None),
            ("suspended", LOCK_SETTING, "lock", None),
            ("enabled", LOCK_SETTING, "lock", Some("enabled lock")),
            ("enabled lock", LOCK_SETTING, "lock compliance 1 days", Some("enabled lock compliance 1 days")),
            ("enabled lock compliance 1 days", LOCK_SETTING, "lock", Some("enabled lock")),
            (
                "enabled lock compliance 1 days",
                VERSIONING_SETTING,
                "enabled",
                Some("enabled lock compliance 1 days"),
            ),
            ("enabled lock", VERSIONING_SETTING, "suspended", None),
            ("enabled", LOCK_SETTING, "", None),
        ] {
            let wish = Wish::parse(name, Some(document.as_bytes()));
            let found = wish.and_then(|wish| wish.carried_out(of(old))).ok();
            assert_eq!(found, then.map(of), "{old}: {document}");
        }
        assert!(Wish::parse(VERSIONING_SETTING, None).is_err());
    }
}
