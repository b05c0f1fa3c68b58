//! A process's cache of the pool's rules, or of the modes of its origin, as they apply in
//! directories.
//!
//! Rules and modes apply to paths, and a directory knows only its own name. Without this cache,
//! each new file would take a request to the home of every directory above it. An entry is valid
//! for one epoch of names, in which the path can't change. The table has [`SLOTS`] entries.

use crate::guarded::Guarded;
use forebay_client::controls::At;
use forebay_store::ObjectId;
use rustix::io::Result;

/// Maximum number of directories that are cached at one time.
const SLOTS: usize = 64;

/// A directory, the epoch in which its path was looked up, and the data known of it.
type Known<A> = (ObjectId, u64, A);

/// The cache; see the module.
pub(crate) struct RuleCache<A = At>(Box<[Guarded<Option<Known<A>>>]>);

impl<A> RuleCache<A> {
    /// An empty cache.
    pub fn new() -> RuleCache<A> {
        RuleCache((0..SLOTS).map(|_| Guarded::default()).collect())
    }

    /// Calls `f` with the rules' data for directory `dir` in this epoch of names: the cached ones,
    /// or else those that `find` returns.
    ///
    /// # Errors
    /// As for `find`.
    pub fn with<T>(
        &self,
        (dir, epoch): (ObjectId, u64),
        find: impl FnOnce() -> Result<A>,
        f: impl FnOnce(&A) -> T,
    ) -> Result<T> {
        let slot = &self.0[dir.0 as usize % SLOTS];
        if let Some((_, _, at)) = slot.hold().as_ref().filter(|k| (k.0, k.1) == (dir, epoch)) {
            return Ok(f(at));
        }
        // The lock isn't held here: finding the path may take requests to peers.
        let at = find()?;
        let result = f(&at);
        *slot.hold() = Some((dir, epoch, at));
        Ok(result)
    }

    /// Empties the cache. Must be called first in a forked child.
    pub fn begin_anew(&self) {
        for slot in &self.0 {
            slot.begin_anew(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_client::controls::Rules;
    use rustix::io::Errno;

    #[test]
    fn it_holds_for_one_directory_and_epoch() {
        let cache = RuleCache::new();
        let rules = Rules::parse("[[rule]]\npath = '/a/*'\nmutability = 'append'", "/fb").unwrap();
        let controls = |key, path: Option<&str>| {
            let find = || path.map(|p| rules.at(p.as_bytes())).ok_or(Errno::NOENT);
            cache.with(key, find, |at| rules.declared_for(at, b"x").to_string())
        };
        let (one, other) = (ObjectId(5), ObjectId(5 + SLOTS as u64));
        assert_eq!(controls((one, 1), None), Err(Errno::NOENT));
        assert_eq!(controls((one, 1), Some("/a")).unwrap(), "mutability=append");
        assert_eq!(controls((one, 1), None).unwrap(), "mutability=append");
        // The directory was renamed, and another directory has the same slot.
        assert_eq!(controls((one, 2), Some("/b")).unwrap(), "");
        assert_eq!(controls((one, 2), None).unwrap(), "");
        assert_eq!(
            controls((other, 2), Some("/a")).unwrap(),
            "mutability=append"
        );
        assert_eq!(controls((one, 2), None), Err(Errno::NOENT));
        cache.begin_anew();
        assert_eq!(controls((other, 2), None), Err(Errno::NOENT));
    }
}
