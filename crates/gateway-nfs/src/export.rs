//! Which volumes are shown to whom.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::access::Identity;

/// Who root and unknown callers become if nobody says otherwise: `nobody` nearly everywhere.
const NOBODY: u32 = 65534;

/// Addresses that start alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Whether an address is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                alike(own.to_bits().into(), other.to_bits().into(), 32, self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => alike(own.to_bits(), other.to_bits(), 128, self.bits),
            _ => false,
        }
    }

    fn this_machine() -> Vec<Network> {
        vec![
            Network { address: Ipv4Addr::new(127, 0, 0, 0).into(), bits: 8 },
            Network { address: Ipv6Addr::LOCALHOST.into(), bits: 128 },
        ]
    }
}

fn alike(own: u128, other: u128, len: u32, bits: u8) -> bool {
    let behind = len - u32::from(bits);
    behind >= 128 || own >> behind == other >> behind
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wrong =
            || format!("`{text}` is no address and no network: expected 10.0.0.7, 10.0.0.0/8 or fd00::/8");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > most {
            return Err(wrong());
        }
        Ok(Network { address: address.to_canonical(), bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// A volume that is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// The volume; none for every volume that has no export of its own.
    pub volume: Option<String>,
    /// Who may mount it.
    pub allow: Vec<Network>,
    /// Changes are refused.
    pub read_only: bool,
    /// Root of a client is root here; otherwise it is `anonymous`.
    pub keep_root: bool,
    /// User and group of root and of callers who do not say who they are. What has no owner belongs to them.
    pub anonymous: (u32, u32),
}

impl Export {
    /// Every volume, for this machine.
    pub fn local() -> Export {
        Export {
            volume: None,
            allow: Network::this_machine(),
            read_only: false,
            keep_root: false,
            anonymous: (NOBODY, NOBODY),
        }
    }

    /// Whether a client may use it.
    pub fn allows(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|network| network.contains(address))
    }

    /// Who a caller is here.
    pub(crate) fn identity(&self, caller: Option<Identity>) -> Identity {
        let (uid, gid) = self.anonymous;
        match caller {
            Some(caller) if self.keep_root || caller.uid != 0 => {
                // Root's group says as much as root.
                let keep = |group: u32| if self.keep_root || group != 0 { group } else { gid };
                let groups = caller.groups.into_iter().map(keep).collect();
                Identity { uid: caller.uid, gid: keep(caller.gid), groups }
            }
            _ => Identity { uid, gid, groups: Vec::new() },
        }
    }

    /// Owner and group of what says nothing of them.
    pub(crate) fn owner(&self) -> (u32, u32) {
        if self.keep_root { (0, 0) } else { self.anonymous }
    }
}

/// `VOLUME[:OPTION,...]` with the options `allow=NETWORK` (many), `read-only`, `keep-root` and `anonymous=UID:GID`.
impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Export, String> {
        let (volume, options) = text.split_once(':').unwrap_or((text, ""));
        if volume.is_empty() {
            return Err("expected VOLUME[:OPTION,...]".into());
        }
        let mut export = Export { volume: Some(volume.to_owned()), ..Export::local() };
        let mut allow = Vec::new();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("allow", network)) => allow.push(network.parse()?),
                Some(("anonymous", owner)) => export.anonymous = parse_owner(owner)?,
                None if option == "read-only" => export.read_only = true,
                None if option == "keep-root" => export.keep_root = true,
                _ => {
                    return Err(format!(
                        "`{option}`: expected allow=NETWORK, read-only, keep-root or anonymous=UID:GID"
                    ));
                }
            }
        }
        if !allow.is_empty() {
            export.allow = allow;
        }
        Ok(export)
    }
}

/// As it is read.
impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (uid, gid) = self.anonymous;
        write!(f, "{}:anonymous={uid}:{gid}", self.volume.as_deref().unwrap_or_default())?;
        self.allow.iter().try_for_each(|network| write!(f, ",allow={network}"))?;
        for (is_so, name) in [(self.read_only, "read-only"), (self.keep_root, "keep-root")] {
            if is_so {
                write!(f, ",{name}")?;
            }
        }
        Ok(())
    }
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    parsed.ok_or_else(|| format!("`{text}`: expected UID:GID, two numbers"))
}

