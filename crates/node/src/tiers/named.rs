//! Lakes with names, as a node knows and opens them.
//!
//! A lake is a row of the catalog; its secret is wrapped by the cluster's key (D82). A volume in it has the place `lake://NAME/FOLDER`. What was opened by
//! a name is opened anew when the row changes, below everybody who holds it: keys that are renewed work on all nodes, for open files too. (D220)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use stoker_catalog::kv::{Catalog, Range};
use stoker_lake::{Lake, LakeError, LakeErrorKind, LakeOpener, LakeOptions, Switch};
use stoker_records::wrapping::WrappingKeys;
use stoker_schema::rows::tier_keys;
use stoker_store::{ErrorKind, Result, StoreError, Subject};

pub(crate) use stoker_records::named_lake::{Form, Named, folder, parse, place};

use crate::error;

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
