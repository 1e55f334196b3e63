//! Volumes as the node uses them: policy, lake, number.

mod leaving;
pub(crate) mod settings;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};

use stoker_catalog::kv::{Catalog, Check, Commit, Outcome, Range};
use stoker_format::VolumeId;
use stoker_lake::LakeOpener;
use stoker_lake::{Lake, LakeErrorKind, LakeOptions, Place};
use stoker_schema::names;
use stoker_schema::rows::{ImportRow, RowValue, VolumeRow, keys, tier_keys};
use stoker_store::{
    DrainPolicy, ErrorKind, Keeps, LAKE_SCHEME, LIFECYCLE_SETTING, LakeMode, Result, StoreError, Subject,
    TENANT_DEFAULT, VERSIONING_SETTING, VolumeInfo, VolumeOptions, VolumePolicy, check_volume_name,
    volume_tenant,
};
use stoker_tiers::lifecycle::Lifecycle;
use tokio::sync::OnceCell;

use crate::admission::{AdmittedLake, LakeGates};
use crate::lifecycle;
use crate::sealing::{Vault, data_keys};
use crate::tiers::named::{self, NamedLakes, Way, folder};
use crate::tiers::replica::Replica;
use crate::versions::KnownVersioning;
use crate::{clock, error};

/// What becomes of the bytes of a volume, from its beginning on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// They lie on drives as they are.
    Plain,
    /// They are sealed.
    Encrypted,
}

/// A volume.
pub(crate) struct Volume {
    pub id: VolumeId,
    pub name: String,
    pub created_ms: u64,
    pub policy: VolumePolicy,
    pub lake_url: Option<String>,
    /// Which versions it keeps.
    pub versions: KnownVersioning,
    /// By which rules its objects expire.
    pub lifecycle: Option<Arc<Lifecycle>>,
    /// Deleted; the lake has not seen all deletes of its files yet.
    pub leaving: bool,
    /// Of its row, so that an older one never takes the place of a newer one.
    seq: u64,
    lake: Arc<LakeSlot>,
    /// Its second lake, if it has one.
    pub replica: Option<Arc<Replica>>,
}

/// How lakes are opened.
pub(crate) struct Lakes {
    pub options: LakeOptions,
    pub opener: Option<LakeOpener>,
    pub named: NamedLakes,
    pub gates: Arc<LakeGates>,
}

impl Lakes {
    pub async fn open(&self, url: &str, create_root: bool) -> stoker_lake::Result<Arc<dyn Lake>> {
        let lake = if named::parse(url).is_some() {
            self.named.open(url, &self.options, self.opener.as_ref(), create_root).await?
        } else if let Some(opener) = &self.opener {
            (opener.0)(url)
        } else {
            let mut options = self.options.clone();
            options.create_root |= create_root;
            stoker_lake::open(url, &options).await?
        };
        Ok(Arc::new(AdmittedLake { lake, gate: self.gates.of(url) }))
    }

    /// True if opening it waits for nobody.
    fn opens_at_once(&self, url: &str) -> bool {
        let at_once =
            |url: &str, options: &LakeOptions| Place::of(url, options).is_ok_and(|at| !at.is_directory());
        match named::parse(url) {
            _ if self.opener.is_some() => true,
            None => at_once(url, &self.options),
            Some(_) => {
                self.named.known_way(url, &self.options).is_some_and(|way| at_once(&way.url, &way.options))
            }
        }
    }

    /// Whether two lakes could hold the same objects.
    pub async fn overlap(&self, one: &str, other: &str) -> Result<bool> {
        let ways = (self.named.way(one, &self.options).await?, self.named.way(other, &self.options).await?);
        let seen = |way: &Option<Way>, plain: &str| match way {
            Some(way) => (way.url.clone(), Place::of(&way.url, &way.options)),
            None => (plain.to_owned(), Place::of(plain, &self.options)),
        };
        let ((one, one_place), (other, other_place)) = (seen(&ways.0, one), seen(&ways.1, other));
        Ok(match (one_place, other_place) {
            (Ok(one), Ok(other)) => one.overlaps(&other),
            // Of a kind that only its opener knows.
            _ => {
                let inside = |outer: &str, inner: &str| {
                    let outer = outer.trim_end_matches('/');
                    inner.trim_end_matches('/') == outer || inner.starts_with(&format!("{outer}/"))
                };
                inside(&one, &other) || inside(&other, &one)
            }
        })
    }
}

