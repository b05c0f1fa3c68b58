//! The start after exec: the new program takes over the slot that the previous program has filled.

use crate::map;
use crate::pool::{self, working_dir};
use crate::served::{cwd, fd_table, inotify};

/// Takes over the slot that exec handed on, or (`executed` is false) that another instance of this
/// library used in this process. False if the slot isn't this process's, or the pool can't be
/// reached.
pub fn resume_after_exec(slot: u32, executed: bool) -> bool {
    let Ok(fs) = pool::fs() else { return false };
    let own = fs.process();
    if !own.resume(slot, executed) {
        return false;
    }
    let mapped = own.has_mappings();
    if executed {
        // Mappings don't survive exec.
        own.end_mappings();
        if mapped {
            map::sweep(fs);
        }
    } else if mapped {
        map::note_mappings(fs);
    }
    fd_table::drop_closed(fs, true);
    inotify::after_exec(fs);
    let inside = own
        .working_dir()
        .is_some_and(|dir| cwd::is_still_inside(fs, dir));
    if !inside {
        let _ = own.note_working_dir(None);
    }
    working_dir::note(inside);
    true
}
