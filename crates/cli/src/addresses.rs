//! Lists the addresses of this host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the addresses of all interfaces that are up, without link-local ones: those are valid
/// only together with an interface.
pub fn own() -> Vec<IpAddr> {
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is a local variable that the call sets.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: `next` is null or an entry of the list, which isn't freed yet.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the list isn't freed yet, and each address has the size of its family's type.
        let address: Option<IpAddr> = unsafe {
            match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let a = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    Some(Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr)).into())
                }
                libc::AF_INET6 => {
                    let a = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    Some(Ipv6Addr::from(a.sin6_addr.s6_addr).into())
                }
                _ => None,
            }
        };
        let meant = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        };
        found.extend(address.filter(meant));
    }
    // SAFETY: the list comes from getifaddrs and is freed once.
    unsafe { libc::freeifaddrs(list) };
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn loopback_is_among_them() {
        assert!(super::own().contains(&std::net::Ipv4Addr::LOCALHOST.into()));
    }
}
