//! Deletes, of keys and of their versions, each of which is decided by itself; and what holds versions.

use stoker_store::{
    Condition, ErrorKind, Key, LockChange, Result, Store, StoreError, VersionDelete, VersionDeleted,
};

use super::record::Note;
use super::{Decided, Guarded, full_of, told};
use crate::action::Action;
use crate::decide::{Resource, Rights};

/// What S3 calls it to let go of what is retained, but not for compliance.
const BYPASS: &[&str] = &["s3:BypassGovernanceRetention"];

/// Puts answers where calls were allowed, and verdicts where they were not.
fn merged<T>(verdicts: Vec<Result<()>>, answers: Vec<Result<T>>) -> Vec<Result<T>> {
    let mut answers = answers.into_iter();
    let lost = || StoreError::new(ErrorKind::Unavailable, "a delete was not answered");
    let answer = |verdict: Result<()>| verdict.and_then(|()| answers.next().unwrap_or_else(|| Err(lost())));
    verdicts.into_iter().map(answer).collect()
}

/// Those that are allowed.
fn allowed<T>(all: Vec<T>, verdicts: &[Result<()>]) -> Vec<T> {
    let with = all.into_iter().zip(verdicts);
    with.filter(|(_, verdict)| verdict.is_ok()).map(|(one, _)| one).collect()
}

impl Decided {
    pub(super) async fn delete_each(
        &self,
        volume: &str,
        keys: Vec<(Key, Condition)>,
    ) -> Result<Vec<Result<bool>>> {
        let rights = self.rights().await?;
        let full = full_of(&rights, volume);
        self.know(&rights, &full).await?;
        self.judge(&rights, Action::Delete, Resource::Glimpse(&full))?;
        let verdict = |(key, _): &(Key, Condition)| {
            self.judge(&rights, Action::Delete, Resource::Key(&full, key.as_bytes()))
        };
        let verdicts: Vec<Result<()>> = keys.iter().map(verdict).collect();
        let keys = allowed(keys, &verdicts);
        let answers = match keys.is_empty() {
            true => Vec::new(),
            false => told(self.shared.store.delete(&full, keys).await, &full, volume)?,
        };
        Ok(merged(verdicts, answers))
    }

    pub(super) async fn delete_each_version(
        &self,
        volume: &str,
        deletes: Vec<VersionDelete>,
    ) -> Result<Vec<Result<VersionDeleted>>> {
        let rights = self.rights().await?;
        let full = full_of(&rights, volume);
        self.know(&rights, &full).await?;
        self.judge(&rights, Action::DeleteVersions, Resource::Glimpse(&full))?;
        let verdict = |delete: &VersionDelete| {
            let what = match &delete.version {
                Some(id) => Key::version_of(&delete.key, id)?,
                None => delete.key.clone(),
            };
            self.judge(&rights, Action::DeleteVersions, Resource::Key(&full, what.as_bytes()))?;
            self.judge_bypass(&rights, delete.bypass, Action::DeleteVersions, &full, &delete.key)
        };
        let verdicts: Vec<Result<()>> = deletes.iter().map(verdict).collect();
        let deletes = allowed(deletes, &verdicts);
        let answers = match deletes.is_empty() {
            true => Vec::new(),
            false => {
                let call = self.shared.store.delete_versions(&full, deletes);
                told(self.on_behalf(call).await, &full, volume)?
            }
        };
        Ok(merged(verdicts, answers))
    }

    pub(super) async fn lock_version(&self, volume: &str, key: &Key, change: LockChange) -> Result<()> {
        let rights = self.rights().await?;
        let full = full_of(&rights, volume);
        self.know(&rights, &full).await?;
        let of = key.version_parts().map_or_else(|| key.clone(), |(of, _)| of);
        for (is_asked, names) in [
            (change.retention.is_some(), &["s3:PutObjectRetention"]),
            (change.is_held.is_some(), &["s3:PutObjectLegalHold"]),
        ] {
            if is_asked {
                let resource = Resource::Key(&full, of.as_bytes());
                self.judge_as(names, &rights, Action::SetVersionLock, resource)?;
            }
        }
        self.judge_bypass(&rights, change.bypass, Action::SetVersionLock, &full, &of)?;
        // A change of nothing is one as well.
        self.judge(&rights, Action::SetVersionLock, Resource::Key(&full, of.as_bytes()))?;
        told(self.shared.store.set_version_lock(&full, key, change).await, &full, volume)
    }

    /// Letting go of what is retained is an action of its own for policies.
    fn judge_bypass(
        &self,
        rights: &Rights,
        bypass: bool,
        action: Action,
        full: &str,
        key: &Key,
    ) -> Result<()> {
        match bypass {
            true => self.judge_as(BYPASS, rights, action, Resource::Key(full, key.as_bytes())),
            false => Ok(()),
        }
    }
}

impl Guarded {
    pub(super) async fn delete_noted(
        &self,
        volume: &str,
        keys: Vec<(Key, Condition)>,
    ) -> Result<Vec<Result<bool>>> {
        let note = match self.log() {
            None => None,
            Some(_) => self.decided.note(Action::Delete, volume, None).await?,
        };
        let Some(note) = note else { return self.decided.delete(volume, keys).await };
        let full = note.volume();
        let notes: Vec<Note> = keys.iter().map(|(key, _)| note.of_key(&full, key.as_bytes())).collect();
        match self.decided.delete(volume, keys).await {
            Ok(answers) => note_each(&note, answers, notes).await,
            Err(fault) => note.ends(Err(fault), |_| 0).await,
        }
    }

    /// Each delete has its line, with the version that it is about.
    pub(super) async fn delete_versions_noted(
        &self,
        volume: &str,
        deletes: Vec<VersionDelete>,
    ) -> Result<Vec<Result<VersionDeleted>>> {
        let note = match self.log() {
            None => None,
            Some(_) => self.decided.note(Action::DeleteVersions, volume, None).await?,
        };
        let Some(note) = note else { return self.decided.delete_versions(volume, deletes).await };
        let full = note.volume();
        let note_of = |delete: &VersionDelete| {
            let what = delete.version.as_ref().and_then(|id| Key::version_of(&delete.key, id).ok());
            note.of_key(&full, what.as_ref().unwrap_or(&delete.key).as_bytes())
        };
        let notes: Vec<Note> = deletes.iter().map(note_of).collect();
        match self.decided.delete_versions(volume, deletes).await {
            Ok(answers) => note_each(&note, answers, notes).await,
            Err(fault) => note.ends(Err(fault), |_| 0).await,
        }
    }
}

/// Ends what was written of each call that was made together. All lines are written, and then all are waited for.
async fn note_each<T>(all: &Note, answers: Vec<Result<T>>, notes: Vec<Note>) -> Result<Vec<Result<T>>> {
    let mut told = Vec::with_capacity(answers.len());
    let mut waiting = Vec::new();
    for (answer, note) in answers.into_iter().zip(notes) {
        let (answer, ticket) = note.ends_one(answer);
        waiting.extend(ticket);
        told.push(answer);
    }
    all.wait(waiting).await?;
    Ok(told)
}
