//! How full the tables of the control region are: for reports.

use crate::control_region::{Control, FreeList, MAX_FILE_LOCKS, MAX_LIVE, MAX_OPEN};
use std::sync::atomic::Ordering::*;

/// A table of the control region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The contents of the table, for messages to users.
    pub name: &'static str,
    /// Number of entries in use at the moment of the call.
    pub used: u32,
    /// Number of entries for which the table has room: see [`crate::Limits`].
    pub limit: u32,
    /// Number of times that a process needed another entry and got `error`.
    pub refused: u32,
    pub error: &'static str,
}

impl Table {
    fn of(list: &FreeList, name: &'static str, error: &'static str, used: usize) -> Table {
        Table {
            name,
            used: used as u32,
            limit: list.limit(),
            refused: list.refused(),
            error,
        }
    }

    /// A sentence for the user if any process was refused an entry; None if none was.
    pub fn complaint(&self) -> Option<String> {
        (self.refused > 0).then(|| {
            format!(
                "this node has room for {} {} at a time: more were asked for {} times, and refused ({}); \
                 the number goes by the cores of the machine on which the pool is made",
                self.limit, self.name, self.refused, self.error
            )
        })
    }
}

/// The tables that all processes of this node share.
pub fn all(control: &Control) -> [Table; 3] {
    let c = control;
    let h = c.header();
    let opens = (0..h.free_open.end(MAX_OPEN))
        .filter(|&i| c.open_file(i).refs.load(Relaxed) > 0)
        .count();
    let lives = (0..h.free_live.end(MAX_LIVE))
        .filter(|&i| c.live(i).id.load(Relaxed) != 0)
        .count();
    let locks = (0..h.free_locks.end(MAX_FILE_LOCKS))
        .filter(|&i| c.file_lock(i).object.load(Relaxed) != 0)
        .count();
    [
        Table::of(&h.free_open, "opened files", "ENFILE", opens),
        Table::of(&h.free_live, "different open files", "ENFILE", lives),
        Table::of(&h.free_locks, "locks on files", "ENOLCK", locks),
    ]
}

/// The number of refusals for want of an entry in a table, since the region was made.
pub fn refusals(control: &Control) -> u32 {
    let h = control.header();
    let lists = [&h.free_open, &h.free_live, &h.free_locks];
    lists
        .iter()
        .fold(0, |sum: u32, list| sum.wrapping_add(list.refused()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::ObjectId;
    use crate::control_region::MAX_FDS;
    use crate::repair::tests::{make, store};
    use rustix::io::Errno;

    #[test]
    fn high_descriptor_numbers_have_places() {
        let s = store("tables-fds");
        let id = make(&s, "f");
        let live = s.objects().live_acquire_here(id).unwrap().0;
        let root = ObjectId::ROOT;
        let open = s.objects().open_create(
            &crate::NewOpen::new(id, libc::S_IFREG, 0).named(root, b"f"),
            Some(live),
        );
        let open = open.unwrap();
        for fd in [70_000, MAX_FDS as i32 - 1] {
            s.objects().open_retain(open).unwrap();
            assert_eq!(s.objects().fd_set(fd, Some(open)), Ok(None));
            assert_eq!(s.objects().fd_get(fd), Some(open));
        }
        assert_eq!(crate::tables::all(&s.control)[0].used, 1);
        assert_eq!(
            s.objects().fd_set(MAX_FDS as i32, Some(open)),
            Err(Errno::MFILE)
        );
        for fd in [70_000, MAX_FDS as i32 - 1] {
            assert_eq!(s.objects().fd_set(fd, None), Ok(Some(open)));
            s.objects().open_release(open).unwrap();
        }
        s.objects().open_release(open).unwrap();
        assert_eq!(
            (
                crate::tables::all(&s.control)[0].used,
                crate::tables::all(&s.control)[0].refused
            ),
            (0, 0)
        );
        assert_eq!(crate::tables::all(&s.control)[0].complaint(), None);
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
    }
}
