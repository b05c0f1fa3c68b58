//! Translation of user and group ids for processes in another user namespace than the pool's.
//!
//! Inodes have ids of the namespace in which the pool was started. A process in another one
//! (`unshare -r`, rootless containers) has its own numbers for the same users: an [`IdMap`]
//! translates between them, as the kernel does for its file systems. Ids of the pool that have no
//! number in the process's namespace are shown as [`OVERFLOW`]. Numbers of the process that
//! correspond to no id of the pool are treated as [`NO_ID`].
//!
//! The kernel tells a process the map between its namespace and that namespace's parent. If further
//! namespaces lie between the process's and the pool's, only the pool's owner can be translated:
//! the owner's number is the one that the process sees as the owner of the pool's directory.

use forebay_client::Pool;
use forebay_store::process::thread_ids::{INITIAL_USER_NAMESPACE, user_namespace};
use rustix::fs::{Access, AtFlags, CWD, accessat, stat};
use std::sync::atomic::Ordering::Relaxed;

/// The id that the kernel shows for ids that have no number in a namespace.
pub const OVERFLOW: u32 = 65_534;
/// An id that no user has: the id owns nothing, and no object can be made for it.
pub const NO_ID: u32 = u32::MAX;

/// A run of consecutive numbers of the process, and the ids of the pool to which they correspond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    own: u32,
    pool: u32,
    count: u32,
}

impl Range {
    fn other_way(self) -> Range {
        Range {
            own: self.pool,
            pool: self.own,
            count: self.count,
        }
    }

    /// The pool's id for the process's number `own`.
    fn pool_of(&self, own: u32) -> Option<u32> {
        let n = own.checked_sub(self.own).filter(|&n| n < self.count)?;
        self.pool.checked_add(n)
    }
}

/// Reads a `uid_map` or `gid_map`.
fn parse(text: &str) -> Vec<Range> {
    let range = |line: &str| {
        let numbers = line.split_ascii_whitespace().map(|n| n.parse().ok());
        match numbers.collect::<Option<Vec<u32>>>()?[..] {
            [own, pool, count] => Some(Range { own, pool, count }),
            _ => None,
        }
    };
    text.lines().filter_map(range).collect()
}

/// Map between a process's ids and the pool's; see the module.
#[derive(Debug)]
pub(crate) struct IdMap {
    users: Vec<Range>,
    groups: Vec<Range>,
    /// The ids of the pool's owner (user, group), if this process has the owner's rights but no
    /// number for the owner.
    as_owner: Option<(u32, u32)>,
}

impl IdMap {
    /// The map of this process. None if the process's ids are those of the pool, or if the map
    /// can't be read (without /proc).
    pub fn of_process(pool: &Pool) -> Option<IdMap> {
        let header = pool.store().control().header();
        let (mine, pools) = (user_namespace()?, header.user_namespace.load(Relaxed));
        if pools == 0 || pools == mine {
            return None;
        }
        let owner = (header.owner.load(Relaxed), header.owner_group.load(Relaxed));
        let seen = stat(pool.dir()).ok().map(|s| (s.st_uid, s.st_gid));
        let beneath = || read("self", |range| range);
        let above = || {
            let keeper = pool.keeper_pid()?;
            Some(read(&keeper.to_string(), Range::other_way))
        };
        // The right map shows the pool's owner as the kernel does.
        let fits = |map: &IdMap| seen.is_some_and(|(user, _)| map.shown_user(owner.0) == user);
        let found = if mine == INITIAL_USER_NAMESPACE {
            above().filter(fits)
        } else {
            Some(beneath())
                .filter(fits)
                .or_else(|| above().filter(fits))
        };
        let mut map = found.unwrap_or_else(|| {
            let one = |own, pool| match own {
                OVERFLOW => vec![],
                own => vec![Range {
                    own,
                    pool,
                    count: 1,
                }],
            };
            let (user, group) = seen.unwrap_or((OVERFLOW, OVERFLOW));
            IdMap {
                users: one(user, owner.0),
                groups: one(group, owner.1),
                as_owner: None,
            }
        });
        // Only the owner of the pool's directory may list it, and capabilities don't apply to ids
        // that aren't mapped. So a process that may list the directory runs as its owner.
        let may = accessat(CWD, pool.dir(), Access::READ_OK, AtFlags::EACCESS).is_ok();
        map.as_owner = (may && map.shown_user(owner.0) == OVERFLOW).then_some(owner);
        Some(map)
    }

