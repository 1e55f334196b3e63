//! POSIX access control lists: who may do what beyond the three classes of a mode. (D150)
//!
//! They are kept among the extended attributes, in the form that Linux gives them, so they go wherever those go. A mount is
//! asked for them by the kernel, which decides; NFS decides here. Mode and list say the same: a change of one changes the
//! other, and a list that says no more than a mode is not kept.

use stoker_store::Attributes;

use crate::error::{Errno, Result};
use crate::inode::Kind;

/// The attribute with the list of who may use something.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The one of a directory with the list that what is made in it gets.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The form that Linux has.
const FORM: u32 = 2;
const HEAD_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
/// More than fit into an attribute are refused before they are read.
const ENTRIES_MAX: usize = 2000;
/// The number of entries that are for nobody by name.
const NOBODY: u32 = u32::MAX;

/// Whom an entry is for, in the order in which they stand.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Whom {
    Owner,
    User(u32),
    OwnGroup,
    Group(u32),
    /// Not a right: what all but the owner and the others have at most.
    Mask,
    Others,
}

impl Whom {
    fn tag(self) -> (u16, u32) {
        match self {
            Whom::Owner => (0x01, NOBODY),
            Whom::User(id) => (0x02, id),
            Whom::OwnGroup => (0x04, NOBODY),
            Whom::Group(id) => (0x08, id),
            Whom::Mask => (0x10, NOBODY),
            Whom::Others => (0x20, NOBODY),
        }
    }

    fn of(tag: u16, id: u32) -> Option<Whom> {
        match tag {
            0x01 => Some(Whom::Owner),
            0x02 => Some(Whom::User(id)),
            0x04 => Some(Whom::OwnGroup),
            0x08 => Some(Whom::Group(id)),
            0x10 => Some(Whom::Mask),
            0x20 => Some(Whom::Others),
            _ => None,
        }
    }

    fn is_named(self) -> bool {
        matches!(self, Whom::User(_) | Whom::Group(_))
    }

    /// Entries of which there is one at most, and where it stands.
    fn place(self) -> usize {
        match self {
            Whom::Owner => 0,
            Whom::User(_) => 1,
            Whom::OwnGroup => 2,
            Whom::Group(_) => 3,
            Whom::Mask => 4,
            Whom::Others => 5,
        }
    }
}

/// A list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<(Whom, u32)>);

