//! Rebuilds a pool's control region and its media's maps where these files can't be opened. The
//! content of region and maps is recovered from the records, or lost. Segments and records are
//! never changed here.

use crate::error::cant_look;
use crate::home::{is_absent, name_of};
use crate::{Place, PoolConfig, PoolError, PoolState, end_keeper};
use forebay_media::Medium;
use forebay_store::{Finding, Store};
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Rebuilds those files of a pool, or of one node, that can't be opened. Returns one finding for
/// each file that was rebuilt. Ends the keeper, if there is one.
///
/// # Errors
/// [`PoolError::Damaged`] if pool.json, records or segments are damaged or missing: these can't be
/// rebuilt. Also if a program still uses the pool.
pub fn mend_files(place: &Place) -> Result<Vec<Finding>, PoolError> {
    let dir = &place.dir;
    let mut findings = Vec::new();
    if place.state() == PoolState::Absent {
        return Err(PoolError::Absent(name_of(dir)));
    }
    let config = PoolConfig::read(dir)?;
    let name = &config.name;
    for (i, spec) in config.media.iter().enumerate() {
        let medium = config.medium_dir(dir, i);
        let map = config.map_path(dir, i);
        match Medium::open(i, spec.kind.clone(), &medium, &map, spec.capacity) {
            Ok(_) => continue,
            Err(e) if cant_look(e) => {
                return Err(PoolError::io("can't look at the medium in", &medium, e));
            }
            Err(_) => {}
        }
        alone(name, dir, &map)?;
        let tracks = config.journal_dir(dir).is_some();
        Medium::recreate_map(&medium, &map, spec.capacity, tracks)
            .map_err(|e| PoolError::io("can't rebuild the map of the medium in", &medium, e))?;
        findings.push(Finding {
            part: "space",
            what: format!("medium {i}: its map {} can't be used", map.display()),
            remedy: "it was rebuilt; all pages of files count as written".into(),
            repaired: true,
        });
    }
    let control = dir.join("control");
    let records = config.records_dir(dir);
    let opened = Store::open(&control, &records, config.record_bytes, Vec::new(), None);
    if let Err(e) = opened {
        if cant_look(e) {
            return Err(PoolError::io("can't look at", &control, e));
        }
        alone(name, dir, &control)?;
        let failed = |e| PoolError::io("can't make", &control, e);
        match rustix::fs::unlink(&control) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(failed(e)),
        }
        Store::create_control(&control, config.shards).map_err(failed)?;
        findings.push(Finding {
            part: "control",
            what: format!("the control region {} can't be used", control.display()),
            remedy: "it was rebuilt; files that were open are as of their last close or fsync"
                .into(),
            repaired: true,
        });
    }
    Ok(findings)
}

/// Checks that no process has `file` mapped, after ending the keeper.
fn alone(name: &str, dir: &Path, file: &Path) -> Result<(), PoolError> {
    end_keeper(dir)?;
    if is_absent(file)? {
        return Ok(());
    }
    let failed = |what: &Path, e: &std::io::Error| {
        let e = Errno::from_io_error(e).unwrap_or(Errno::IO);
        PoolError::io(
            "can't find out which processes use the pool, which a repair needs for itself, by",
            what,
            e,
        )
    };
    let file = std::fs::metadata(file).map_err(|e| failed(file, &e))?;
    let inode = format!(" {} ", file.ino());
    let me = rustix::process::geteuid().as_raw();
    let (mut closed, mut sees_itself) = (Vec::new(), false);
    for process in std::fs::read_dir("/proc").map_err(|e| failed(Path::new("/proc"), &e))? {
        let process = process.map_err(|e| failed(Path::new("/proc"), &e))?;
        let pid = process.file_name().to_string_lossy().into_owned();
        match pid.parse::<u32>() {
            Ok(pid) if pid == std::process::id() => {
                sees_itself = true;
                continue;
            }
            Ok(_) => {}
            Err(_) => continue,
        }
        let maps = match std::fs::read_to_string(process.path().join("maps")) {
            Ok(maps) => maps,
            Err(e) => match Errno::from_io_error(&e) {
                // The process has ended.
                Some(Errno::NOENT | Errno::SRCH) => continue,
                // The process belongs to another user, who can't reach the pool, or has more
                // privileges than this process.
                Some(Errno::ACCESS | Errno::PERM) => {
                    if process.metadata().is_ok_and(|m| m.uid() == me) {
                        closed.push(pid);
                    }
                    continue;
                }
                _ => return Err(failed(&process.path(), &e)),
            },
        };
        if maps.lines().any(|l| l.contains(&inode) && l.contains(name)) {
            return Err(PoolError::Invalid(format!(
                "the pool '{name}' is in use by process {pid}; a repair has to be alone: end it first"
            )));
        }
    }
    if !sees_itself {
        // /proc is missing, or shows another PID namespace.
        return Err(PoolError::Blind);
    }
    if !closed.is_empty() {
        forebay_store::process::write_notice(format_args!(
            "warning: can't find out whether process {} uses the pool '{name}', which a repair needs for itself",
            closed.join(", ")
        ));
    }
    Ok(())
}