    /// Whether the id maps of the user namespace have been written.
    pub fn is_settled(&self) -> bool {
        !self.users.is_empty() && !self.groups.is_empty()
    }

    /// The pool's user for the process's number `own`.
    pub fn user(&self, own: u32) -> Option<u32> {
        self.users.iter().find_map(|range| range.pool_of(own))
    }

    /// The pool's group for the process's number `own`.
    pub fn group(&self, own: u32) -> Option<u32> {
        self.groups.iter().find_map(|range| range.pool_of(own))
    }

    /// The pool's user as which a thread with the user id `own` acts; [`NO_ID`] if there is none.
    pub fn acting_user(&self, own: u32) -> u32 {
        let owner = self.as_owner.map(|(user, _)| user);
        self.user(own).or(owner).unwrap_or(NO_ID)
    }

    /// The pool's group as which a thread with the group id `own` acts; [`NO_ID`] if there is none.
    pub fn acting_group(&self, own: u32) -> u32 {
        let owner = self.as_owner.map(|(_, group)| group);
        self.group(own).or(owner).unwrap_or(NO_ID)
    }

    /// The process's number for a user of the pool, or [`OVERFLOW`].
    pub fn shown_user(&self, id: u32) -> u32 {
        shown(&self.users, id).unwrap_or(OVERFLOW)
    }

    /// The process's number for a group of the pool, or [`OVERFLOW`].
    pub fn shown_group(&self, id: u32) -> u32 {
        shown(&self.groups, id).unwrap_or(OVERFLOW)
    }

    /// Whether a user of the pool has a number in the process's namespace.
    pub fn has_user(&self, id: u32) -> bool {
        shown(&self.users, id).is_some()
    }

    /// Whether a group of the pool has a number in the process's namespace.
    pub fn has_group(&self, id: u32) -> bool {
        shown(&self.groups, id).is_some()
    }
}

fn shown(ranges: &[Range], id: u32) -> Option<u32> {
    ranges.iter().find_map(|r| r.other_way().pool_of(id))
}

/// Reads the id maps of `process` (its id, or `self`). `way` translates each range.
fn read(process: &str, way: fn(Range) -> Range) -> IdMap {
    let of = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default();
        parse(&text).into_iter().map(way).collect()
    };
    IdMap {
        users: of("uid_map"),
        groups: of("gid_map"),
        as_owner: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(users: &str, groups: &str) -> IdMap {
        IdMap {
            users: parse(users),
            groups: parse(groups),
            as_owner: None,
        }
    }

    #[test]
    fn ids_go_there_and_back() {
        // The map of a rootless container, with ids from /etc/subuid.
        let m = map("0 1000 1\n1 100000 65536\n", "0 1000 1\n1 100000 65536\n");
        assert_eq!((m.user(0), m.shown_user(1000)), (Some(1000), 0));
        assert_eq!((m.user(77), m.shown_user(100_076)), (Some(100_076), 77));
        assert_eq!(m.user(65_537), None);
        assert_eq!(m.shown_user(0), OVERFLOW);
        assert_eq!(m.shown_group(1001), OVERFLOW);
        assert!(m.has_user(1000) && !m.has_user(0) && m.is_settled());
    }

    #[test]
    fn a_map_of_nothing_or_of_rubbish_has_no_ids() {
        for text in ["", "x", "0 1", "0 4294967295 4294967295 1", "-1 0 1"] {
            let m = map(text, text);
            assert_eq!((m.user(0), m.acting_user(0)), (None, NO_ID), "{text:?}");
            assert_eq!(m.shown_user(1000), OVERFLOW);
        }
        assert!(!map("", "0 0 1").is_settled());
        let mut owned = map("", "");
        owned.as_owner = Some((1000, 100));
        assert_eq!(
            (owned.acting_user(OVERFLOW), owned.acting_group(OVERFLOW)),
            (1000, 100)
        );
    }

    #[test]
    fn the_greatest_ids_are_no_overflow() {
        let m = map("0 0 4294967295\n", "0 4294967290 100\n");
        assert_eq!(m.user(4_294_967_294), Some(4_294_967_294));
        assert_eq!(m.user(NO_ID), None);
        assert_eq!(m.group(5), Some(NO_ID));
        assert_eq!(m.group(6), None);
    }
}