/// A lake that is opened when it is first needed; an attempt that failed is made again.
struct LakeSlot {
    lake: OnceCell<Arc<dyn Lake>>,
    imported: std::sync::atomic::AtomicBool,
}

impl Volume {
    /// The lake, or none if the volume has none.
    pub async fn lake(&self, lakes: &Lakes) -> Result<Option<Arc<dyn Lake>>> {
        let Some(url) = &self.lake_url else { return Ok(None) };
        let lake = self.lake.lake.get_or_try_init(|| lakes.open(url, false));
        Ok(Some(lake.await.map_err(error::lake)?.clone()))
    }

    /// Refuses what the lake could never hold, before anybody is told that it is kept. A lake that is not open yet and may
    /// keep us waiting is not asked.
    pub async fn check_lake(
        &self,
        lakes: &Lakes,
        key: &[u8],
        attributes: &stoker_lake::Attributes,
    ) -> Result<()> {
        let Some(url) = self.lake_url.as_ref().filter(|_| self.policy.drain != DrainPolicy::Never) else {
            return Ok(());
        };
        let lake = match self.lake.lake.get() {
            Some(lake) => Some(lake.clone()),
            None if lakes.opens_at_once(url) => self.lake(lakes).await.unwrap_or_default(),
            None => None,
        };
        lake.map_or(Ok(()), |lake| lake.check(key, attributes).map_err(error::lake))
    }

    /// Whether that is its lake, as far as it was opened.
    pub fn has_lake(&self, lake: &dyn Lake) -> bool {
        self.lake.lake.get().is_some_and(|own| std::ptr::addr_eq(Arc::as_ptr(own), std::ptr::from_ref(lake)))
    }

    /// It is still what is known here: whatever changes one of its lakes changes its row.
    pub fn unchanged(&self) -> Check {
        Check::Seq(keys::volume(&self.name), self.seq)
    }

    /// What the lake was asked; none if it was not opened yet.
    pub fn lake_stats(&self) -> Option<stoker_lake::LakeStats> {
        self.lake.lake.get()?.stats()
    }

    /// The lake does not answer, in words; none if it does, or was not opened yet.
    pub fn lake_silence(&self) -> Option<String> {
        let lake = self.lake.lake.get()?;
        let silence = lake.silence()?;
        let why = silence.message.map_or_else(String::new, |why| format!(": {why}"));
        Some(format!("{} does not answer for {} s{why}", lake.describe(), silence.for_ms / 1_000))
    }

    /// Whether lookups and listings have to ask the lake as well.
    pub fn asks_lake(&self) -> bool {
        let imported = self.lake.imported.load(std::sync::atomic::Ordering::Relaxed);
        self.lake_url.is_some() && !(self.policy.lake_mode == LakeMode::Owned && imported)
    }

    pub fn set_imported(&self) {
        self.lake.imported.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Refuses changes to a volume that must not be changed.
    pub fn check_writable(&self) -> Result<()> {
        if self.lake_url.is_some() && self.policy.lake_mode == LakeMode::ReadOnly {
            let message = format!(
                "volume `{0}` is read-only, because its lake had objects in it before; allow writes with `stoker volume set {0} \
                 --lake-mode shared` (others write there too) or `owned` (nobody else does)",
                self.name
            );
            return Err(StoreError::about(ErrorKind::Denied, Subject::Volume, message));
        }
        Ok(())
    }
}

/// All volumes, cached; this node is told of changes by its own calls and refreshes on a miss.
pub(crate) struct Volumes {
    catalog: Arc<dyn Catalog>,
    lake_root: Option<String>,
    lakes: Lakes,
    defaults: VolumePolicy,
    vault: Arc<Vault>,
    by_name: RwLock<HashMap<String, Arc<Volume>>>,
    by_id: RwLock<HashMap<u32, Arc<Volume>>>,
    /// Of volumes that were removed here lately, the commit since which their rows count, by id: one that was read before must
    /// not bring it back.
    since: Mutex<BTreeMap<u32, u64>>,
}

fn not_found(name: &str) -> StoreError {
    StoreError::about(ErrorKind::NotFound, Subject::Volume, format!("there is no volume `{name}`"))
}

impl Volumes {
    pub fn new(
        catalog: Arc<dyn Catalog>,
        lake_root: Option<String>,
        lakes: Lakes,
        defaults: VolumePolicy,
        vault: Arc<Vault>,
    ) -> Volumes {
        let (by_name, by_id, since) = Default::default();
        Volumes { catalog, lake_root, lakes, defaults, vault, by_name, by_id, since }
    }

