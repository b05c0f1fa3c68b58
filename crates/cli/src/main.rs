//! `forebay`, the command line: pools on this node, staging, and programs in pools.
//!
//! Every command is a few calls to the crates below this one, and messages. Messages for people go
//! to stderr, data to stdout. Every error is one line, `forebay: what, where; what to do`, with an
//! exit code for scripts (see [`fail::code`]).

mod accounting;
mod addresses;
mod args;
mod background;
mod campaign;
mod campaign_args;
mod campaignd;
mod capacity;
mod clean;
mod collection_args;
mod collections;
mod color;
mod completions;
mod couriers;
mod cwd;
mod doctor;
mod down;
mod exec;
mod fail;
mod file_args;
mod files;
mod flow;
mod flow_args;
mod foresight;
mod found;
mod fsck;
mod guard;
mod help;
mod keeper;
mod launched;
mod lifetime;
mod metrics;
mod mount;
mod mount_copies;
mod mount_helper;
mod mount_users;
mod mover;
mod mpi;
mod node_command;
mod node_status;
mod nodes;
mod origin;
mod origin_args;
mod output;
mod paths;
mod peers;
mod pmi;
mod pool_args;
mod prefix;
mod programs;
mod report;
mod rule_file;
mod rules;
mod run;
mod set;
mod signals;
mod site;
mod slow;
mod stage;
mod stage_command;
mod stats;
mod status;
mod survey;
mod tables;
mod top;
mod trace;
mod trace_args;
mod up;
mod version;
mod violations;

use args::{Cli, Command};
use fail::{Fail, code};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

/// The system's allocator; in the server of a mount, it falls back to a reserve.
#[global_allocator]
static ALLOCATOR: forebay_fuse::Allocator = forebay_fuse::Allocator;

fn main() -> ExitCode {
    forebay_runtime::defect::report();
    without_preload();
    survive_file_size_limit();
    // Except in commands that have work to finish, SIGPIPE below ends this process silently when
    // the reader of its output closes the pipe.
    let words = match mount_helper::translated(std::env::args_os().collect()) {
        Ok(Some(words)) => words,
        Ok(None) => return ExitCode::SUCCESS,
        Err(fail) => {
            fail.print();
            return ExitCode::from(fail.code);
        }
    };
    let cli = help::parse(file_args::with_hyphens(words));
    fail::set_quiet(cli.quiet);
    color::choose(cli.color);
    if !matches!(
        cli.command,
        Command::Up(_)
            | Command::Run(_)
            | Command::Stage(_)
            | Command::Collection(_)
            | Command::Campaign(_)
            | Command::Campaignd(_)
            | Command::Flow(_)
            | Command::Keeper { .. }
            | Command::Mover { .. }
            | Command::Reach { .. }
    ) {
        // SAFETY: no thread runs yet; SIG_DFL is a valid disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match execute(cli) {
        Ok(status) => ExitCode::from(status),
        Err(fail) => {
            fail.print();
            ExitCode::from(fail.code)
        }
    }
}

