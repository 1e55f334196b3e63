//! Parameters of a StorageClass, what a VolumeAttributesClass may change of them, and sizes.

use std::collections::{BTreeMap, HashMap};

use serde::de::DeserializeOwned;
use stoker_store::{
    DrainPolicy, LakeMode, TENANT_DEFAULT, VolumeOptions, VolumePolicy, check_volume_name, check_who_name,
    full_volume_name,
};
use tonic::Status;

use crate::answer::{Answer, fault};
use crate::proto::CapacityRange;
use crate::record::is_reserved;

/// Parameters that orchestrators add for their own use.
pub const FOREIGN: &str = "csi.storage.k8s.io/";
/// Largest volume: what a mount shows as its size if nothing limits it.
pub const SIZE_MAX: u64 = 1 << 50;

/// What a StorageClass asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parameters {
    /// The volume in which a directory is made; none: a volume of its own.
    pub volume: Option<String>,
    /// The tenant that it belongs to; none: the default one.
    pub tenant: Option<String>,
    /// Where a volume drains.
    pub lake: Option<String>,
    /// Its bytes are encrypted on drives.
    pub encrypt: bool,
    /// What stays when it is deleted.
    pub retain: bool,
    /// What the volume wants.
    pub policy: VolumePolicy,
    /// As they were given, for those who ask twice.
    pub given: BTreeMap<String, String>,
}

impl Parameters {
    /// Reads both kinds; one that is not known is refused, so that a slip does not become another class of durability.
    pub fn read(fixed: &HashMap<String, String>, mutable: &HashMap<String, String>) -> Answer<Parameters> {
        let mut read = Parameters::default();
        let mut retain = None;
        for (name, value) in fixed.iter().filter(|(name, _)| !name.starts_with(FOREIGN)) {
            match name.as_str() {
                "volume" => {
                    check_volume_name(value).map_err(fault)?;
                    if is_reserved(value) {
                        return Err(wrong(name, value, "a volume that a person made"));
                    }
                    read.volume = Some(value.clone());
                }
                "tenant" => {
                    check_who_name("tenant", value).map_err(fault)?;
                    read.tenant = Some(value.clone()).filter(|tenant| tenant != TENANT_DEFAULT);
                }
                "encrypt" => match value.as_str() {
                    "aes-256-gcm" => read.encrypt = true,
                    _ => return Err(wrong(name, value, "aes-256-gcm")),
                },
                "lake" => read.lake = Some(value.clone()),
                "onDelete" => {
                    retain = Some(match value.as_str() {
                        "delete" => false,
                        "retain" => true,
                        _ => return Err(wrong(name, value, "delete or retain")),
                    });
                }
                _ => apply(&mut read.policy, name, value)?,
            }
            read.given.insert(name.clone(), value.clone());
        }
        for (name, value) in mutable.iter().filter(|(name, _)| !name.starts_with(FOREIGN)) {
            apply(&mut read.policy, name, value)?;
            read.given.insert(name.clone(), value.clone());
        }
        if let Some(volume) = &read.volume {
            let others = read.given.keys().find(|name| !["volume", "onDelete"].contains(&name.as_str()));
            if let Some(name) = others {
                let message = format!("a directory of volume {volume} has its policy: {name} cannot be set");
                return Err(Status::invalid_argument(message));
            }
        }
        // What others keep in a lake is not deleted because a claim goes.
        let foreign =
            read.policy.lake_mode != LakeMode::Owned || read.lake.as_ref().is_some_and(|lake| lake != "none");
        read.retain = retain.unwrap_or(foreign);
        Ok(read)
    }

    /// What a volume is called in the cluster, of its handle.
    pub fn full_name(&self, handle: &str) -> String {
        full_volume_name(self.tenant.as_deref().unwrap_or(TENANT_DEFAULT), handle)
    }

    /// The volume that they describe.
    pub fn options(&self, quota_bytes: u64) -> VolumeOptions {
        VolumeOptions {
            lake: self.lake.clone(),
            policy: Some(VolumePolicy { quota_bytes, ..self.policy.clone() }),
        }
    }
}

/// Changes a policy by a parameter.
pub fn apply(policy: &mut VolumePolicy, name: &str, value: &str) -> Answer<()> {
    match name {
        "class" => policy.class = named(name, value, "auto, one, two or three")?,
        "spread" => policy.spread = named(name, value, "node, tor or power")?,
        "whenAlone" => policy.when_alone = named(name, value, "refuse or lake")?,
        "lakeMode" => policy.lake_mode = named(name, value, "owned, shared or read-only")?,
        "drain" => {
            policy.drain = match value.split_once(':') {
                Some(("every", count)) => DrainPolicy::Every(number(name, count)?),
                _ => named(name, value, "always, never, on-demand or every:N")?,
            }
        }
        "drainQuietSeconds" => policy.drain_quiet_s = number(name, value)?,
        "drainLagMaxSeconds" => policy.drain_lag_max_s = number(name, value)?,
        "leases" => policy.leases = value.parse().map_err(|_| wrong(name, value, "true or false"))?,
        _ => {
            let known = "volume, tenant, lake, encrypt, onDelete, class, spread, whenAlone, lakeMode, drain, drainQuietSeconds, drainLagMaxSeconds, leases";
            return Err(Status::invalid_argument(format!(
                "the parameter {name:?} is not known; known are {known}"
            )));
        }
    }
    Ok(())
}

/// A word of an enumeration, as the command line has it.
fn named<T: DeserializeOwned>(name: &str, value: &str, known: &str) -> Answer<T> {
    let word = serde_json::Value::String(value.replace('-', "_"));
    serde_json::from_value(word).map_err(|_| wrong(name, value, known))
}

