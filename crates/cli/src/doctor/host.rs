//! Checks of this host: kernel, /proc, memory, limits, and the files installed beside `forebay`.

use super::Finding;
use crate::{exec, site};
use forebay_client::{Host, check_home, home};
use forebay_media::{format_size, memory};
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Oldest supported kernel, the first with pidfd_open(2). Major and minor version.
const KERNEL: (u32, u32) = (5, 3);
/// Size of the smallest useful pool. Bytes.
const LEAST: u64 = 64 << 20;
/// Number of descriptors that a daemon of a pool of several nodes needs: one for each connection
/// and file.
const DESCRIPTORS: u64 = 4096;
/// Default of the kernel's limit on mappings of a process.
const MAPPINGS: u64 = 65_530;

pub fn checks() -> Vec<Finding> {
    let mut all = vec![kernel(), proc(), shm(), pools(), ram()];
    all.extend(limits());
    all.extend([mappings(), library(), configuration()]);
    all
}

/// Parses a kernel's release: `6.8.0-45-generic` is (6, 8).
fn number(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel() -> Finding {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    of_release(&release)
}

fn of_release(release: &str) -> Finding {
    let why = "pidfd_open(2) and shared memory that can be reserved; Linux 5.3 or newer";
    let finding = Finding::ok("kernel", why, format!("Linux {release}"));
    match number(release) {
        Some(version) if version >= KERNEL => finding,
        Some(_) => finding.prevents("use a host with Linux 5.3 or newer"),
        None => finding.warns("make sure that this is Linux 5.3 or newer"),
    }
}

fn proc() -> Finding {
    let why = "tells living processes from dead ones, also those of others that use the pool";
    let ok = |found: &str| Finding::ok("/proc", why, found);
    if std::fs::metadata("/proc/self/stat").is_err() {
        return ok("this process isn't in it").prevents("mount a /proc where forebay runs");
    }
    match std::fs::metadata("/proc/1/stat") {
        Ok(_) => ok("shows all processes"),
        Err(_) => ok("hides other users' processes (hidepid)").warns(
            "pools of one user work; if several users share a pool, mount /proc with hidepid=0, \
             else a dead process counts as alive",
        ),
    }
}

fn free(path: &Path) -> Option<(u64, u64)> {
    let there = path.ancestors().find(|p| p.exists())?;
    let s = rustix::fs::statvfs(there).ok()?;
    Some((
        s.f_bavail.saturating_mul(s.f_frsize),
        s.f_blocks.saturating_mul(s.f_frsize),
    ))
}

fn configuration() -> Finding {
    let why = "defaults and limits for pools: the user's file, the site's";
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for file in site::files() {
        match file {
            Ok(path) => found.push(path.display().to_string()),
            Err(message) => wrong.push(message),
        }
    }
    if !wrong.is_empty() {
        return Finding::ok("forebay.toml", why, wrong.join("; "))
            .prevents("correct it; docs/reference/configuration.md has all keys");
    }
    let found = if found.is_empty() {
        "none; all options have their own defaults".into()
    } else {
        found.join(", ")
    };
    Finding::ok("forebay.toml", why, found)
}

fn shm() -> Finding {
    let why = "the data of memory media, and what all processes of a pool share";
    let path = Path::new("/dev/shm");
    let Some((left, size)) = free(path).filter(|_| path.is_dir()) else {
        return Finding::ok("/dev/shm", why, "isn't there")
            .prevents("mount a tmpfs at /dev/shm, or set FOREBAY_HOME to a directory in memory");
    };
    let found = format!("{} free of {}", format_size(left), format_size(size));
    let finding = Finding::ok("/dev/shm", why, found);
    if left < LEAST {
        return finding.prevents(
            "remove what is in it (forebay pools --clean), or enlarge it: \
             mount -o remount,size=8G /dev/shm; in Docker: --shm-size=8g",
        );
    }
    let ram = memory::host().map_or(0, |h| h.limit);
    if size < ram / 8 {
        finding.warns(
            "small beside the memory: for large pools enlarge it \
             (mount -o remount,size=50% /dev/shm; in Docker: --shm-size), or use files media",
        )
    } else {
        finding
    }
}

fn pools() -> Finding {
    let why = "the directory of this user's pools ($FOREBAY_HOME, else /dev/shm/forebay-UID)";
    let dir = home();
    let there = dir.ancestors().find(|p| p.exists()).unwrap_or(&dir);
    let may = rustix::fs::access(
        there,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    );
    let finding = Finding::ok("pools", why, dir.display().to_string());
    let refused = match may {
        Err(e) => Some(format!(
            "{}: {}",
            dir.display(),
            forebay_backing::explain(e)
        )),
        // Fails if other users could put their own pools into this directory.
        Ok(()) => check_home().err().map(|e| e.to_string()),
    };
    match refused {
        None => finding,
        Some(found) => Finding { found, ..finding }
            .prevents("set FOREBAY_HOME to a directory of your own, where nobody else can write"),
    }
}

fn ram() -> Finding {
    let why = "what memory media can take, within the control group (cgroup) of this job";
    let Some(left) = memory::left() else {
        return Finding::ok("memory", why, "unknown")
            .warns("give sizes: forebay up --media memory:SIZE");
    };
    let host = Host::look();
    let free = left.for_pools().saturating_sub(host.promised);
    let whose = match &left.group {
        Some(group) => format!("the control group {}", group.display()),
        None => "this host".into(),
    };
    let found = format!(
        "{} free for pools; the bound is {} of {whose}",
        format_size(free),
        format_size(left.limit)
    );
    let finding = Finding::ok("memory", why, found);
    if free < LEAST {
        finding.misses(
            "ask for more memory (Slurm: --mem), remove pools (forebay pools --clean), \
             or use files media: --media files:DIRECTORY:SIZE",
        )
    } else {
        finding
    }
}

fn limits() -> Vec<Finding> {
    let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |n| n.to_string());
    let files = getrlimit(Resource::Nofile);
    let why = "connections and open files of keepers and daemons (they use the hard limit)";
    let found = format!(
        "{} (ulimit -n), {} at most (ulimit -Hn)",
        shown(files.current),
        shown(files.maximum)
    );
    let finding = Finding::ok("open files", why, found);
    let files = if files.maximum.is_some_and(|n| n < DESCRIPTORS) {
        finding.warns(format!(
            "for pools of many nodes, raise the hard limit to {DESCRIPTORS} or more: \
             nofile in /etc/security/limits.conf"
        ))
    } else {
        finding
    };
    let space = getrlimit(Resource::As).current;
    let why = "each process of a pool maps its media into its address space";
    let found = match space {
        None => "unlimited (ulimit -v)".to_owned(),
        Some(n) => format!("{} (ulimit -v)", format_size(n)),
    };
    let finding = Finding::ok("addresses", why, found);
    let space = match space {
        None => finding,
        Some(_) => finding.warns(
            "lift it (ulimit -v unlimited), or keep it above all media plus what programs need",
        ),
    };
    vec![files, space]
}

