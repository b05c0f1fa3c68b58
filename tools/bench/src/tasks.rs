//! Selects what a worker does. Its arguments are WORKLOAD DIRECTORY INDEX COUNT PASSES.

use crate::remote::{self, Middle};
use crate::worker::Worker;
use crate::{batches, blocks, costly, files, maps, search, sys, tcp};

pub fn main(arguments: &[String]) -> Result<(), String> {
    let [workload, directory, numbers @ ..] = arguments else {
        return Err("worker: the driver starts this".into());
    };
    let numbers: Vec<usize> = numbers.iter().flat_map(|n| n.parse()).collect();
    let &[index, count, passes] = numbers.as_slice() else {
        return Err("worker: three numbers are wanted".into());
    };
    let worker = Worker {
        directory: directory.clone(),
        index,
        count,
        passes,
    };
    run(workload, &worker).map_err(|e| format!("{workload}: {e}"))
}

fn run(workload: &str, w: &Worker) -> Result<(), String> {
    // Makes only the last component; the driver has made the others. So without an interception, no
    // directory of the pool's prefix is made on the real file system.
    let directory = sys::Name::of(&w.directory)?;
    let bare = ["cost-", "tcp-", "search", "batch-"];
    if !bare.iter().any(|kind| workload.starts_with(kind)) {
        sys::mkdir_shared(&directory)?;
    }
    match workload {
        "make" | "fill" | "list" => {
            return match workload {
                "make" => w.start().and_then(|start| w.done(start, 1)),
                "fill" => files::fill(w),
                _ => files::list(w),
            };
        }
        "create" => files::create(w),
        "create-unlink" => files::create_unlink(w),
        "stat" => files::stat(w),
        "open-close" => files::open_close(w),
        "unlink" => files::unlink(w),
        "small-write" => files::small_write(w),
        "small-read" => files::small_read(w),
        "mkdir-rmdir" => files::mkdir_rmdir(w),
        "rename" => files::rename(w),
        "append" => files::append(w),
        "seq-write-4k" => blocks::sequential_write(w, 4096),
        "seq-read-4k" => blocks::sequential_read(w, 4096),
        "rand-write-4k" => blocks::random(w, 4096, true),
        "rand-read-4k" => blocks::random(w, 4096, false),
        "fresh-1m" => blocks::sequential_write(w, crate::workloads::MIB),
        "overwrite-1m" => blocks::over(w, crate::workloads::MIB, true),
        "read-1m" => blocks::over(w, crate::workloads::MIB, false),
        "map-read" => maps::read(w),
        "map-fresh" => maps::fresh(w),
        "map-grow" => maps::grow(w),
        "search-make" => return search::make(w),
        "search" => return search::search(w),
        "batch-one" => return batches::one(w),
        "batch-all" => return batches::all(w),
        "batch-one-gone" => return batches::one_gone(w),
        "batch-all-gone" => return batches::all_gone(w),
        "cost-spawn" => return costly::spawn(w),
        "cost-script" => return costly::script(w),
        "cost-open" => return costly::open_read_close(w),
        "cost-pread" => return costly::pread(w),
        "cost-stat" => return costly::stat(w),
        "stat-next" => files::stat_next(w),
        "remote-content" => return remote::content(w),
        "remote-stat" => return remote::stat(w, Middle::Half),
        "remote-fstat" => return remote::fstat(w),
        "remote-create" => return remote::create(w, Middle::Half),
        "remote-open-close" => return remote::open_close(w),
        "remote-read" => return remote::block(w, false),
        "remote-write" => return remote::block(w, true),
        "remote-small-write" => return remote::small_write(w),
        "remote-small-read" => return remote::small_read(w),
        "remote-get" => return remote::transfers(w, false),
        "remote-get-rest" => return remote::rest(w),
        "remote-put" => return remote::transfers(w, true),
        "copy-range" => return remote::copies(w, false),
        "copy-through" => return remote::copies(w, true),
        "spread-stat" => return remote::stat(w, Middle::Half),
        "spread-create" => return remote::create(w, Middle::OfThreeQuarters),
        "tcp-message" => return tcp::ping(w, 0, 0),
        "tcp-read" => return tcp::ping(w, 0, remote::BLOCK),
        "tcp-write" => return tcp::ping(w, remote::BLOCK, 0),
        "tcp-get" => return tcp::transfers(w, false, false),
        "tcp-put" => return tcp::transfers(w, true, false),
        "tcp-get-answered" => return tcp::transfers(w, false, true),
        "tcp-put-answered" => return tcp::transfers(w, true, true),
        "cost-getppid" => return costly::getppid(w),
        _ => return Err("there is no such workload".into()),
    }?;
    // The last worker's call succeeds. For the others, the directory isn't empty, or is removed
    // already.
    let _ = sys::rmdir(&directory);
    Ok(())
}