fn execute(cli: Cli) -> Result<u8, Fail> {
    let given = cli.pool.clone();
    // Commands that inspect a pool, repair it, or save its data work even when programs have used
    // up its tables.
    if matches!(
        cli.command,
        Command::Status(_)
            | Command::Stats(_)
            | Command::Top(_)
            | Command::Report(_)
            | Command::Trace(_)
            | Command::Df(_)
            | Command::Down(_)
            | Command::Fsck(_)
            | Command::Stage(_)
            | Command::Origin(_)
            | Command::Mover { .. }
            | Command::Node(_)
    ) {
        forebay_store::process::use_reserve();
    }
    let pool = cli.pool();
    match cli.command {
        Command::Up(mut a) => {
            if !a.reopen {
                site::complete(&mut a.media, &mut a.nodes)?;
            }
            if a.nodes.mpi {
                mpi::up(&pool, &a)
            } else {
                up::up(&pool, &a)
            }
        }
        Command::Down(a) => down::down(&pool, &a),
        Command::Run(mut a) => {
            site::complete(&mut a.media, &mut a.nodes)?;
            run::run(given.as_deref(), &a)
        }
        Command::Exec(a) => exec::exec(&pool, &a),
        Command::Workspace(a) => collections::workspace(&pool, &a),
        Command::Collection(a) => collections::collection(&pool, &a),
        Command::Campaign(a) => campaign::campaign(a),
        Command::Campaignd(a) => campaignd::daemon(&a),
        Command::Flow(a) => flow::flow(a),
        Command::Stage(a) => stage_command::stage(&pool, &a),
        Command::Origin(a) => origin::origin(&pool, &a),
        Command::Ls(a) => files::ls(&pool, &a),
        Command::Find(a) => files::find(&pool, &a),
        Command::Set(a) => set::set(&pool, &a),
        Command::Rules(a) => rules::rules(&pool, &a.what),
        Command::Trace(a) => trace::trace(&pool, &a),
        Command::Report(a) => report::report(&pool, &a),
        Command::Stats(a) => stats::stats(&pool, &a),
        Command::Top(a) => top::top(&pool, &a),
        Command::Violations(a) => violations::list(&pool, &a),
        Command::Mount(a) => mount::mount(&pool, &a),
        Command::Umount(a) => mount::umount(&a),
        Command::Df(a) => status::df(&pool, &a),
        Command::Status(a) => status::status(&pool, a.json, a.all),
        Command::Fsck(a) => fsck::fsck(&pool, &a),
        Command::Pools(a) if a.clean => clean::clean(&a),
        Command::Pools(a) => status::pools(a.json),
        Command::Node(a) => node_command::drill(&pool, a.what),
        Command::Doctor(a) => doctor::doctor(&a),
        Command::Version(a) => version::version(a.json),
        Command::Completions { shell } => completions::completions(shell),
        Command::Man { dir } => completions::man(&dir),
        Command::Keeper { dir: Some(dir), .. } => keeper::main(&dir),
        Command::Keeper { dir: None, .. } => launched::main(),
        Command::Reach { node } => mpi::reach(node),
        Command::Mover { node } => mover::main(&pool, node),
    }
}

/// Makes writing beyond the limit of file sizes fail with EFBIG instead of ending this process
/// silently. Installs a handler, since programs would inherit SIG_IGN.
fn survive_file_size_limit() {
    extern "C" fn nothing(_: i32) {}
    let handler: extern "C" fn(i32) = nothing;
    // SAFETY: no thread runs yet; the handler does nothing, and SA_RESTART restarts the calls that
    // it interrupts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &mut action);
        if action.sa_sigaction == libc::SIG_DFL {
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGXFSZ, &action, std::ptr::null_mut());
        }
    }
}

/// Restarts this process without the preloaded library, if a program inside a pool has started it:
/// this process would open the pool twice, through the library and directly.
fn without_preload() {
    const MARK: &str = "FOREBAY_CLI_BARE";
    let Some(list) = std::env::var_os("LD_PRELOAD") else {
        return;
    };
    let others: Vec<&[u8]> = list
        .as_bytes()
        .split(|&b| b == b':' || b == b' ')
        .filter(|p| !p.is_empty() && !exec::is_our_library(p))
        .collect();
    if others.join(&b':').len() == list.len() || std::env::var_os(MARK).is_some() {
        return;
    }
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1)).env(MARK, "1");
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    if others.is_empty() {
        command.env_remove("LD_PRELOAD");
    } else {
        use std::os::unix::ffi::OsStringExt;
        command.env("LD_PRELOAD", OsString::from_vec(others.join(&b':')));
    }
    let error = command.exec();
    Fail::new(
        code::FAILED,
        format!("can't start without the preloaded library: {error}"),
    )
    .print();
    std::process::exit(code::FAILED.into());
}
