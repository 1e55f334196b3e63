//! Properties that have no field of their own in a row: the number of a device, and a time of access that somebody set.
//!
//! They are kept among the extended attributes, under names that no program can see or use. So they go wherever those go, to
//! the lake and back, and releases that know nothing of them keep them.

use stoker_store::Attributes;

/// Names that begin with this are ours.
const PREFIX: &[u8] = b"system.stoker.";
const DEVICE: &[u8] = b"system.stoker.rdev";
const ACCESSED: &[u8] = b"system.stoker.atime";

/// Whether programs see an extended attribute of this name.
pub(crate) fn is_shown(name: &[u8]) -> bool {
    !name.starts_with(PREFIX)
}

/// The number of a device, as the kernel has it.
pub(crate) fn device(attributes: &Attributes) -> u32 {
    find(attributes, DEVICE).and_then(|value| value.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Gives a device its number.
pub(crate) fn set_device(attributes: &mut Attributes, number: u32) {
    set(attributes, DEVICE, Some(number.to_be_bytes().to_vec()));
}

/// The time of access, if somebody set another one than that of the last change.
pub(crate) fn accessed_ns(attributes: &Attributes) -> Option<i64> {
    find(attributes, ACCESSED)?.try_into().ok().map(i64::from_be_bytes)
}

/// Sets it, or forgets it.
pub(crate) fn set_accessed(attributes: &mut Attributes, at_ns: Option<i64>) {
    set(attributes, ACCESSED, at_ns.map(|at_ns| at_ns.to_be_bytes().to_vec()));
}

/// The time of access as a change of extended attributes.
pub(crate) fn accessed_change(attributes: &Attributes) -> (Vec<u8>, Option<Vec<u8>>) {
    (ACCESSED.to_vec(), find(attributes, ACCESSED).map(<[u8]>::to_vec))
}

fn find<'a>(attributes: &'a Attributes, name: &[u8]) -> Option<&'a [u8]> {
    attributes.xattrs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
}

fn set(attributes: &mut Attributes, name: &[u8], value: Option<Vec<u8>>) {
    attributes.xattrs.retain(|(known, _)| known != name);
    attributes.xattrs.extend(value.map(|value| (name.to_vec(), value)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_found_and_foreign_bytes_are_not() {
        let mut attributes = Attributes::default();
        assert_eq!((device(&attributes), accessed_ns(&attributes)), (0, None));
        set_device(&mut attributes, 0x0102);
        set_accessed(&mut attributes, Some(-5));
        set_accessed(&mut attributes, Some(-7));
        assert_eq!((device(&attributes), accessed_ns(&attributes)), (0x0102, Some(-7)));
        assert!(attributes.xattrs.len() == 2 && attributes.xattrs.iter().all(|(name, _)| !is_shown(name)));
        set_accessed(&mut attributes, None);
        assert_eq!((attributes.xattrs.len(), accessed_ns(&attributes)), (1, None));
        attributes.xattrs = vec![(DEVICE.to_vec(), vec![1]), (ACCESSED.to_vec(), vec![0; 9])];
        assert_eq!((device(&attributes), accessed_ns(&attributes)), (0, None));
        assert!(is_shown(b"user.system.stoker.rdev"));
    }
}