impl Acl {
    /// The list of an attribute's bytes; none if it is empty, which means that there is to be none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Acl>> {
        let (head, body) = bytes.split_at_checked(HEAD_LEN).ok_or(Errno::EINVAL)?;
        if head != FORM.to_le_bytes() {
            return Err(Errno::EOPNOTSUPP);
        }
        let (entries, rest) = body.as_chunks::<ENTRY_LEN>();
        if !rest.is_empty() || entries.len() > ENTRIES_MAX {
            return Err(Errno::EINVAL);
        }
        let mut list = Vec::with_capacity(entries.len());
        for entry in entries {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let bits = u32::from(u16::from_le_bytes([entry[2], entry[3]]));
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let whom = Whom::of(tag, id).filter(|_| bits <= 7).ok_or(Errno::EINVAL)?;
            list.push((whom, bits));
        }
        let list = Acl(list);
        match list.0.is_empty() {
            true => Ok(None),
            false if list.is_sound() => Ok(Some(list)),
            false => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = FORM.to_le_bytes().to_vec();
        for (whom, bits) in &self.0 {
            let (tag, id) = whom.tag();
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&(*bits as u16).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// The list of who may use something; none where the mode says it all.
    pub fn of(attributes: &Attributes) -> Option<Acl> {
        Acl::among(attributes, ACCESS)
    }

    /// The list that what is made in a directory gets.
    pub(crate) fn default_of(attributes: &Attributes) -> Option<Acl> {
        Acl::among(attributes, DEFAULT)
    }

    /// What is no list was written by somebody else: it says nothing.
    fn among(attributes: &Attributes, name: &[u8]) -> Option<Acl> {
        let (_, value) = attributes.xattrs.iter().find(|(known, _)| known == name)?;
        Acl::decode(value).ok().flatten()
    }

    /// Each class once and in its place; a mask where somebody is named.
    fn is_sound(&self) -> bool {
        let count = |place: usize| self.0.iter().filter(|(whom, _)| whom.place() == place).count();
        let in_order = self.0.is_sorted_by_key(|(whom, _)| whom.place());
        let has_named = self.0.iter().any(|(whom, _)| whom.is_named());
        in_order && [0, 2, 5].map(count) == [1, 1, 1] && count(4) <= 1 && (count(4) == 1 || !has_named)
    }

    fn bits(&self, wanted: Whom) -> Option<u32> {
        self.0.iter().find(|(whom, _)| *whom == wanted).map(|(_, bits)| *bits)
    }

    /// Who the middle bits of the mode are.
    fn middle(&self) -> Whom {
        if self.bits(Whom::Mask).is_some() { Whom::Mask } else { Whom::OwnGroup }
    }

    /// The bits that a mode has for this list.
    pub(crate) fn permissions(&self) -> u32 {
        let of = |whom| self.bits(whom).unwrap_or(0);
        of(Whom::Owner) << 6 | of(self.middle()) << 3 | of(Whom::Others)
    }

    /// Whether a mode says the same.
    pub(crate) fn is_plain(&self) -> bool {
        self.0.len() == 3
    }

    /// The same list after a chmod.
    pub(crate) fn with_permissions(mut self, mode: u32) -> Acl {
        let middle = self.middle();
        for (whom, bits) in &mut self.0 {
            *bits = match *whom {
                Whom::Owner => mode >> 6 & 7,
                whom if whom == middle => mode >> 3 & 7,
                Whom::Others => mode & 7,
                _ => *bits,
            };
        }
        self
    }

    /// The list of something that is made with this mode where this is the default: no more than the mode allows.
    pub(crate) fn inherited(self, mode: u32) -> Acl {
        let permissions = self.permissions() & mode;
        self.with_permissions(permissions)
    }

    /// Whether somebody who is not the owner may do all of this: one entry has to allow it, as Linux has it.
    pub fn allows(&self, uid: u32, is_in: impl Fn(u32) -> bool, gid: u32, wish: u32) -> bool {
        let mask = self.bits(Whom::Mask).unwrap_or(7);
        let has = |bits: u32| bits & wish == wish;
        if let Some(bits) = self.bits(Whom::User(uid)) {
            return has(bits & mask);
        }
        let groups = self.0.iter().filter(|(whom, _)| match whom {
            Whom::OwnGroup => is_in(gid),
            Whom::Group(id) => is_in(*id),
            _ => false,
        });
        let mut is_member = false;
        for (_, bits) in groups {
            is_member = true;
            if has(*bits) {
                return has(bits & mask);
            }
        }
        !is_member && has(self.bits(Whom::Others).unwrap_or(0))
    }
}

/// Gives something that is made in a directory the directory's default, and says which mode it has.
pub(crate) fn inherit(
    directory: &Attributes,
    kind: Kind,
    (mode, umask): (u32, u32),
    made: &mut Attributes,
) -> u32 {
    let Some(default) = Acl::default_of(directory) else { return mode & !umask };
    if kind == Kind::Directory {
        set(made, DEFAULT, Some(&default));
    }
    let list = default.inherited(mode);
    set(made, ACCESS, Some(&list).filter(|list| !list.is_plain()));
    mode & !0o777 | list.permissions()
}

/// Puts a list into the attributes, or takes it out.
pub(crate) fn set(attributes: &mut Attributes, name: &[u8], list: Option<&Acl>) {
    attributes.xattrs.retain(|(known, _)| known != name);
    attributes.xattrs.extend(list.map(|list| (name.to_vec(), list.encode())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(Whom, u32)]) -> Acl {
        Acl(entries.to_vec())
    }

    fn rich() -> Acl {
        use Whom::{Group, Mask, Others, OwnGroup, Owner, User};
        list(&[(Owner, 7), (User(5), 6), (OwnGroup, 4), (Group(60), 5), (Mask, 6), (Others, 1)])
    }

    #[test]
    fn lists_are_read_as_they_were_written_and_nothing_else_is() {
        use Whom::{Group, Mask, Others, OwnGroup, Owner, User};
        assert_eq!(Acl::decode(&rich().encode()), Ok(Some(rich())));
        assert_eq!(Acl::decode(&FORM.to_le_bytes()), Ok(None), "an empty one");
        let refused = |bytes: &[u8], errno| assert_eq!(Acl::decode(bytes), Err(errno), "{bytes:?}");
        refused(b"", Errno::EINVAL);
        refused(&[2, 0, 0], Errno::EINVAL);
        refused(&[1, 0, 0, 0], Errno::EOPNOTSUPP);
        refused(&rich().encode()[..30], Errno::EINVAL);
        refused(&[2, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0, 0], Errno::EINVAL);
        refused(&[FORM.to_le_bytes().to_vec(), vec![0; 8 * 5000]].concat(), Errno::EINVAL);
        let unsound: [&[(Whom, u32)]; 7] = [
            &[(OwnGroup, 4), (Others, 4)],
            &[(Owner, 4), (OwnGroup, 4)],
            &[(Owner, 6), (User(1), 6), (OwnGroup, 4), (Others, 4)],
            &[(Owner, 6), (OwnGroup, 4), (Group(1), 6), (Others, 4)],
            &[(Owner, 6), (Owner, 6), (OwnGroup, 4), (Others, 4)],
            &[(Others, 6), (OwnGroup, 4), (Owner, 4)],
            &[(Owner, 8), (OwnGroup, 4), (Mask, 1), (Others, 4)],
        ];
        for entries in unsound {
            refused(&list(entries).encode(), Errno::EINVAL);
        }
    }

    #[test]
    fn modes_and_lists_say_the_same() {
        use Whom::{Others, OwnGroup, Owner};
        let check = |list: Acl, mode: u32, chmod: u32, then: u32| {
            assert_eq!(list.permissions(), mode);
            let changed = list.clone().with_permissions(chmod);
            assert_eq!(changed.permissions(), chmod & 0o777);
            assert_eq!(list.inherited(chmod).permissions(), then);
        };
        check(rich(), 0o761, 0o640, 0o640);
        check(rich(), 0o761, 0o017, 0o001);
        let plain = list(&[(Owner, 6), (OwnGroup, 4), (Others, 0)]);
        assert!(plain.is_plain() && !rich().is_plain());
        check(plain, 0o640, 0o4755, 0o640);
        assert_eq!(rich().with_permissions(0o700).bits(OwnGroup), Some(4), "the mask changed in its place");
    }

    #[test]
    fn one_entry_has_to_allow_it() {
        let check = |uid, groups: &[u32], wish, expect| {
            let found = rich().allows(uid, |gid| groups.contains(&gid), 50, wish);
            assert_eq!(found, expect, "{uid} {groups:?} {wish}");
        };
        check(5, &[], 6, true);
        check(5, &[], 1, false);
        check(9, &[50], 4, true);
        check(9, &[50], 2, false);
        check(9, &[60], 4, true);
        check(9, &[60], 1, false);
        check(9, &[60], 5, false);
        check(9, &[50, 60], 4, true);
        check(9, &[], 1, true);
        check(9, &[], 4, false);
        check(9, &[50], 1, false);
    }
}