    pub fn lakes(&self) -> &Lakes {
        &self.lakes
    }

    /// A volume by name.
    pub async fn get(&self, name: &str) -> Result<Arc<Volume>> {
        let volume = self.get_or_leaving(name).await?;
        volume.filter(|volume| !volume.leaving).ok_or_else(|| not_found(name))
    }

    async fn get_or_leaving(&self, name: &str) -> Result<Option<Arc<Volume>>> {
        if let Some(volume) = self.by_name.read().unwrap().get(name) {
            return Ok(Some(volume.clone()));
        }
        if check_volume_name(name).is_err() {
            return Ok(None);
        }
        let row = self.catalog.get(&[&keys::volume(name)]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else { return Ok(None) };
        Ok(Some(self.keep(name, &VolumeRow::of(&row).map_err(error::catalog)?, row.seq).await?))
    }

    /// A volume by number; none if it is gone.
    pub async fn by_id(&self, id: VolumeId) -> Result<Option<Arc<Volume>>> {
        if let Some(volume) = self.by_id.read().unwrap().get(&id.0) {
            return Ok(Some(volume.clone()));
        }
        let row = self.catalog.get(&[&keys::volume_id(id)]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else { return Ok(None) };
        let name = String::from_utf8_lossy(&row.value).into_owned();
        self.get(&name).await.map(Some)
    }

    /// Reads a volume anew if its row was written since; true if it was.
    pub async fn renew(&self, volume: &Volume) -> Result<bool> {
        let key = keys::volume(&volume.name);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row.filter(|row| row.seq != volume.seq) else { return Ok(false) };
        self.keep(&volume.name, &VolumeRow::of(&row).map_err(error::catalog)?, row.seq).await?;
        Ok(true)
    }

    /// All volumes by name.
    pub async fn all(&self) -> Result<Vec<Arc<Volume>>> {
        let mut volumes = self.all_and_leaving().await?;
        volumes.retain(|volume| !volume.leaving);
        Ok(volumes)
    }

    /// Volumes that this node knows of, oldest first, without a question to the catalog.
    pub fn known(&self) -> Vec<Arc<Volume>> {
        let mut volumes: Vec<Arc<Volume>> = self.by_id.read().unwrap().values().cloned().collect();
        volumes.retain(|volume| !volume.leaving);
        volumes.sort_by_key(|volume| volume.id.0);
        volumes
    }

    /// All volumes by name, and those that are deleted but have work to do in the lake.
    pub async fn all_and_leaving(&self) -> Result<Vec<Arc<Volume>>> {
        let mut range = Range::prefix(b"V", 1_000);
        let mut volumes = Vec::new();
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            for row in &page.rows {
                let name = String::from_utf8_lossy(&row.key[1..]).into_owned();
                let known = self.by_name.read().unwrap().get(&name).cloned();
                volumes.push(match known {
                    Some(volume) if volume.seq >= row.seq => volume,
                    _ => self.keep(&name, &VolumeRow::of(row).map_err(error::catalog)?, row.seq).await?,
                });
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(volumes),
            }
        }
    }

    /// Learns what other nodes changed.
    pub async fn refresh(&self) -> Result<()> {
        self.lakes.named.refresh(&self.lakes.options).await?;
        let there = self.all_and_leaving().await?;
        let is_there = |volume: &Arc<Volume>| there.iter().any(|other| other.id == volume.id);
        // One that was made since the look would only be read again.
        self.by_name.write().unwrap().retain(|_, volume| is_there(volume));
        self.by_id.write().unwrap().retain(|_, volume| is_there(volume));
        Ok(())
    }

    pub async fn keep(&self, name: &str, row: &VolumeRow, seq: u64) -> Result<Arc<Volume>> {
        let policy: VolumePolicy = serde_json::from_slice(&row.policy).map_err(|fault| {
            StoreError::new(
                ErrorKind::Corrupt,
                format!("the policy of volume `{name}` cannot be read: {fault}"),
            )
        })?;
        let id = VolumeId(row.id);
        let rows = [
            keys::import(id),
            keys::data_keys(id),
            keys::destroyed_keys(id),
            keys::setting(id, VERSIONING_SETTING),
            tier_keys::replica(id),
            keys::setting(id, LIFECYCLE_SETTING),
        ];
        let asked: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let found = self.catalog.get(&asked).await.map_err(error::catalog)?;
        // Before anybody can write to it: an encrypted volume is never taken for a plain one.
        data_keys::take(&self.vault, id, found[1].as_ref(), found[2].as_ref())?;
        let import = found[0].as_ref().map(ImportRow::of).transpose().map_err(error::catalog)?;
        let versions = KnownVersioning::of(keys::setting(id, VERSIONING_SETTING), found[3].as_ref())?;
        // In a box: whoever asks for a volume has little stack.
        let lifecycle = Box::pin(lifecycle::known(&*self.catalog, (id, name), found[5].as_ref())).await?;
        let old = self.by_id.read().unwrap().get(&row.id).cloned();
        let lake = match old {
            Some(old) if old.lake_url == row.lake => old.lake.clone(),
            _ => Arc::new(LakeSlot {
                lake: OnceCell::new(),
                imported: import.is_some_and(|import| import.done).into(),
            }),
        };
        let volume = Arc::new(Volume {
            id: VolumeId(row.id),
            name: name.to_owned(),
            created_ms: row.created_ms,
            policy,
            lake_url: row.lake.clone(),
            versions,
            lifecycle,
            leaving: row.leaving,
            seq,
            lake,
            replica: Replica::of(found[4].as_ref())?.map(Arc::new),
        });
        let mut by_name = self.by_name.write().unwrap();
        if self.since.lock().unwrap().get(&row.id).is_some_and(|since| seq < *since) {
            return Ok(volume);
        }
        if let Some(newer) = by_name.get(name).filter(|known| known.seq > seq) {
            return Ok(newer.clone());
        }
        by_name.insert(name.to_owned(), volume.clone());
        self.by_id.write().unwrap().insert(row.id, volume.clone());
        Ok(volume)
    }

    /// Makes a volume.
    pub async fn create(&self, name: &str, options: VolumeOptions) -> Result<Arc<Volume>> {
        self.create_as(name, options, Form::Plain).await
    }

    /// The same, encrypted or not.
    pub async fn create_as(&self, name: &str, options: VolumeOptions, form: Form) -> Result<Arc<Volume>> {
        check_volume_name(name)?;
        let tenant = volume_tenant(name).0;
        // As nobody else, the default tenant is there always. (D146)
        let tenant = (tenant != TENANT_DEFAULT).then(|| keys::tenant(tenant));
        let lake = match options.lake.as_deref() {
            Some("none") => None,
            Some(at) if at.starts_with(LAKE_SCHEME) => Some(self.named_place(at, name).await?),
            Some(url) => Some(url.to_owned()),
            None => self.lake_root.as_ref().map(|root| folder(root, name)),
        };
        let exists = || {
            StoreError::about(ErrorKind::Conflict, Subject::Volume, format!("volume `{name}` exists already"))
        };
        let mut policy = options.policy.clone().unwrap_or_else(|| self.defaults.clone());
        self.by_name.write().unwrap().remove(name);
        if let Some(known) = self.get_or_leaving(name).await? {
            if !known.leaving {
                return Err(exists());
            }
            if form == Form::Encrypted || self.vault.is_encrypted(known.id) {
                let message = format!(
                    "a volume `{name}` was just deleted and its deletes are on their way to the lake; try again when they have arrived"
                );
                return Err(StoreError::about(ErrorKind::Conflict, Subject::Volume, message));
            }
            if let Some(back) = self.come_back(&known, lake.as_deref(), options.policy.clone()).await? {
                return Ok(back);
            }
        }
        let mut empty = true;
        if let Some(url) = &lake {
            self.refuse_overlap(name, url).await?;
            let looked = self.look(url).await?;
            empty = looked == Some(true);
            if looked == Some(false) && options.policy.is_none() {
                policy.lake_mode = LakeMode::ReadOnly;
            }
        }
        loop {
            let next_key = keys::NEXT_VOLUME;
            let volume_key = keys::volume(name);
            let asked = [next_key, &volume_key, tenant.as_deref().unwrap_or(next_key)];
            let rows = self.catalog.get(&asked).await.map_err(error::catalog)?;
            if rows[1].is_some() {
                return Err(exists());
            }
            if tenant.is_some() && rows[2].is_none() {
                let message = format!(
                    "there is no tenant `{}`; `stoker tenant list` lists them",
                    volume_tenant(name).0
                );
                return Err(StoreError::about(ErrorKind::NotFound, Subject::Volume, message));
            }
            let id = match &rows[0] {
                Some(row) => u64::from_le_bytes(row.value[..].try_into().unwrap_or_default()) as u32,
                None => 1,
            };
            let row = VolumeRow {
                id,
                created_ms: clock::now_ms(),
                lake: lake.clone(),
                policy: serde_json::to_vec(&policy).expect("plain data encodes"),
                leaving: false,
            };
            let import = ImportRow { after: None, done: empty };
            let mut commit = Commit::new()
                .absent(keys::volume(name))
                .unchanged(next_key, rows[0].as_ref())
                .put(next_key, (u64::from(id) + 1).to_le_bytes())
                .put(keys::volume(name), row.encode())
                .put(keys::volume_id(VolumeId(id)), name.as_bytes())
                .put(keys::import(VolumeId(id)), import.encode());
            if form == Form::Encrypted {
                let first = data_keys::first(&self.vault, VolumeId(id))?;
                commit = commit.put(keys::data_keys(VolumeId(id)), first.encode());
            }
            let commit = tenant.iter().fold(commit, |commit, tenant| commit.present(tenant.clone()));
            match self.catalog.commit(commit).await.map_err(error::catalog)? {
                Outcome::Done { seq } => return self.keep(name, &row, seq).await,
                Outcome::Failed { .. } => continue,
            }
        }
    }

    /// The place of a volume in a lake with a name, which has to be there.
    async fn named_place(&self, at: &str, volume: &str) -> Result<String> {
        let (lake, rest) = at[LAKE_SCHEME.len()..].split_once('/').unwrap_or((&at[LAKE_SCHEME.len()..], ""));
        if !rest.is_empty() && rest != volume {
            let message = format!("a volume has the folder of its name in a lake: write {LAKE_SCHEME}{lake}");
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Lake, message));
        }
        stoker_store::check_lake_name(lake)?;
        self.lakes.named.get(lake).await?;
        Ok(named::place(lake, volume))
    }

