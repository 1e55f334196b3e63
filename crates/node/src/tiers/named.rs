//! Lakes with names, as a node knows and opens them.
//!
//! A lake is a row of the catalog; its secret is wrapped by the cluster's key (D82). A volume in it has the place `lake://NAME/FOLDER`. What was opened by
//! a name is opened anew when the row changes, below everybody who holds it: keys that are renewed work on all nodes, for open files too. (D220)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use serde::{Deserialize, Serialize};
use stoker_catalog::kv::{Catalog, Range, Row};
use stoker_lake::{Lake, LakeError, LakeErrorKind, LakeOpener, LakeOptions, RetryOptions, Switch};
use stoker_schema::rows::{LakeRow, RowValue, tier_keys};
use stoker_store::{ErrorKind, LAKE_SCHEME, LakeInfo, Result, StoreError, Subject};

use crate::error;
use crate::wrapping::WrappingKeys;

/// What the body of a row says.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Form {
    #[serde(flatten)]
    pub info: LakeInfo,
    /// The secret key, wrapped. That of a node in no cluster is plain, as those of access keys are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wrapped: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plain: Option<String>,
}

/// Its owner, for whom alone a secret is unwrapped.
fn owner(name: &str) -> String {
    format!("lake/{name}")
}

impl Form {
    pub fn of(row: &Row) -> Result<Form> {
        let body = LakeRow::of(row).map_err(error::catalog)?.body;
        serde_json::from_slice(&body).map_err(|fault| {
            StoreError::about(ErrorKind::Corrupt, Subject::Lake, format!("a lake cannot be read: {fault}"))
        })
    }

    pub fn new(info: LakeInfo) -> Form {
        Form { info, wrapped: None, plain: None }
    }

    /// Replaces the secret; none takes it away.
    pub fn set_secret(&mut self, wrapping: &WrappingKeys, secret: Option<&str>) {
        self.wrapped = secret.and_then(|secret| wrapping.wrap(&owner(&self.info.name), secret.as_bytes()));
        self.plain = secret.filter(|_| self.wrapped.is_none()).map(str::to_owned);
    }

    /// The secret, and whether it has to be wrapped anew.
    pub fn secret(&self, wrapping: &WrappingKeys) -> Result<(Option<String>, bool)> {
        let Some(wrapped) = &self.wrapped else {
            return Ok((self.plain.clone(), self.plain.is_some() && !wrapping.is_empty()));
        };
        let name = &self.info.name;
        let opened = wrapping.unwrap(&owner(name), wrapped);
        let secret = opened.as_ref().and_then(|opened| String::from_utf8(opened.secret.clone()).ok());
        match (opened, secret) {
            (Some(opened), Some(secret)) => Ok((Some(secret), opened.is_former)),
            _ => {
                let message = format!(
                    "the secret of lake `{name}` was wrapped by another cluster key; give it again with `stoker lake set {name} \
                     --secret-key-file FILE`"
                );
                Err(StoreError::about(ErrorKind::Denied, Subject::Lake, message))
            }
        }
    }

    pub fn has_secret(&self) -> bool {
        self.wrapped.is_some() || self.plain.is_some()
    }

    pub fn encode(&self) -> Vec<u8> {
        LakeRow { body: serde_json::to_vec(self).expect("plain data encodes") }.encode()
    }
}

/// A lake as its row says.
pub(crate) struct Named {
    pub info: LakeInfo,
    secret: Option<String>,
    seq: u64,
}

impl Named {
    pub(super) fn read(row: &Row, wrapping: &WrappingKeys) -> Result<Named> {
        let form = Form::of(row)?;
        let (secret, _) = form.secret(wrapping)?;
        Ok(Named { info: form.info, secret, seq: row.seq })
    }

