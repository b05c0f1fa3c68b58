//! Names that the kernel has looked up recently.
//!
//! The kernel sets attributes by node number. To make an object findable by an extended attribute,
//! the store needs one of the object's names, and searching for a name takes long. In most cases
//! the kernel has just looked the object up, or created it.

use forebay_posix::ObjectId;
use forebay_runtime::threads::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// Minimum number of names kept; at most twice as many are kept. A name that was looked up long ago
/// may be missing.
const MIN_NAMES: usize = 1 << 15;

/// An object's directory, and its name in that directory.
type Name = (ObjectId, Vec<u8>);

/// Recently used names by node number.
#[derive(Default)]
pub struct Known(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<u64, Name>,
    old: HashMap<u64, Name>,
}

impl Known {
    /// Records a name.
    pub fn note(&self, node: u64, dir: ObjectId, name: &[u8]) {
        let mut all = lock(&self.0);
        if all.young.len() >= MIN_NAMES {
            all.old = std::mem::take(&mut all.young);
        }
        all.young.insert(node, (dir, name.to_vec()));
    }

    /// Returns a recorded name of the object, if there is one.
    pub fn name(&self, node: u64) -> Option<Name> {
        let all = lock(&self.0);
        all.young.get(&node).or_else(|| all.old.get(&node)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_names_are_kept() {
        let known = Known::default();
        for n in 0..10 * MIN_NAMES as u64 {
            known.note(n, ObjectId::ROOT, format!("{n}").as_bytes());
            let young = n.saturating_sub(MIN_NAMES as u64 - 1);
            assert_eq!(known.name(young).unwrap().1, format!("{young}").as_bytes());
        }
        assert_eq!(known.name(0), None);
        let all = known.0.lock().unwrap();
        assert!(all.young.len() + all.old.len() <= 2 * MIN_NAMES);
    }
}