fn number(name: &str, value: &str) -> Answer<u32> {
    value.parse().ok().filter(|number| *number > 0).ok_or_else(|| wrong(name, value, "a number above 0"))
}

fn wrong(name: &str, value: &str, known: &str) -> Status {
    Status::invalid_argument(format!("{name} is {known}, not {value:?}"))
}

/// A range of sizes: the size that is made of it, 0 for no limit.
pub fn size(range: Option<&CapacityRange>) -> Answer<u64> {
    let Some(range) = range else { return Ok(0) };
    let (required, limit) = bounds(range)?;
    let size = if required > 0 { required } else { limit };
    if required > SIZE_MAX {
        return Err(Status::out_of_range(format!("a volume has at most {SIZE_MAX} bytes")));
    }
    Ok(size.min(SIZE_MAX))
}

/// True if a volume of this size is what a range asks for.
pub fn fits(range: Option<&CapacityRange>, size: u64) -> Answer<bool> {
    let Some(range) = range else { return Ok(true) };
    let (required, limit) = bounds(range)?;
    Ok(match size {
        0 => required == 0 && limit == 0,
        _ => size >= required && (limit == 0 || size <= limit),
    })
}

fn bounds(range: &CapacityRange) -> Answer<(u64, u64)> {
    let bytes = |value: i64| u64::try_from(value).map_err(|_| Status::out_of_range("a size is below zero"));
    let (required, limit) = (bytes(range.required_bytes)?, bytes(range.limit_bytes)?);
    if limit > 0 && required > limit {
        return Err(Status::out_of_range("required_bytes is above limit_bytes"));
    }
    Ok((required, limit))
}

/// A size as Kubernetes writes it: `10Gi`, `500M`, `1000`.
pub fn quantity(text: &str) -> Answer<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let factor: Option<u64> = match unit {
        "" => Some(1),
        "Ki" | "KiB" => Some(1 << 10),
        "Mi" | "MiB" => Some(1 << 20),
        "Gi" | "GiB" => Some(1 << 30),
        "Ti" | "TiB" => Some(1 << 40),
        "k" => Some(1_000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        "T" => Some(1_000_000_000_000),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(factor).and_then(|(count, factor)| count.checked_mul(factor));
    bytes.filter(|bytes| (1..=SIZE_MAX).contains(bytes)).ok_or_else(|| {
        Status::invalid_argument(format!(
            "{text:?} is no size: a number with Ki, Mi, Gi, Ti, k, M, G or T, above 0"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_store::{Class, WhenAlone};

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn parameters_become_a_policy() {
        let fixed = map(&[("class", "two"), ("drain", "every:5"), ("csi.storage.k8s.io/pvc/name", "x")]);
        let read = Parameters::read(&fixed, &map(&[("whenAlone", "lake")])).ok().unwrap();
        assert_eq!((read.policy.class, read.policy.drain), (Class::Two, DrainPolicy::Every(5)));
        assert_eq!((read.policy.when_alone, read.retain, read.given.len()), (WhenAlone::Lake, false, 3));
        let data = Parameters::read(&map(&[("lakeMode", "read-only"), ("drain", "on-demand")]), &map(&[]))
            .ok()
            .unwrap();
        assert!(data.retain && data.policy.drain == DrainPolicy::OnDemand);
        assert!(Parameters::read(&map(&[("lake", "s3://b/p")]), &map(&[])).ok().unwrap().retain);
    }

    #[test]
    fn slips_are_refused() {
        for pairs in [
            &[("clas", "two")][..],
            &[("class", "four")],
            &[("drain", "every:0")],
            &[("leases", "yes")],
            &[("onDelete", "")],
            &[("encrypt", "rot13")],
            &[("volume", "stoker-csi")],
            &[("tenant", "A_b")],
            &[("tenant", "acme"), ("volume", "data")],
            &[("volume", "snap-pvc-1")],
            &[("volume", "data"), ("encrypt", "aes-256-gcm")],
            &[("volume", "a/b")],
            &[("volume", "data"), ("class", "two")],
            &[("drainQuietSeconds", "-1")],
        ] {
            let status = Parameters::read(&map(pairs), &map(&[])).err().unwrap();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{pairs:?}");
        }
    }

    #[test]
    fn ranges_and_sizes() {
        let range = |required_bytes, limit_bytes| CapacityRange { required_bytes, limit_bytes };
        let made = |required, limit| size(Some(&range(required, limit))).ok();
        assert_eq!((made(5, 0), made(5, 9), made(0, 9), made(0, 0)), (Some(5), Some(5), Some(9), Some(0)));
        assert_eq!((made(-1, 0), made(1, -1), made(9, 5), made(i64::MAX, 0)), (None, None, None, None));
        let fit = |required, limit, size| fits(Some(&range(required, limit)), size).ok().unwrap();
        assert!(fit(5, 9, 7) && fit(5, 0, 7) && fit(0, 0, 0) && fit(0, 0, 7));
        assert!(!fit(8, 0, 7) && !fit(5, 6, 7) && !fit(5, 0, 0));
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (text, expect) in
            [("1", 1), ("10Gi", 10 << 30), ("500M", 500_000_000), ("1Ti", 1 << 40), ("2KiB", 2048)]
        {
            assert_eq!(quantity(text).ok(), Some(expect), "{text}");
        }
        for text in ["", "0", "Gi", "-1", "1.5Gi", "10gi", "99999999999999999999", "9999999Ti"] {
            assert!(quantity(text).is_err(), "{text}");
        }
    }
}
