//! What an access key may do. Both paths ask here.

use stoker_store::Access;

use crate::refusal::{Code, Refusal, Result};

/// What somebody wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// Look.
    Read,
    /// Change.
    Write,
}

/// Whether a key may do this with a file, or with all files whose names start so.
pub(crate) fn check_key(access: &Access, intent: Intent, volume: &str, key: &[u8]) -> Result<()> {
    check(access, intent, |scope| match prefix_in(scope, volume) {
        Some(prefix) => key.starts_with(prefix.as_bytes()),
        None => false,
    })
}

/// Whether a key may do this with a volume as a whole.
pub(crate) fn check_volume(access: &Access, intent: Intent, volume: &str) -> Result<()> {
    check(access, intent, |scope| prefix_in(scope, volume) == Some(""))
}

/// Whether a key may know that a volume is there.
pub(crate) fn check_glimpse(access: &Access, volume: &str) -> Result<()> {
    check(access, Intent::Read, |scope| prefix_in(scope, volume).is_some())
}

fn check(access: &Access, intent: Intent, covers: impl Fn(&str) -> bool) -> Result<()> {
    if intent == Intent::Write && access.read_only {
        return Err(Refusal::new(Code::AccessDenied, "Access Denied: this access key may only read."));
    }
    if access.prefixes.is_empty() || access.prefixes.iter().any(|scope| covers(scope)) {
        return Ok(());
    }
    Err(Refusal::new(Code::AccessDenied, "Access Denied: this access key is limited to other prefixes."))
}

/// The prefix of a scope `volume` or `volume/prefix`, if it is about this volume.
fn prefix_in<'s>(scope: &'s str, volume: &str) -> Option<&'s str> {
    match scope.split_once('/') {
        Some((name, prefix)) => (name == volume).then_some(prefix),
        None => (scope == volume).then_some(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(read_only: bool, prefixes: &[&str]) -> Access {
        let prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        Access { read_only, prefixes, ..Access::default() }
    }

    #[test]
    fn no_prefixes_mean_everything() {
        let all = access(false, &[]);
        assert!(check_key(&all, Intent::Write, "vol", b"a").is_ok());
        assert!(check_volume(&all, Intent::Write, "vol").is_ok());
    }

    #[test]
    fn read_only_reads() {
        let reader = access(true, &[]);
        assert!(check_key(&reader, Intent::Read, "vol", b"a").is_ok());
        assert_eq!(check_key(&reader, Intent::Write, "vol", b"a").unwrap_err().code, Code::AccessDenied);
        assert!(check_volume(&reader, Intent::Write, "vol").is_err());
    }

    #[test]
    fn prefixes_limit() {
        let limited = access(false, &["vol/logs/", "other"]);
        for (volume, key, fine) in [
            ("vol", "logs/a", true),
            ("vol", "logs/", true),
            ("vol", "logs", false),
            ("vol", "logsx", false),
            ("vol", "", false),
            ("other", "anything", true),
            ("other", "", true),
            ("vol2", "logs/a", false),
            ("othe", "r", false),
        ] {
            assert_eq!(
                check_key(&limited, Intent::Write, volume, key.as_bytes()).is_ok(),
                fine,
                "{volume} {key}"
            );
        }
        assert!(check_volume(&limited, Intent::Read, "vol").is_err());
        assert!(check_volume(&limited, Intent::Write, "other").is_ok());
        assert!(check_glimpse(&limited, "vol").is_ok());
        assert!(check_glimpse(&limited, "third").is_err());
    }
}