    /// Whether a lake is empty; none if it cannot be reached now. Then writes go ahead, and what turns out to be there is
    /// never overwritten.
    async fn look(&self, url: &str) -> Result<Option<bool>> {
        let page = match self.lakes.open(url, true).await {
            Ok(lake) => lake.list(b"", None, None, 1).await,
            Err(fault) => Err(fault),
        };
        match page {
            Ok(page) => Ok(Some(page.objects.is_empty() && page.prefixes.is_empty())),
            Err(fault) if matches!(fault.kind, LakeErrorKind::Unavailable | LakeErrorKind::Busy) => {
                tracing::warn!("the lake {url} does not answer: {}", fault.message);
                Ok(None)
            }
            Err(fault) => {
                let message = format!("the lake {url} cannot be used: {}", fault.message);
                Err(StoreError { message, ..error::lake(fault) })
            }
        }
    }

    /// Two volumes must not write to the same place.
    pub async fn refuse_overlap(&self, name: &str, url: &str) -> Result<()> {
        for other in self.all_and_leaving().await? {
            let second = other.replica.as_ref().map(|replica| replica.other());
            for theirs in other.lake_url.as_deref().into_iter().chain(second) {
                if other.name == name && second == Some(theirs) {
                    // It is replaced, or was this volume's before.
                    continue;
                }
                if self.lakes.overlap(theirs, url).await? {
                    let message = format!(
                        "a lake of volume `{name}` would be {url}, which overlaps with one of volume `{}` ({theirs})",
                        other.name
                    );
                    return Err(StoreError::about(ErrorKind::Conflict, Subject::Lake, message));
                }
            }
        }
        Ok(())
    }

