//! The programs that `forebay exec` and `run` have started, as users of their pool from the start:
//! a program attaches to the pool only when it first touches it.
//!
//! `programs/PID` in the directory of the pool, or node, names a process: its id and start time in
//! one word, so that a later process with the same id isn't taken for it. Nothing tells when a
//! program ends. Whoever looks next removes its file.

use forebay_client::Pool;
use forebay_runtime::process::{runs, word_running};
use std::path::PathBuf;

fn dir_of(pool: &Pool) -> PathBuf {
    pool.dir().join("programs")
}

/// Makes the process `pid` count as a user of the pool until it ends. Without room for the file,
/// it counts from its first use of the pool on.
pub fn begin(pool: &Pool, pid: u32) {
    // Removes files of ended programs, so that their number stays bounded.
    running(pool);
    let dir = dir_of(pool);
    let _ = std::fs::create_dir(&dir);
    if let Some(word) = word_running(pid) {
        let _ = std::fs::write(dir.join(pid.to_string()), word.to_string());
    }
}

/// Returns the process ids of those programs that run, without this process.
pub fn running(pool: &Pool) -> Vec<u32> {
    let entries = std::fs::read_dir(dir_of(pool)).into_iter().flatten();
    let program = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        // A file that was just made may still be empty.
        let word = std::fs::read_to_string(entry.path()).ok()?.parse().ok();
        if word.or_else(|| word_running(pid)).is_some_and(runs) {
            return (pid != std::process::id()).then_some(pid);
        }
        let _ = std::fs::remove_file(entry.path());
        None
    };
    entries.flatten().filter_map(program).collect()
}
