//! `forebay exec`, and how a program gets access to a pool: by the preloaded library, and by
//! variables that name the pool.

use crate::args::Exec;
use crate::fail::{self, Fail, code};
use crate::found::{absolute_dir, open};
use crate::{cwd, mount, paths, programs};
use forebay_client::Pool;
use forebay_posix::Fs;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const LIBRARY: &str = "libforebay_preload.so";

/// Whether an entry of LD_PRELOAD is Forebay's library.
pub fn is_our_library(entry: &[u8]) -> bool {
    entry.rsplit(|&b| b == b'/').next() == Some(LIBRARY.as_bytes())
}

/// Returns the path of the preloaded library.
pub fn library() -> Result<PathBuf, Fail> {
    let found = if let Some(given) = std::env::var_os("FOREBAY_PRELOAD").filter(|p| !p.is_empty()) {
        let given = PathBuf::from(given);
        if !given.is_file() {
            return Err(Fail::failed(format!(
                "FOREBAY_PRELOAD names {}, which is no file; unset it or correct it",
                given.display()
            )));
        }
        std::path::absolute(&given).unwrap_or(given)
    } else {
        let executable = std::env::current_exe()
            .map_err(|e| Fail::failed(format!("can't find the path of this program: {e}")))?;
        let dir = executable.parent().unwrap_or(Path::new("/"));
        let up = dir.parent().unwrap_or(Path::new("/"));
        let places = [dir.to_owned(), up.join("lib/forebay"), up.join("lib")];
        places.iter().map(|p| p.join(LIBRARY)).find(|p| p.is_file()).ok_or_else(|| {
            Fail::failed(format!(
                "{LIBRARY} is neither in {} nor in {} nor in {}; install it there, or set FOREBAY_PRELOAD to its path",
                places[0].display(), places[1].display(), places[2].display()
            ))
        })?
    };
    if found
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| b" :".contains(b))
    {
        return Err(Fail::failed(format!(
            "{} can't be preloaded: LD_PRELOAD allows no space and no colon; set FOREBAY_PRELOAD to another path",
            found.display()
        )));
    }
    Ok(found)
}

/// Removes from a command's environment the variables that give a program access to a pool.
pub fn without_pool(command: &mut Command) {
    for variable in ["LD_PRELOAD", "FOREBAY_NODE", "FOREBAY_DIR"] {
        command.env_remove(variable);
    }
}

/// Returns the command, ready to start: program, arguments, environment.
pub fn prepare(pool: &Arc<Pool>, command: &[OsString]) -> Result<Command, Fail> {
    let library = library()?;
    let config = pool.config();
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| Fail::usage("there is no program to run"))?;
    let mut prepared = if needs_pool(pool, program)? {
        // The kernel can't find the program's file, but a shell that sees the pool can.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "exec \"$0\" \"$@\""]).arg(program);
        shell
    } else {
        Command::new(program)
    };
    let mut preload = library.into_os_string().into_vec();
    if let Some(others) = std::env::var_os("LD_PRELOAD") {
        let others = others.into_vec();
        let others = others.split(|&b| b == b':' || b == b' ');
        for other in others.filter(|p| !p.is_empty() && !is_our_library(p)) {
            preload.push(b':');
            preload.extend_from_slice(other);
        }
    }
    prepared
        .args(arguments)
        .env("LD_PRELOAD", OsString::from_vec(preload))
        .env("FOREBAY_DIR", absolute_dir(pool))
        .env("FOREBAY_MOUNT", &config.mount)
        .env("FOREBAY_POOL", &config.name)
        .env("FOREBAY_HINTS", hints())
        .env_remove("FOREBAY_CLI_BARE");
    match config.member {
        Some(member) => prepared.env("FOREBAY_NODE", member.node.to_string()),
        None => prepared.env_remove("FOREBAY_NODE"),
    };
    cwd::hand_on(pool, &mut prepared);
    Ok(prepared)
}

/// Returns the value of FOREBAY_HINTS: by this number the preloaded library writes a hint once for
/// all programs of this command. A command inside of another one has that one's number.
fn hints() -> String {
    if fail::is_quiet() {
        return "off".into();
    }
    let outer = std::env::var("FOREBAY_HINTS").ok();
    outer.unwrap_or_else(|| {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let number = (u64::from(std::process::id()) << 32) ^ time.tv_nsec as u64;
        (number ^ (time.tv_sec as u64) << 16).to_string()
    })
}

