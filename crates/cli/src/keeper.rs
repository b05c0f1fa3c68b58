//! The keeper: the background process of a pool. This module starts it and runs it.

use crate::addresses;
use crate::background;
use crate::fail::Fail;
use crate::lifetime;
use crate::output::print_notice;
use forebay_client::{Pool, PoolConfig};
use forebay_pool::Limits;
use forebay_pool::launch::{Plan, Running};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Starts the keeper of the pool in `dir`; returns when it is ready.
pub fn start(dir: &Path) -> Result<(), Fail> {
    let mut command = background::command();
    command.args(["keeper", "--dir"]).arg(dir);
    background::start(command, &dir.join("keeper.log"), "the pool's keeper")
}

/// Runs `forebay keeper` until the pool is removed.
pub fn main(dir: &Path) -> Result<u8, Fail> {
    // Makes this process lead a session of its own, so that no terminal ends it. Fails if it leads
    // one already.
    let _ = rustix::process::setsid();
    let term = hold_term();
    background::close_inherited();
    prepare_process();
    let ready = |pool: &Arc<Pool>| {
        if let Err(e) = forebay_origin::start(pool) {
            print_notice(&e);
            std::process::exit(1);
        }
        lifetime::watch(pool);
        crate::metrics::serve(pool);
        let of_job = Plan::read(dir).is_ok_and(|plan| plan.of_job);
        save_on_term(
            term,
            Arc::new(OnceLock::from(pool.clone())),
            on_term(of_job),
        );
        background::is_ready();
    };
    if let Ok(plan) = Plan::read(dir) {
        spare_memory(&plan.limits);
    }
    let member = PoolConfig::read(dir).is_ok_and(|c| c.member.is_some());
    let ended = if member {
        Running::again(dir, &addresses::own()).and_then(|running| {
            ready(running.pool());
            running.run()
        })
    } else {
        forebay_client::run_keeper(dir, ready)
    };
    ended.map_err(|e| {
        print_notice(&e);
        Fail::failed("")
    })?;
    Ok(0)
}

/// OOM score adjustment of keepers and daemons, where they may lower it. Killing one frees none of
/// the pool's shared memory, and stops the node.
const OOM_SCORE_ADJ: i32 = -500;

/// Prepares the process of a keeper or daemon. The process serves many others, so it raises its
/// limits of open files and of file sizes to the hard ones, and lowers its OOM score.
pub fn prepare_process() {
    use rustix::process::Resource;
    for (limit, what) in [
        (Resource::Nofile, "open files"),
        (Resource::Fsize, "file sizes"),
    ] {
        if let Err(e) = raise(limit) {
            print_notice(format!("keeper: can't raise its limit of {what}: {e}"));
        }
    }
    let before = std::fs::read_to_string("/proc/self/oom_score_adj");
    let before: Option<i32> = before.ok().and_then(|text| text.trim().parse().ok());
    if before.is_some_and(|before| before > OOM_SCORE_ADJ) {
        // Without the permission to lower the score, it stays as it is.
        let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ.to_string());
    }
}

/// Raises a soft limit to the hard one.
pub fn raise(limit: rustix::process::Resource) -> rustix::io::Result<()> {
    use rustix::process::{Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(limit).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(limit, all)
}

/// If the daemon's own memory is limited, makes the allocator return free memory at once, and keep
/// little for each thread.
pub fn spare_memory(limits: &Limits) {
    if limits.memory.is_some() {
        // SAFETY: the calls only change settings of the allocator.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 2);
            libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 10);
        }
    }
}

/// Blocks SIGTERM, which a host sends to all processes when it shuts down. A thread waits for the
/// signal ([`save_on_term`]). Unblocks all other signals: `forebay run` starts keepers with some
/// blocked. Returns the set with SIGTERM.
pub fn hold_term() -> libc::sigset_t {
    // SAFETY: the calls change a local set and this thread's mask.
    unsafe {
        let mut term: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut term);
        libc::sigaddset(&mut term, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_SETMASK, &term, std::ptr::null_mut());
        term
    }
}

/// Environment variables that mark a job of a scheduler: Slurm, PBS, LSF, Flux. To end a job, the
/// schedulers send SIGTERM to all of its processes at once, and SIGKILL some time later.
const JOBS: [&str; 4] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"];

/// Whether this process belongs to a batch job.
pub fn is_in_job() -> bool {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    JOBS.iter().any(is_set)
}

/// Returns the effect of SIGTERM: in a batch job, daemons stay. `of_job`: whether the process that
/// started the pool was in a job. A remote shell may not pass the job's variables to this process.
pub fn on_term(of_job: bool) -> OnTerm {
    if of_job || is_in_job() {
        OnTerm::Stays
    } else {
        OnTerm::Ends
    }
}

/// The effect of SIGTERM besides saving the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnTerm {
    Ends,
    /// The process continues: in a batch job that is being ended, files can be copied out of the
    /// pool until the processes are killed.
    Stays,
}

/// Starts a thread that waits for SIGTERM. The signal makes it save the process's pool, if one is
/// set by then, to stable storage, and end the process, unless `then` is [`OnTerm::Stays`].
pub fn save_on_term(term: libc::sigset_t, pool: Arc<OnceLock<Arc<Pool>>>, then: OnTerm) {
    let _ = std::thread::Builder::new().spawn(move || {
        loop {
            let mut signal = 0;
            // SAFETY: both pointers are valid; the signal is blocked in all threads.
            while unsafe { libc::sigwait(&term, &mut signal) } != 0 {}
            let Some(pool) = pool.get() else {
                std::process::exit(128 + libc::SIGTERM);
            };
            if let Err(e) = pool.store().durability().sync_all() {
                print_notice(format!("keeper: can't save the pool: {e}"));
            }
            if then == OnTerm::Ends {
                // Not `detach`: other threads may be in the middle of an operation.
                let _ = pool.store().recovery().end();
                std::process::exit(0);
            }
            print_notice(
                "keeper: the job is being ended; the pool is there until this process is killed",
            );
        }
    });
}