/// The export of a volume. One that names it comes before one for all; without any, volumes are for this machine.
pub(crate) fn find(exports: &[Export], volume: &str) -> Option<Export> {
    if exports.is_empty() {
        return Some(Export::local());
    }
    let named = exports.iter().find(|export| export.volume.as_deref() == Some(volume));
    named.or_else(|| exports.iter().find(|export| export.volume.is_none())).cloned()
}

/// Whether an address may use any volume at all.
pub(crate) fn is_known(exports: &[Export], address: IpAddr) -> bool {
    if exports.is_empty() {
        return Export::local().allows(address);
    }
    exports.iter().any(|export| export.allows(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_what_starts_alike() {
        let check = |network: &str, address: &str, is_in: bool| {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), is_in, "{network} {address}");
        };
        check("10.0.0.0/8", "10.255.1.2", true);
        check("10.0.0.0/8", "11.0.0.1", false);
        check("10.0.0.0/8", "::ffff:10.1.1.1", true);
        check("192.168.1.7", "192.168.1.7", true);
        check("192.168.1.7", "192.168.1.8", false);
        check("0.0.0.0/0", "8.8.8.8", true);
        check("0.0.0.0/0", "fd00::1", false);
        check("fd00::/8", "fdab::1", true);
        check("::/0", "2001:db8::1", true);
        for wrong in ["", "10.0.0", "10.0.0.0/33", "10.0.0.0/x", "fd00::/129", "example.org"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn exports_are_read_and_mistakes_named() {
        let export: Export =
            "data:allow=10.0.0.0/8,allow=fd00::/8,read-only,anonymous=1000:100".parse().unwrap();
        assert!(export.allows("10.1.2.3".parse().unwrap()) && !export.allows("127.0.0.1".parse().unwrap()));
        assert_eq!((export.read_only, export.keep_root, export.anonymous), (true, false, (1000, 100)));
        assert_eq!(export.to_string().parse(), Ok(export));
        let plain: Export = "data".parse().unwrap();
        assert!(plain.allows("127.0.0.1".parse().unwrap()) && !plain.allows("10.0.0.1".parse().unwrap()));
        for (text, word) in
            [("", "VOLUME"), ("a:rw", "read-only"), ("a:allow=x", "network"), ("a:anonymous=1", "UID")]
        {
            assert!(text.parse::<Export>().unwrap_err().contains(word), "{text}");
        }
        let exports = ["data:read-only".parse().unwrap()];
        assert!(find(&exports, "data").is_some_and(|export| export.read_only));
        assert_eq!((find(&exports, "other"), find(&[], "other")), (None, Some(Export::local())));
        let two: [Export; 2] = ["a:allow=10.0.0.0/8".parse().unwrap(), "b:allow=fd00::/8".parse().unwrap()];
        let known = |address: &str| is_known(&two, address.parse().unwrap());
        assert!(known("10.1.2.3") && known("fd00::1") && !known("127.0.0.1"));
        assert!(is_known(&[], "127.0.0.1".parse().unwrap()) && !is_known(&[], "10.1.2.3".parse().unwrap()));
    }

    #[test]
    fn root_is_nobody_unless_it_is_kept() {
        let root = || Some(Identity { uid: 0, gid: 0, groups: vec![0, 7] });
        let export = Export::local();
        assert_eq!(export.identity(root()).uid, NOBODY);
        assert_eq!(export.identity(None).gid, NOBODY);
        let user = Identity { uid: 5, gid: 0, groups: vec![0, 7] };
        assert_eq!(
            export.identity(Some(user.clone())),
            Identity { uid: 5, gid: NOBODY, groups: vec![NOBODY, 7] }
        );
        let kept = Export { keep_root: true, ..export };
        assert_eq!(kept.identity(root()), root().unwrap());
        assert_eq!(kept.identity(Some(user.clone())), user);
    }
}
