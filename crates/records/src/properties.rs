//! What users give a file besides bytes, as the catalog keeps it.

use serde::{Deserialize, Serialize};
use stoker_schema::rows::FileRow;
use stoker_store::{
    Attributes, Checksum, ChecksumKind, ErrorKind, Lock, Result, StoreError, is_meta_reserved,
};

/// Version of this encoding.
const VERSION: u8 = 1;

/// Most bytes of the checksums of a file's parts: they are read whenever its row is.
const PART_SUMS_BYTES_MAX: usize = 8 << 10;

/// Largest encoding: the row of the file has to hold it.
const BYTES_MAX: usize = 48 << 10;

/// Properties of a file, an upload or a part.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Properties {
    /// Metadata, tags, mode and the like.
    pub attributes: Attributes,
    /// Checksums that the user asked to keep.
    pub checksums: Vec<Checksum>,
    /// Checksum that an upload announced.
    pub announced: Option<ChecksumKind>,
    /// What came later. It stands behind the rest, where releases that do not know it do not look.
    #[serde(skip)]
    pub more: More,
}

/// Properties that a release before did not have. If there is nothing in it, nothing is written.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct More {
    /// Of an upload: the checksum of the whole will be one of all bytes.
    pub is_full: bool,
    /// Of a file: the checksums of the parts that it was uploaded in.
    pub parts: Option<PartSums>,
    /// Of a file, and of an upload: the user whom it counts for, as `tenant/user`. It stands behind these as they stand behind the rest.
    #[serde(skip)]
    pub user: Option<String>,
    /// Of an upload: what is to hold the version that it becomes. Behind the user, who is empty then if there is none.
    #[serde(skip)]
    pub lock: Option<Lock>,
}

/// The user whom a file counts for. One whose properties cannot be read counts for nobody.
pub fn charged_to(file: &FileRow) -> Option<String> {
    Properties::decode(&file.properties).ok()?.more.user
}

/// Checksums of one kind, one behind the other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartSums {
    kind: ChecksumKind,
    values: Vec<u8>,
    count: u32,
}

impl PartSums {
    /// Takes the checksums of all parts; none if one has none of this kind, or they are too many to be kept.
    pub fn of<'c>(
        kind: ChecksumKind,
        mut parts: impl Iterator<Item = Option<&'c Checksum>>,
    ) -> Option<PartSums> {
        let (mut values, mut count, mut len) = (Vec::new(), 0, None);
        parts.try_for_each(|sum| {
            let value = &sum.filter(|sum| sum.kind == kind && sum.parts == 0)?.value;
            let fits = values.len() + value.len() <= PART_SUMS_BYTES_MAX && !value.is_empty();
            (fits && *len.get_or_insert(value.len()) == value.len()).then(|| {
                values.extend_from_slice(value);
                count += 1;
            })
        })?;
        (count > 0).then_some(PartSums { kind, values, count })
    }

    /// All of them.
    pub fn checksums(&self) -> Vec<Checksum> {
        let len = (self.values.len() / self.count.max(1) as usize).max(1);
        let sum = |value: &[u8]| Checksum { kind: self.kind, value: value.to_vec(), parts: 0 };
        self.values.chunks_exact(len).map(sum).collect()
    }
}

impl Properties {
    /// Every property that is to be kept passes here, whoever it came from: names of metadata that are ours are refused.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.attributes.check()?;
        let mut bytes = postcard::to_extend(self, vec![VERSION]).expect("plain data encodes");
        if self.more != More::default() {
            bytes = postcard::to_extend(&self.more, bytes).expect("plain data encodes");
        }
        let user = self.more.user.as_deref().or(self.more.lock.map(|_| ""));
        if let Some(user) = user {
            bytes = postcard::to_extend(user, bytes).expect("plain data encodes");
        }
        if let Some(lock) = &self.more.lock {
            bytes = postcard::to_extend(lock, bytes).expect("plain data encodes");
        }
        if bytes.len() > BYTES_MAX {
            let message =
                format!("metadata, tags and attributes have {} bytes, at most {BYTES_MAX} fit", bytes.len());
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        Ok(bytes)
    }

