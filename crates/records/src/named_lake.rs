//! Lakes with names: what their rows say, and how they are opened. (D220)

use serde::{Deserialize, Serialize};
use stoker_catalog::kv::Row;
use stoker_lake::{LakeOptions, RetryOptions};
use stoker_schema::rows::{LakeRow, RowValue};
use stoker_store::{ErrorKind, LAKE_SCHEME, LakeInfo, Result, StoreError, Subject};

use crate::error;
use crate::wrapping::WrappingKeys;

/// What the body of a row says.
#[derive(Clone, Serialize, Deserialize)]
pub struct Form {
    /// Everything but its secret.
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
    /// Reads a row.
    pub fn of(row: &Row) -> Result<Form> {
        let body = LakeRow::of(row).map_err(error::catalog)?.body;
        serde_json::from_slice(&body).map_err(|fault| {
            StoreError::about(ErrorKind::Corrupt, Subject::Lake, format!("a lake cannot be read: {fault}"))
        })
    }

    /// One without a secret.
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

    /// Whether it has one.
    pub fn has_secret(&self) -> bool {
        self.wrapped.is_some() || self.plain.is_some()
    }

    /// The value of its row.
    pub fn encode(&self) -> Vec<u8> {
        LakeRow { body: serde_json::to_vec(self).expect("plain data encodes") }.encode()
    }
}

/// A lake as its row says.
pub struct Named {
    /// Everything but its secret.
    pub info: LakeInfo,
    secret: Option<String>,
    /// Of its row.
    pub seq: u64,
}

impl Named {
    /// Reads a row, and opens its secret.
    pub fn read(row: &Row, wrapping: &WrappingKeys) -> Result<Named> {
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
pub fn parse(place: &str) -> Option<(&str, &str)> {
    place.strip_prefix(LAKE_SCHEME)?.split_once('/')
}

/// The place of a volume in a lake with a name.
pub fn place(lake: &str, volume: &str) -> String {
    format!("{LAKE_SCHEME}{lake}/{volume}")
}

/// The folder of a volume below a lake's root; settings behind a `?` stay behind it.
pub fn folder(root: &str, name: &str) -> String {
    let (path, settings) = match root.split_once('?') {
        Some((path, settings)) => (path, format!("?{settings}")),
        None => (root, String::new()),
    };
    format!("{}/{name}{settings}", path.trim_end_matches('/'))
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
        let row = Row { key: b"k".to_vec(), value: bytes, seq: 3 };
        let read = Form::of(&row).unwrap();
        assert_eq!(read.secret(&ours).unwrap(), (Some("hush hush".into()), false));
        assert!(read.secret(&WrappingKeys::of(&[[2; 32], [1; 32]])).unwrap().1);
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
