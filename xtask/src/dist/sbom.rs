//! The list of what is inside, as SPDX 2.3 in JSON, from Cargo.lock alone.
//!
//! A lock file names what the whole workspace may be built of, so the list is an upper bound: crates of tests and of other systems are in
//! it, and nothing that is linked lacks.

use std::fs;

use super::{Dist, said};
use crate::workspace::root;

/// A crate of the lock file.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
    /// None for our own.
    source: Option<String>,
}

/// Writes it beside the packages.
pub fn write(dist: &Dist) -> Result<(), String> {
    let path = root().join("Cargo.lock");
    let text = fs::read_to_string(&path).map_err(said(&path))?;
    let document = document(&locked(&text), &dist.version, &date(&dist.epoch));
    super::write(&dist.out.join(format!("stoker-{}.spdx.json", dist.version)), &document)
}

/// What a lock file holds.
fn locked(text: &str) -> Vec<Locked> {
    let mut all = Vec::new();
    for part in text.split("[[package]]").skip(1) {
        let value = |name: &str| {
            let prefix = format!("{name} = \"");
            part.lines().find_map(|line| line.strip_prefix(&prefix)?.strip_suffix('"')).map(str::to_owned)
        };
        if let (Some(name), Some(version)) = (value("name"), value("version")) {
            all.push(Locked { name, version, checksum: value("checksum"), source: value("source") });
        }
    }
    all.sort();
    all
}

/// The document. Names and versions of crates hold nothing that JSON would have to escape.
fn document(all: &[Locked], version: &str, date: &str) -> String {
    let id =
        |one: &Locked| format!("SPDXRef-{}-{}", one.name.replace('_', "-"), one.version.replace('+', "-"));
    let ours = "SPDXRef-stoker";
    let mut packages = vec![format!(
        r#"{{"SPDXID":"{ours}","name":"stoker","versionInfo":"{version}","downloadLocation":"NOASSERTION","filesAnalyzed":false,"licenseDeclared":"Apache-2.0","licenseConcluded":"NOASSERTION","copyrightText":"NOASSERTION"}}"#
    )];
    let mut relations = vec![format!(
        r#"{{"spdxElementId":"SPDXRef-DOCUMENT","relationshipType":"DESCRIBES","relatedSpdxElement":"{ours}"}}"#
    )];
    for one in all.iter().filter(|one| one.source.is_some()) {
        let sum = one
            .checksum
            .as_ref()
            .map(|sum| format!(r#","checksums":[{{"algorithm":"SHA256","checksumValue":"{sum}"}}]"#));
        packages.push(format!(
            r#"{{"SPDXID":"{id}","name":"{name}","versionInfo":"{version}","downloadLocation":"https://crates.io/api/v1/crates/{name}/{version}/download","filesAnalyzed":false,"licenseDeclared":"NOASSERTION","licenseConcluded":"NOASSERTION","copyrightText":"NOASSERTION","externalRefs":[{{"referenceCategory":"PACKAGE-MANAGER","referenceType":"purl","referenceLocator":"pkg:cargo/{name}@{version}"}}]{sum}}}"#,
            id = id(one),
            name = one.name,
            version = one.version,
            sum = sum.unwrap_or_default(),
        ));
        relations.push(format!(
            r#"{{"spdxElementId":"{ours}","relationshipType":"DEPENDS_ON","relatedSpdxElement":"{}"}}"#,
            id(one)
        ));
    }
    format!(
        r#"{{"spdxVersion":"SPDX-2.3","dataLicense":"CC0-1.0","SPDXID":"SPDXRef-DOCUMENT","name":"stoker-{version}","documentNamespace":"https://spdx.org/spdxdocs/stoker-{version}-{date}","creationInfo":{{"created":"{date}","creators":["Tool: cargo-xtask-dist"]}},
"packages":[
{}
],
"relationships":[
{}
]}}
"#,
        packages.join(",\n"),
        relations.join(",\n")
    )
}

/// Seconds since 1970 as a date of ISO 8601.
fn date(epoch: &str) -> String {
    let seconds: i64 = epoch.parse().unwrap_or(0);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3_600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_of_iso_8601() {
        for (epoch, expect) in [
            ("0", "1970-01-01T00:00:00Z"),
            ("951782400", "2000-02-29T00:00:00Z"),
            ("1763510399", "2025-11-18T23:59:59Z"),
            ("x", "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(date(epoch), expect);
        }
    }

    #[test]
    fn foreign_crates_are_listed_with_their_sums() {
        let text = "version = 4\n\n[[package]]\nname = \"a_b\"\nversion = \"1.0.0+x\"\nsource = \"registry+u\"\nchecksum = \"00ff\"\n\n\
                    [[package]]\nname = \"stoker\"\nversion = \"0.1.0\"\ndependencies = [\n \"a_b\",\n]\n";
        let all = locked(text);
        assert_eq!(all.len(), 2);
        let made = document(&all, "0.1.0", "2026-01-01T00:00:00Z");
        assert!(made.contains("\"SPDXID\":\"SPDXRef-a-b-1.0.0-x\""), "{made}");
        assert!(
            made.contains("pkg:cargo/a_b@1.0.0+x") && made.contains("\"checksumValue\":\"00ff\""),
            "{made}"
        );
        assert_eq!(made.matches("\"name\":\"stoker\"").count(), 1, "{made}");
    }
}
