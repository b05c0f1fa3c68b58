//! After exec: the new program takes over the slot that the one before has filled.

use crate::{cwd, fd_table, inotify, map, pool, working_dir};
use forebay_store::process as slots;
use std::sync::atomic::Ordering::*;

/// Takes over the slot that exec handed on, or that was used so far in this process
/// (`executed` is false then). False if it isn't this process's, or the pool is out of reach.
pub fn resume_after_exec(slot: u32, executed: bool) -> bool {
    let Ok(fs) = pool::fs() else { return false };
    let store = fs.store();
    if slot as usize >= forebay_store::control::MAX_PROCESSES
        || !slots::is_mine(store.control(), slot)
    {
        // Left in the environment by another process.
        return false;
    }
    let taken = match executed {
        true => store.resume(slot),
        false => store.adopt(slot),
    };
    if taken.is_err() {
        return false;
    }
    let Ok(area) = store.area() else { return false };
    if executed {
        // Mappings don't survive exec.
        let any = store.maps_end() > 0;
        let _ = store.end_mappings();
        if any {
            map::sweep(fs);
        }
    } else if store.maps_end() > 0 {
        map::note_mappings(fs);
    }
    fd_table::drop_strangers(fs, true);
    inotify::after_exec(fs);
    let id = area.cwd.load(Acquire);
    let inside = id != 0 && cwd::is_still_inside(fs, id);
    if !inside {
        area.cwd.store(0, Release);
    }
    working_dir::note(inside);
    true
}