    /// Reads them back.
    pub fn decode(bytes: &[u8]) -> Result<Properties> {
        let corrupt = |what| {
            StoreError::new(ErrorKind::Corrupt, format!("properties of a file cannot be read: {what}"))
        };
        match bytes.split_first() {
            None => Ok(Properties::default()),
            Some((&VERSION, body)) => postcard::take_from_bytes::<Properties>(body)
                .and_then(|(properties, rest)| match rest {
                    [] => Ok(properties),
                    rest => {
                        let (more, rest) = postcard::take_from_bytes::<More>(rest)?;
                        let (user, rest): (Option<String>, _) = match rest {
                            [] => (None, rest),
                            rest => postcard::take_from_bytes(rest).map(|(user, rest)| (Some(user), rest))?,
                        };
                        let lock = match rest {
                            [] => None,
                            rest => Some(postcard::from_bytes(rest)?),
                        };
                        let user = user.filter(|user: &String| !user.is_empty());
                        Ok(Properties { more: More { user, lock, ..more }, ..properties })
                    }
                })
                .map(Properties::without_reserved)
                .map_err(|fault| corrupt(fault.to_string())),
            Some((version, _)) => Err(corrupt(format!("version {version} is newer than this release"))),
        }
    }

    /// Without the names that are ours: older releases took them from anybody.
    pub fn without_reserved(mut self) -> Properties {
        self.attributes.meta.retain(|(name, _)| !is_meta_reserved(name));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_meta(name: &str) -> Properties {
        let meta = vec![("colour".to_owned(), "red".to_owned()), (name.to_owned(), "1".to_owned())];
        Properties { attributes: Attributes { meta, ..Attributes::default() }, ..Properties::default() }
    }

    #[test]
    fn what_came_later_stands_where_nobody_looked() {
        let sum = |byte| Checksum { kind: ChecksumKind::Crc32, value: vec![byte; 4], parts: 0 };
        let sums = [sum(1), sum(2)];
        let parts = PartSums::of(ChecksumKind::Crc32, sums.iter().map(Some)).unwrap();
        assert_eq!(parts.checksums(), sums);
        assert_eq!(PartSums::of(ChecksumKind::Sha1, sums.iter().map(Some)), None);
        assert_eq!(PartSums::of(ChecksumKind::Crc32, [Some(&sums[0]), None].into_iter()), None);
        let many = vec![sum(1); 3_000];
        assert_eq!(PartSums::of(ChecksumKind::Crc32, many.iter().map(Some)), None);

        let plain = with_meta("size");
        let more = More { is_full: true, parts: Some(parts), ..More::default() };
        let full = Properties { more, ..plain.clone() };
        let (short, long) = (plain.encode().unwrap(), full.encode().unwrap());
        assert!(long.starts_with(&short) && long.len() > short.len());
        assert_eq!(Properties::decode(&short).unwrap(), plain);
        assert_eq!(Properties::decode(&long).unwrap(), full);
        // What a release before reads of it.
        let (older, _) = postcard::take_from_bytes::<Properties>(&long[1..]).unwrap();
        assert_eq!(older, plain);
        // So does the user, behind that.
        let of_user = Properties {
            more: More { user: Some("acme/alice".into()), ..full.more.clone() },
            ..plain.clone()
        };
        let longest = of_user.encode().unwrap();
        assert!(longest.starts_with(&long));
        assert_eq!(Properties::decode(&longest).unwrap(), of_user);
        // And what is to hold an upload, with a user and without one.
        let retention = Some(stoker_store::Retention { is_compliance: true, until_ms: 9 });
        let lock = Some(Lock { retention, is_held: true });
        for properties in [&of_user, &plain] {
            let locked = Properties { more: More { lock, ..properties.more.clone() }, ..properties.clone() };
            assert_eq!(Properties::decode(&locked.encode().unwrap()).unwrap(), locked);
        }
        let (_, behind) = postcard::take_from_bytes::<Properties>(&longest[1..]).unwrap();
        assert_eq!(postcard::from_bytes::<More>(behind).unwrap(), full.more);
        for len in short.len() + 1..long.len() {
            assert_eq!(Properties::decode(&long[..len]).unwrap_err().kind, ErrorKind::Corrupt);
        }
    }

    #[test]
    fn reserved_names_are_refused_and_those_of_older_releases_dropped() {
        for name in ["stoker-version", "stoker-", "Stoker-Mode", "STOKER-anything", "stoker-Seal"] {
            let properties = with_meta(name);
            assert_eq!(properties.encode().unwrap_err().kind, ErrorKind::Invalid, "{name}");
            let older = postcard::to_extend(&properties, vec![VERSION]).unwrap();
            assert_eq!(Properties::decode(&older).unwrap().attributes.meta.len(), 1, "{name}");
        }
        for name in
            ["stoker", "stoke-r", "stoker-seal", "stoker-pack", "stoker-set", "x-stoker-mode", "stökér-"]
        {
            let properties = with_meta(name);
            assert_eq!(Properties::decode(&properties.encode().unwrap()).unwrap(), properties, "{name}");
        }
    }
}