/// Whether only a process that sees the pool can start the program. The answer is yes if the
/// program or a library that it needs lies in the pool, or if the preloaded library must print a
/// hint when the program starts.
fn needs_pool(pool: &Arc<Pool>, program: &OsStr) -> Result<bool, Fail> {
    if program.is_empty() {
        return Err(Fail::new(code::NOT_FOUND, "'': there is no such program"));
    }
    // An empty item of a list of directories, such as LD_LIBRARY_PATH, means the working directory.
    let is_inside = |text: &[u8]| {
        if text.is_empty() {
            cwd::is_in(pool)
        } else {
            paths::is_under(Path::new(OsStr::from_bytes(text)), pool)
        }
    };
    let leads_inside = |list: &[u8]| list.split(|b| b":; ".contains(b)).any(is_inside);
    let variables = ["LD_LIBRARY_PATH", "LD_PRELOAD"];
    let mut lists = variables.iter().filter_map(std::env::var_os);
    if lists.any(|list| leads_inside(list.as_bytes())) {
        return Ok(true);
    }
    let Some(file) = find_outside(pool, program) else {
        return Ok(true);
    };
    let Ok(file) = std::fs::File::open(file) else {
        return Ok(false);
    };
    Ok(forebay_elf::Elf::read(&file).is_some_and(|elf| {
        // The preloaded library prints a hint if a program makes system calls directly or needs
        // libasan.
        let special = elf.calls_directly(&file) || elf.needs(b"libasan.so");
        special || elf.texts.iter().any(|t| leads_inside(&t.text))
    }))
}

/// Returns the program's file by its path, or by the first match on PATH; None if it lies in the
/// pool.
fn find_outside(pool: &Arc<Pool>, program: &OsStr) -> Option<PathBuf> {
    let mount = &pool.config().mount;
    if program.as_bytes().contains(&b'/') {
        let begins_inside = Path::new(program).is_relative() && cwd::is_in(pool);
        let is_inside = begins_inside || paths::is_under(Path::new(program), pool);
        return (!is_inside).then(|| program.into());
    }
    let Some(path) = std::env::var_os("PATH") else {
        return Some(program.into());
    };
    for dir in std::env::split_paths(&path) {
        let candidate = dir.join(program);
        if dir.starts_with(mount) {
            let inside = paths::in_mount(candidate.as_os_str(), mount);
            let stat = Fs::new(pool.clone()).stat(&inside, true);
            if stat.is_ok_and(|s| s.mode & libc::S_IFMT == libc::S_IFREG && s.mode & 0o111 != 0) {
                return None;
            }
        } else if rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK).is_ok()
            && candidate.is_file()
        {
            return Some(candidate);
        }
    }
    Some(program.into())
}

/// Commands of shells for which no program exists.
const OF_SHELLS: [&str; 8] = [
    "cd", "export", "source", ".", "alias", "ulimit", "umask", "eval",
];

/// Returns the error for a program that couldn't be started, with the exit code that shells use.
pub fn cannot_start(program: &OsStr, error: &std::io::Error) -> Fail {
    let program = program.to_string_lossy();
    if error.kind() == std::io::ErrorKind::NotFound {
        let hint = if program.contains(' ') {
            "if that is a command line, write its words without quotes around them".to_owned()
        } else if OF_SHELLS.contains(&&*program) {
            format!("it belongs to shells: forebay exec -- sh -c '{program} ...'")
        } else {
            "check its name and PATH".to_owned()
        };
        return Fail::new(
            code::NOT_FOUND,
            format!("{program}: there is no such program; {hint}"),
        );
    }
    let hint = match error.raw_os_error() {
        Some(libc::EACCES) => "; make it executable: chmod +x",
        Some(libc::ENOEXEC) => "; does it begin with a #! line?",
        _ => "",
    };
    Fail::new(
        code::NOT_EXECUTABLE,
        format!("{program}: can't be executed: {error}{hint}"),
    )
}

pub fn exec(name: &str, a: &Exec) -> Result<u8, Fail> {
    let pool = open(name, a.node)?;
    let mut prepared = prepare(&pool, &a.command)?;
    if a.with_mount {
        mount::for_this_process(&pool)?;
    }
    programs::begin(&pool, std::process::id());
    // The program must not count as this process's use of the pool, so detach first.
    let _ = pool.store().recovery().detach();
    let error = prepared.exec();
    Err(cannot_start(&a.command[0], &error))
}