    /// How it is opened; of what the node says of its own lake only its patience counts here.
    pub fn options(&self, base: &LakeOptions) -> LakeOptions {
        let info = &self.info;
        LakeOptions {
            endpoint: info.endpoint.clone(),
            region: info.region.clone(),
            path_style: info.path_style,
            access_key_id: info.access_key_id.clone(),
            secret_access_key: self.secret.clone(),
            storage_class: info.storage_class.clone(),
            retry: RetryOptions {
                requests_per_s_max: info.requests_per_s,
                bytes_per_s_max: info.bytes_per_s,
                ..base.retry
            },
            file_umask: base.file_umask.clone(),
            file_sidecar_only: base.file_sidecar_only,
            ..LakeOptions::default()
        }
    }
}

/// The name of a lake and the folder in it, if a place is one of those.
pub(crate) fn parse(place: &str) -> Option<(&str, &str)> {
    place.strip_prefix(LAKE_SCHEME)?.split_once('/')
}

/// The place of a volume in a lake with a name.
pub(crate) fn place(lake: &str, volume: &str) -> String {
    format!("{LAKE_SCHEME}{lake}/{volume}")
}

/// The folder of a volume below a lake's root; settings behind a `?` stay behind it.
pub(crate) fn folder(root: &str, name: &str) -> String {
    let (path, settings) = match root.split_once('?') {
        Some((path, settings)) => (path, format!("?{settings}")),
        None => (root, String::new()),
    };
    format!("{}/{name}{settings}", path.trim_end_matches('/'))
}

/// Where it really is, how it is opened, and of which state of its row that is.
pub(crate) struct Way {
    pub url: String,
    pub options: LakeOptions,
    seq: u64,
}

struct Opened {
    lake: Arc<dyn Lake>,
    switch: Option<Switch>,
    seq: u64,
}

/// The lakes with names that a node knows.
pub(crate) struct NamedLakes {
    catalog: Arc<dyn Catalog>,
    wrapping: WrappingKeys,
    known: RwLock<HashMap<String, Arc<Named>>>,
    /// By place.
    opened: Mutex<HashMap<String, Opened>>,
}

impl NamedLakes {
    pub fn new(catalog: Arc<dyn Catalog>, wrapping: WrappingKeys) -> NamedLakes {
        NamedLakes { catalog, wrapping, known: RwLock::default(), opened: Mutex::default() }
    }

    /// One by its name.
    pub async fn get(&self, name: &str) -> Result<Arc<Named>> {
        if let Some(named) = self.known.read().unwrap().get(name) {
            return Ok(named.clone());
        }
        let key = tier_keys::lake(name);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else {
            let message = format!("there is no lake `{name}`; `stoker lake ls` lists them");
            return Err(StoreError::about(ErrorKind::NotFound, Subject::Lake, message));
        };
        let named = Arc::new(Named::read(&row, &self.wrapping)?);
        self.known.write().unwrap().insert(name.to_owned(), named.clone());
        Ok(named)
    }

    /// The way to a place.
    pub async fn way(&self, place: &str, base: &LakeOptions) -> Result<Option<Way>> {
        let Some((name, folder_name)) = parse(place) else { return Ok(None) };
        let named = self.get(name).await?;
        let url = folder(&named.info.url, folder_name);
        Ok(Some(Way { url, options: named.options(base), seq: named.seq }))
    }

    /// What is known of the url of a place without a question to anybody.
    pub fn known_way(&self, place: &str, base: &LakeOptions) -> Option<Way> {
        let (name, folder_name) = parse(place)?;
        let named = self.known.read().unwrap().get(name).cloned()?;
        Some(Way { url: folder(&named.info.url, folder_name), options: named.options(base), seq: named.seq })
    }