fn mappings() -> Finding {
    let why = "mappings of a process; one that maps many files of a pool needs many";
    let path = "/proc/sys/vm/max_map_count";
    let number = std::fs::read_to_string(path).ok();
    let number = number.and_then(|text| text.trim().parse::<u64>().ok());
    let Some(number) = number else {
        return Finding::ok("mappings", why, "unknown").warns("look at sysctl vm.max_map_count");
    };
    let finding = Finding::ok("mappings", why, format!("{number} (vm.max_map_count)"));
    if number < MAPPINGS {
        finding.warns(format!("sysctl vm.max_map_count={MAPPINGS}"))
    } else {
        finding
    }
}

fn library() -> Finding {
    let why = "programs under forebay exec and run see the pool by this library (LD_PRELOAD)";
    match exec::library() {
        Err(e) => Finding::ok("library", why, "not found").prevents(e.message),
        Ok(path) => {
            let finding = Finding::ok("library", why, path.display().to_string());
            if path.with_file_name("libforebay_audit.so").is_file() {
                finding
            } else {
                finding.warns(
                    "libforebay_audit.so isn't beside it: programs with shared libraries in the \
                     pool fail; install it there",
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn kernels() {
        for (release, state) in [
            ("6.8.0-45-generic", State::Ok),
            ("5.3.0", State::Ok),
            ("5.14-rc1", State::Ok),
            ("5.2.21", State::Missing),
            ("4.18.0-513.el8.x86_64", State::Missing),
            ("next", State::Warning),
        ] {
            let finding = of_release(release);
            assert_eq!(finding.state, state, "{release}");
            assert_eq!(finding.needed, state == State::Missing);
            assert_eq!(finding.remedy.is_empty(), state == State::Ok);
        }
    }

    #[test]
    fn each_finding_says_why() {
        for finding in checks() {
            assert!(!finding.why.is_empty() && !finding.found.is_empty());
            assert_eq!(finding.remedy.is_empty(), finding.state == State::Ok);
        }
    }
}