    /// Changes the policy of a volume.
    pub async fn set(&self, name: &str, policy: VolumePolicy) -> Result<Arc<Volume>> {
        loop {
            let key = keys::volume(name);
            let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
            let row = row.ok_or_else(|| not_found(name))?;
            let mut value = VolumeRow::of(&row).map_err(error::catalog)?;
            if value.leaving {
                return Err(not_found(name));
            }
            if policy.lake_mode != LakeMode::Owned && self.get(name).await?.versions.keeps() != Keeps::Nothing
            {
                return Err(crate::versions::not_shared());
            }
            value.policy = serde_json::to_vec(&policy).expect("plain data encodes");
            let commit = Commit::new().seq(key.clone(), row.seq).put(key, value.encode());
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                return self.keep(name, &value, seq).await;
            }
        }
    }

    /// A volume with its numbers.
    pub async fn info(&self, volume: &Volume) -> Result<VolumeInfo> {
        let usage = names::usage(&*self.catalog, volume.id).await.map_err(error::catalog)?;
        Ok(VolumeInfo {
            name: volume.name.clone(),
            id: volume.id,
            created_ms: volume.created_ms,
            lake: volume.lake_url.clone(),
            policy: volume.policy.clone(),
            files: usage.files,
            bytes: usage.bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use stoker_catalog::engine::Memory;

    use super::*;

    /// Whoever read a row before the volume was removed must not bring it back.
    #[tokio::test]
    async fn an_older_row_brings_no_volume_back() {
        let catalog = Arc::new(Memory::new());
        let named = NamedLakes::new(catalog.clone(), Default::default());
        let lakes = Lakes { gates: Default::default(), options: Default::default(), opener: None, named };
        let vault = Arc::new(Vault::open(&Default::default(), &[[1; 32]]).unwrap());
        let volumes = Volumes::new(catalog.clone(), None, lakes, VolumePolicy::default(), vault);
        for has_work in [false, true] {
            let volume = volumes.create("data", VolumeOptions::default()).await.unwrap();
            let row = catalog.get(&[&keys::volume("data")]).await.unwrap().pop().flatten().unwrap();
            if has_work {
                // A delete that the lake has not seen: the volume leaves when that is done.
                let _ =
                    catalog.commit(Commit::new().put(keys::tombstone(volume.id, b"a"), "")).await.unwrap();
            }
            volumes.delete(&volume).await.unwrap();
            volumes.keep("data", &VolumeRow::of(&row).unwrap(), row.seq).await.unwrap();
            assert_eq!(volumes.get("data").await.err().unwrap().kind, ErrorKind::NotFound, "{has_work}");
        }
    }

    #[test]
    fn volumes_are_folders_of_the_lake() {
        for (root, expect) in [
            ("file:///lake", "file:///lake/data"),
            ("s3://bucket/p/", "s3://bucket/p/data"),
            ("s3://bucket/p?endpoint=http://x:1&region=r", "s3://bucket/p/data?endpoint=http://x:1&region=r"),
        ] {
            assert_eq!(folder(root, "data"), expect);
        }
    }
}