    /// Opens a place, or gives what was opened before.
    pub async fn open(
        &self,
        place: &str,
        base: &LakeOptions,
        opener: Option<&LakeOpener>,
        create_root: bool,
    ) -> stoker_lake::Result<Arc<dyn Lake>> {
        if let Some(opened) = self.opened.lock().unwrap().get(place) {
            return Ok(opened.lake.clone());
        }
        let way = self.way(place, base).await.map_err(unusable)?;
        let way = way.ok_or_else(|| {
            LakeError::new(LakeErrorKind::Invalid, format!("`{place}` is not in a lake with a name"))
        })?;
        let (lake, switch) = match opener {
            Some(opener) => ((opener.0)(&way.url), None),
            None => {
                let options = LakeOptions { create_root, ..way.options };
                let (lake, switch) = stoker_lake::open_switched(&way.url, &options).await?;
                (lake, Some(switch))
            }
        };
        // Two may have opened it at once; the first one stays, so that all know the same doubts.
        let mut opened = self.opened.lock().unwrap();
        let entry = opened.entry(place.to_owned()).or_insert(Opened { lake, switch, seq: way.seq });
        Ok(entry.lake.clone())
    }

    /// Learns what was changed, and opens anew what was opened by another row.
    pub async fn refresh(&self, base: &LakeOptions) -> Result<()> {
        let mut known = HashMap::new();
        let mut range = Range::prefix(tier_keys::LAKES, 1_000);
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            for row in &page.rows {
                let Some(name) = tier_keys::lake_name(&row.key) else { continue };
                let old = self.known.read().unwrap().get(name).cloned();
                match old.filter(|old| old.seq == row.seq) {
                    Some(old) => drop(known.insert(name.to_owned(), old)),
                    None => match Named::read(row, &self.wrapping) {
                        Ok(named) => drop(known.insert(name.to_owned(), Arc::new(named))),
                        // One that cannot be read stops no other.
                        Err(fault) => tracing::warn!("{}", fault.message),
                    },
                }
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => break,
            }
        }
        *self.known.write().unwrap() = known;
        let outdated: Vec<(String, Switch, Way)> = {
            let opened = self.opened.lock().unwrap();
            let newer = opened.iter().filter_map(|(place, opened)| {
                let way = self.known_way(place, base).filter(|way| way.seq != opened.seq)?;
                Some((place.clone(), opened.switch.clone()?, way))
            });
            newer.collect()
        };
        for (place, switch, way) in outdated {
            match switch.reopen(&way.url, &way.options).await {
                Ok(()) => {
                    tracing::info!("the lake {place} is asked by what its row says now");
                    if let Some(opened) = self.opened.lock().unwrap().get_mut(&place) {
                        opened.seq = way.seq;
                    }
                }
                Err(fault) => tracing::warn!("the lake {place} cannot be opened anew: {}", fault.message),
            }
        }
        Ok(())
    }
}

/// What keeps a lake from being opened before it was asked.
fn unusable(fault: StoreError) -> LakeError {
    let kind = match fault.kind {
        ErrorKind::Unavailable => LakeErrorKind::Unavailable,
        ErrorKind::Denied => LakeErrorKind::Denied,
        _ => LakeErrorKind::Invalid,
    };
    LakeError::new(kind, fault.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_its_row_for_the_cluster_alone() {
        let ours = WrappingKeys::of(&[[1; 32]]);
        let mut form = Form::new(LakeInfo { name: "cold".into(), ..LakeInfo::default() });
        form.set_secret(&ours, Some("hush hush"));
        let bytes = form.encode();
        assert!(!bytes.windows(4).any(|window| window == b"hush"));
        let row = Row { key: b"k".to_vec(), value: bytes.into(), seq: 3 };
        let read = Form::of(&row).unwrap();
        assert_eq!(read.secret(&ours).unwrap(), (Some("hush hush".into()), false));
        assert_eq!(read.secret(&WrappingKeys::of(&[[2; 32], [1; 32]])).unwrap().1, true);
        assert_eq!(read.secret(&WrappingKeys::of(&[[2; 32]])).unwrap_err().kind, ErrorKind::Denied);
        form.set_secret(&ours, None);
        assert_eq!((form.has_secret(), form.secret(&ours).unwrap().0), (false, None));
    }

    #[test]
    fn places_name_a_lake_and_a_folder() {
        assert_eq!(parse(&place("cold", "data")), Some(("cold", "data")));
        assert_eq!(parse("s3://cold/data"), None);
        assert_eq!(folder("s3://b/p/?region=x", "data"), "s3://b/p/data?region=x");
    }
}
