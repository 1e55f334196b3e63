//! Addresses of this machine, with the interfaces that they are on.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that are told; a node with very many containers has some thousands.
const ADDRESSES_MAX: usize = 65_536;

/// Every address with the name of its interface, those of the loopback left out.
pub fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes the head of a list to `first`, which is ours until `freeifaddrs`.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut all, mut next) = (Vec::new(), first);
    while !next.is_null() && all.len() < ADDRESSES_MAX {
        // SAFETY: an element of the list, which lives until it is freed below and which nobody changes.
        let one = unsafe { &*next };
        next = one.ifa_next;
        if one.ifa_flags & libc::IFF_LOOPBACK as libc::c_uint != 0 {
            continue;
        }
        // SAFETY: the name is a string with an end, and the address is null or a socket address of its family.
        let (name, address) = unsafe { (CStr::from_ptr(one.ifa_name), address(one.ifa_addr)) };
        let name = name.to_string_lossy();
        // A second address may have a label, which is the name of the interface with something behind it.
        let name = name.split(':').next().unwrap_or_default();
        all.extend(address.map(|address| (name.to_owned(), address)));
    }
    // SAFETY: the list came from `getifaddrs`, and what was taken from it was copied.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

/// # Safety
/// The pointer is null, or points to a socket address that is as long as its family says.
unsafe fn address(from: *const libc::sockaddr) -> Option<IpAddr> {
    if from.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family; the caller says that the rest is there. They may lie unaligned.
    unsafe {
        match i32::from((&raw const (*from).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = from.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = from.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    /// What the machine has is not known; what it says has to make sense.
    #[test]
    fn addresses_have_interfaces() {
        for (name, address) in super::addresses().unwrap() {
            assert!(
                !name.is_empty() && !address.is_loopback() && !address.is_unspecified(),
                "{name} {address}"
            );
        }
    }
}
