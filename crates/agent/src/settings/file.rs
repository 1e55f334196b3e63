//! The file in which `up` keeps what it was told, for the next start.
//!
//! `lake` and `drives` stand apart, where former releases look for them; what those wrote has nothing else and is read as
//! it is. A file that does not match its checksum is refused: a node must not come back with other settings unnoticed.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Setting, Values};
use crate::failure::Failure;
use crate::place::{read_small, write_small};

/// Its name in the node's directory.
pub const FILE: &str = "up.json";

/// The form that is written.
const VERSION: u32 = 2;

#[derive(Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Form {
    /// 0 in files of releases that had none.
    #[serde(skip_serializing_if = "is_zero")]
    version: u32,
    lake: Option<String>,
    drives: Vec<String>,
    settings: BTreeMap<String, Vec<String>>,
    /// CRC32C of the same text with an empty checksum.
    checksum: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What earlier starts were told; nothing if there were none.
pub fn read(dir: &Path) -> Result<Values, Failure> {
    let path = dir.join(FILE);
    let Some(text) = read_small(&path)? else { return Ok(Values::default()) };
    parse(&text).map_err(|wrong| {
        Failure::new(format!("the settings in {} cannot be used: {wrong}", path.display())).hint(
            "bring the file back from a backup, or move it away and give the settings again (--lake, --drive, --name, …); \
             the identity of the node and its data are not in it",
        )
    })
}

fn parse(text: &str) -> Result<Values, String> {
    // Looked at first: what a newer release wrote is not damaged.
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        version: u32,
    }
    let Head { version } = serde_json::from_str(text).map_err(|error| format!("it is damaged: {error}"))?;
    if version > VERSION {
        return Err(format!("a newer release wrote them (form {version})"));
    }
    let mut form: Form = serde_json::from_str(text).map_err(|error| format!("it is damaged: {error}"))?;
    if version > 0 || !form.checksum.is_empty() {
        let told = std::mem::take(&mut form.checksum);
        if told != checksum(&form)? {
            return Err("it is damaged, or was changed by hand: its checksum does not match".to_owned());
        }
    }
    let mut values = Values::default();
    let mut take = |setting: Setting, texts: &[String]| {
        values.set(setting, texts).map_err(|wrong| format!("{}: {wrong}", setting.name()))
    };
    take(Setting::Lake, form.lake.as_slice())?;
    take(Setting::Drive, &form.drives)?;
    for (name, texts) in &form.settings {
        let setting = Setting::named(name).ok_or_else(|| format!("`{name}` is no setting"))?;
        take(setting, texts)?;
    }
    Ok(values)
}

/// Keeps them, if they are others than those that are kept; only the owner can read them.
pub fn write(dir: &Path, values: &Values) -> Result<(), Failure> {
    if *values == read(dir)? {
        return Ok(());
    }
    let failed = |error: String| Failure::new(format!("{FILE}: {error}"));
    let text = text(values).map_err(failed)?;
    write_small(dir, FILE, &text)
}

fn text(values: &Values) -> Result<String, String> {
    let settings = Setting::ALL
        .into_iter()
        .filter(|setting| !matches!(setting, Setting::Lake | Setting::Drive) && values.has(*setting))
        .map(|setting| (setting.name().to_owned(), values.all(setting).to_vec()));
    let mut form = Form {
        version: VERSION,
        lake: values.one(Setting::Lake).map(str::to_owned),
        drives: values.all(Setting::Drive).to_vec(),
        settings: settings.collect(),
        checksum: String::new(),
    };
    form.checksum = checksum(&form)?;
    serde_json::to_string(&form).map_err(|error| error.to_string())
}

fn checksum(form: &Form) -> Result<String, String> {
    let bytes = serde_json::to_vec(form).map_err(|error| error.to_string())?;
    Ok(format!("{:08x}", stoker_format::crc32c(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Values {
        let mut values = Values::default();
        let all = [
            (Setting::Lake, &["s3://b/p"][..]),
            (Setting::Drive, &["/d0", "/d1"]),
            (Setting::Name, &["a\"b"]),
            (Setting::NfsExport, &["data:allow=10.0.0.0/8", "runs:read-only"]),
            (Setting::Memory, &["1GiB"]),
        ];
        for (setting, texts) in all {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            values.set(setting, &texts).unwrap();
        }
        values
    }

    #[test]
    fn settings_come_back_and_only_the_owner_reads_them() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Values::default());
        write(dir.path(), &some()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), some());
        let mode = std::fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn files_of_former_releases_are_read() {
        let old = parse(r#"{"lake":"s3://b/p","drives":["/d0"]}"#).unwrap();
        assert_eq!((old.one(Setting::Lake), old.drives()), (Some("s3://b/p"), vec!["/d0".into()]));
        assert_eq!(parse(r#"{"lake":null,"drives":[]}"#).unwrap(), Values::default());
        // And they find in ours what they know.
        #[derive(Deserialize)]
        struct Former {
            lake: Option<String>,
            drives: Vec<String>,
        }
        let former: Former = serde_json::from_str(&text(&some()).unwrap()).unwrap();
        assert_eq!((former.lake.as_deref(), former.drives.len()), (Some("s3://b/p"), 2));
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        let good = text(&some()).unwrap();
        assert_eq!(parse(&good).unwrap(), some());
        let (mut noticed, bytes) = (0, good.as_bytes());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.to_vec();
                bad[at] ^= 1 << bit;
                let Ok(bad) = String::from_utf8(bad) else { continue };
                // One that means the same, such as another blank, is none.
                assert!(parse(&bad).is_err() || parse(&bad).unwrap() == some(), "{bad}");
                noticed += u32::from(parse(&bad).is_err());
            }
            assert!(parse(&good[..at]).is_err());
        }
        assert!(noticed as usize > bytes.len());
        let newer = good.replace("\"version\":2", "\"version\":3");
        assert!(parse(&newer).unwrap_err().contains("newer release"));
    }
}
