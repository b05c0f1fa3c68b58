//! `import` and `export`: turn files of a directory into collections, and collections into files.
//!
//! Collections in the pool are files, which all nodes that hold them stage. If the pool is also the
//! metadata store, nothing else is needed, since files carry their metadata. Otherwise this process
//! also reads and writes the metadata in etcd, and copies the bytes of attached directories. A
//! process may open a pool only once, so the session is closed before files are staged.

use super::records::Records;
use super::{At, FILES, NewAttributes, failed};
use crate::fail::{Fail, code};
use crate::output::{count, json, print_notice};
use crate::stage::{How, Way, summary, tell_troubles, transfer};
use crate::{found, paths};
use forebay_backing::{DirectoryStore, SlowStore, explain};
use forebay_client::PoolConfig;
use forebay_iov::meta::{Scope, check_changes, check_name};
use forebay_iov::{Change, Collection, Key, Meta, Options, Predicate, Record, Session, Workspace};
use forebay_posix::Fs;
use forebay_staging::{
    Failure, Names, Options as Staging, Progress, Report, Team, stage, user_attributes,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Number of collections that are created, and then filled, together.
const COLLECTIONS_PER_BATCH: usize = 256;
/// Size of one read or write. Bytes.
const BLOCK: usize = 1 << 20;
/// Maximum number of threads that copy through this process.
const THREADS: usize = 8;
/// Maximum number of failures, and of warnings, that this process adds to a report.
const LISTED: usize = 1000;

fn note(list: &mut Vec<Failure>, path: impl Into<String>, what: impl ToString) {
    if list.len() < LISTED {
        let (path, what) = (path.into(), what.to_string());
        list.push(Failure { path, what });
    }
}

fn fail(report: &mut Report, path: impl Into<String>, what: impl ToString) {
    report.failed += 1;
    note(&mut report.failures, path, what);
}

/// Adds the report of a staging to `report`.
fn add(report: &mut Report, staged: Report) {
    report.files += staged.files;
    report.directories += staged.directories;
    report.bytes += staged.bytes;
    report.moved_files += staged.moved_files;
    report.moved_bytes += staged.moved_bytes;
    report.unchanged += staged.unchanged;
    report.skipped += staged.skipped;
    report.failed += staged.failed;
    report.failures.extend(staged.failures);
    report.warnings.extend(staged.warnings);
    report.interrupted |= staged.interrupted;
    report.nodes.extend(staged.nodes);
}

/// Prints the report, and returns the exit code.
fn finish(mut report: Report, began: Instant, what: &str, as_json: bool) -> Result<u8, Fail> {
    report.seconds = began.elapsed().as_secs_f64();
    if as_json {
        json(&report)?;
    }
    tell_troubles(&report);
    if !as_json {
        print_notice(format!("{what}: {}", summary(&report)));
    }
    if report.complete() {
        Ok(code::OK)
    } else {
        Err(Fail::new(
            code::STAGE_OUT,
            format!("{what} is incomplete; repeat the command for the rest"),
        ))
    }
}

/// Stages the files `names` of a workspace's directory in the pool.
fn staged(pool: &str, way: &Way<'_>, names: Names) -> Result<Report, Fail> {
    let open = found::open_reaching(pool)?;
    transfer(&open, way, &How::default(), Some(names), None, &|| false)
        .map_err(|e| Fail::new(code::STAGE_OUT, e))
}

/// Fails if the directory is under the pool's prefix: this process would use the real directory of
/// that name instead.
fn check_outside(pool: &str, directory: &Path) -> Result<(), Fail> {
    let place = forebay_client::choose(pool, None).ok();
    let mount = place.and_then(|place| Some(PoolConfig::read(&place.dir).ok()?.mount));
    match mount.filter(|mount| paths::is_under_prefix(directory, mount)) {
        None => Ok(()),
        Some(mount) => Err(Fail::new(
            code::STAGE_OUT,
            format!(
                "{}: lies under the mount prefix {mount}, where only programs in the pool see anything; name a path of the file system",
                directory.display()
            ),
        )),
    }
}

// ---- import ----

/// Returns the names of the files that can become collections; reports the others.
fn listed(directory: &Path) -> Result<Vec<String>, Fail> {
    let cannot = |e| Fail::failed(format!("{}: can't be listed: {e}", directory.display()));
    let (mut names, mut left_out) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(directory).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let is_file = entry.file_type().map_err(cannot)?.is_file();
        match entry.file_name().into_string() {
            Ok(name) if is_file && check_name(&name).is_ok() => names.push(name),
            Ok(name) => left_out.push(name),
            Err(name) => left_out.push(name.to_string_lossy().into_owned()),
        }
    }
    names.sort();
    left_out.sort();
    for name in &left_out {
        print_notice(format!(
            "{name}: left out: only regular files whose names are UTF-8 and don't begin with '.' can be collections"
        ));
    }
    Ok(names)
}

pub(super) fn import(
    at: &At<'_>,
    workspace: &str,
    directory: &Path,
    new_attributes: &NewAttributes,
    into: Option<&str>,
    as_json: bool,
) -> Result<u8, Fail> {
    let began = Instant::now();
    let names = listed(directory)?;
    check_outside(at.pool, directory)?;
    let loaded = at.load(workspace)?;
    let into = chosen(at, loaded.session(), into)?;
    let what = format!("import of {}", count(names.len() as u64, "file"));
    let to = OsString::from(format!("/{workspace}"));
    let way = Way::In(directory, &to);
    let mut report = Report::default();
    if at.store.is_none() && into == FILES {
        drop(loaded);
        let only = names.iter().map(|name| name.clone().into_bytes()).collect();
        let staged = staged(at.pool, &way, only)?;
        let complete = staged.complete();
        add(&mut report, staged);
        let changes = new_attributes.changes();
        if complete && !changes.is_empty() {
            let workspace = at.load(workspace)?;
            for name in &names {
                let collection = Collection::open(&workspace, Key::Name(name)).map_err(failed)?;
                collection.set_meta(&changes).map_err(failed)?;
            }
        }
        return finish(report, began, &what, as_json);
    }
    let inside = import_records(
        &loaded,
        directory,
        &names,
        (new_attributes, &into),
        &mut report,
    )?;
    drop(loaded);
    if !inside.is_empty() {
        add(&mut report, staged(at.pool, &way, inside)?);
    }
    finish(report, began, &what, as_json)
}

/// Returns the back end of new collections.
fn chosen(at: &At<'_>, session: &Session, into: Option<&str>) -> Result<String, Fail> {
    let there: BTreeSet<String> = session.backends().into_iter().map(|(n, _)| n).collect();
    if let Some(into) = into {
        return if there.contains(into) && at.knows(into) {
            Ok(into.into())
        } else {
            Err(Fail::usage(format!(
                "--backend {into}: there is none of this name; attach its directory with --attach {into}=DIR"
            )))
        };
    }
    match at.attached.first() {
        _ if there.contains(FILES) => Ok(FILES.into()),
        Some((name, _)) => Ok(name.clone()),
        None => Err(found::open(at.pool, None)
            .err()
            .unwrap_or_else(|| Fail::failed("the pool has come up just now; repeat the command"))),
    }
}

/// A file that is imported as a collection.
struct File<'a> {
    name: &'a str,
    /// Record of the collection, if it exists already.
    record: Option<Record>,
    /// Metadata from the file and the command line.
    meta: Meta,
}

/// Creates the missing collections, sets the metadata of all, and fills those that aren't stored in
/// the pool. Returns the names of the collections in the pool.
fn import_records(
    workspace: &Workspace,
    directory: &Path,
    names: &[String],
    (new_attributes, into): (&NewAttributes, &str),
    report: &mut Report,
) -> Result<Names, Fail> {
    let known = Collection::search(workspace, &Predicate::everything()).map_err(failed)?;
    let mut known: BTreeMap<String, Record> =
        known.into_iter().map(|r| (r.name.clone(), r)).collect();
    let mut files = Vec::new();
    for name in names {
        let record = known.remove(name);
        let reached = record.as_ref().map(|r| Collection::reaches(workspace, r));
        if let Some(Err(error)) = reached {
            fail(report, name, error);
            continue;
        }
        match metadata(&directory.join(name), name, report) {
            Err(e) => fail(report, name, format!("can't be read: {}", explain(e))),
            Ok(mut meta) => {
                meta.extend(new_attributes.meta());
                files.push(File { name, record, meta });
            }
        }
    }
    let mut inside = Names::new();
    for some in files.chunks(COLLECTIONS_PER_BATCH) {
        let made = make(workspace, some, into, report);
        let mut through = Vec::new();
        for (file, made) in some.iter().zip(made) {
            let ready = match made {
                Made::Failed => continue,
                Made::There(record) => declare_meta(workspace, &record, &file.meta)
                    .map(|()| (record.backend == FILES, None)),
                Made::New(collection) if into == FILES => collection.close().map(|()| (true, None)),
                Made::New(collection) => Ok((false, Some(collection))),
            };
            match ready {
                Ok((true, _)) => _ = inside.insert(file.name.into()),
                Ok((false, new)) => through.push((file.name, new)),
                Err(e) => fail(report, file.name, e),
            }
        }
        fill_all(workspace, directory, &through, report);
    }
    Ok(inside)
}

/// Returns the attributes `user.*` of a file as metadata; warns of invalid ones.
fn metadata(path: &Path, name: &str, report: &mut Report) -> Result<Meta, Errno> {
    let path = path.as_os_str().as_bytes();
    let place = DirectoryStore::beside(path)?;
    let mut meta = Meta::new();
    let attributes = place.at(path);
    for attribute in attributes.xattrs()? {
        let value = match attributes.xattr(&attribute) {
            // The attribute was removed after it was listed.
            Err(Errno::NODATA) => continue,
            value => value?,
        };
        let shown = String::from_utf8_lossy(&attribute).into_owned();
        let key = attribute.strip_prefix(b"user.").unwrap_or(&attribute);
        let texts = (String::from_utf8(key.into()), String::from_utf8(value));
        let why = match texts {
            (Ok(key), Ok(value)) => match check_changes([(&*key, Some(&*value))]) {
                Ok(()) => {
                    meta.insert(key, value);
                    continue;
                }
                Err(e) => e.to_string(),
            },
            _ => "it isn't UTF-8".into(),
        };
        let text = format!("its attribute {shown} can't be metadata, and was left out: {why}");
        note(&mut report.warnings, name, text);
    }
    Ok(meta)
}

/// The collection that belongs to a file.
enum Made {
    There(Record),
    New(Collection),
    Failed,
}

/// Creates the collections of those files that have none, in one call. Uses no batch: its threads
/// may still use the session after the call.
fn make(workspace: &Workspace, files: &[File<'_>], into: &str, report: &mut Report) -> Vec<Made> {
    let missing = files.iter().filter(|file| file.record.is_none());
    let new = missing.map(|file| {
        let options = Options {
            meta: file.meta.clone(),
            backend: Some(into.into()),
            ..Options::default()
        };
        (file.name, options)
    });
    let mut made = Collection::create_all(workspace, new.collect()).into_iter();
    let one = |file: &File<'_>| match &file.record {
        Some(record) => Made::There(record.clone()),
        None => match made.next() {
            Some(Ok(collection)) => Made::New(collection),
            Some(Err(e)) => {
                let hint = match e.errno() {
                    Errno::EXIST => {
                        "; unless somebody else imports it, remove the file of this name, which no collection here has"
                    }
                    _ => "",
                };
                fail(report, file.name, format!("{e}{hint}"));
                Made::Failed
            }
            None => Made::Failed,
        },
    };
    files.iter().map(one).collect()
}

/// Sets those metadata of a collection that differ from its record.
fn declare_meta(
    workspace: &Workspace,
    record: &Record,
    meta: &Meta,
) -> Result<(), forebay_iov::Error> {
    let new = meta
        .iter()
        .filter(|(key, value)| record.meta.get(*key) != Some(value));
    let changes: Vec<Change> = new.map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
    if changes.is_empty() {
        return Ok(());
    }
    check_changes(changes.iter().map(|(k, v)| (&**k, v.as_deref())))?;
    let store = workspace.session().store();
    store
        .update(Scope::In(workspace.uuid()), record.uuid, &changes)
        .map(|_| ())
}

/// Fills collections from their files, on several threads.
fn fill_all(
    workspace: &Workspace,
    directory: &Path,
    list: &[(&str, Option<Collection>)],
    report: &mut Report,
) {
    let next = AtomicUsize::new(0);
    let shared = Mutex::new(report);
    let work = || {
        let mut buffers = (vec![0; BLOCK], vec![0; BLOCK]);
        while let Some((name, new)) = list.get(next.fetch_add(1, Relaxed)) {
            let filled = fill(
                workspace,
                &directory.join(name),
                name,
                new.as_ref(),
                &mut buffers,
            );
            let mut report = shared.lock().unwrap_or_else(|e| e.into_inner());
            report.files += 1;
            match filled {
                Ok((size, moved)) => {
                    report.bytes += size;
                    if moved {
                        report.moved_files += 1;
                        report.moved_bytes += size;
                    } else {
                        report.unchanged += 1
                    }
                }
                Err(what) => fail(&mut report, *name, what),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(THREADS).min(list.len()) {
            scope.spawn(work);
        }
        work();
    });
}

/// Fills a collection from its file, unless it has these bytes already. Returns the number of
/// bytes, and whether they were written.
fn fill(
    workspace: &Workspace,
    path: &Path,
    name: &str,
    new: Option<&Collection>,
    (here, there): &mut (Vec<u8>, Vec<u8>),
) -> Result<(u64, bool), String> {
    let cannot = |e| format!("can't be read: {}", explain(e));
    let of_verb = |e: forebay_iov::Error| e.to_string();
    let path = path.as_os_str().as_bytes();
    let place = DirectoryStore::beside(path).map_err(cannot)?;
    let file = place.open(path, false).map_err(cannot)?;
    let opened;
    let collection = match new {
        Some(new) => new,
        None => {
            opened = Collection::open(workspace, Key::Name(name)).map_err(of_verb)?;
            &opened
        }
    };
    let size = file.meta().map_err(cannot)?.size;
    let mut same = || -> Result<bool, String> {
        if collection.size().map_err(of_verb)? != file.meta().map_err(cannot)?.size {
            return Ok(false);
        }
        let mut at = 0;
        loop {
            let n = file.read_at(here, at).map_err(cannot)?;
            let m = collection.read(&mut there[..n], at).map_err(of_verb)?;
            if here[..n] != there[..m] {
                return Ok(false);
            }
            if n == 0 {
                return Ok(true);
            }
            at += n as u64;
        }
    };
    let moved = new.is_some() || !same()?;
    if moved {
        collection.truncate(0).map_err(of_verb)?;
        let mut block = vec![0; BLOCK];
        let mut at = 0;
        loop {
            let n = file.read_at(&mut block, at).map_err(cannot)?;
            if n == 0 {
                break;
            }
            collection.write(&block[..n], at).map_err(of_verb)?;
            at += n as u64;
        }
        if !same()? {
            return Err("has changed while it was copied, or what arrived is not what left".into());
        }
    }
    collection.close().map_err(of_verb)?;
    Ok((size, moved))
}

// ---- export ----

pub(super) fn export(
    at: &At<'_>,
    workspace: &str,
    directory: &Path,
    predicate: &str,
    as_json: bool,
) -> Result<u8, Fail> {
    let began = Instant::now();
    let wanted = Predicate::parse(predicate).map_err(failed)?;
    check_outside(at.pool, directory)?;
    let loaded = at.load(workspace)?;
    let found = Collection::search(&loaded, &wanted).map_err(failed)?;
    let what = format!("export of {}", count(found.len() as u64, "collection"));
    if let Some(other) = found.iter().find(|r| !at.knows(&r.backend)) {
        return Err(Fail::failed(format!(
            "'{}' has its bytes in the back end '{}', which only the program knows that made it; name its directory with --attach {}=DIR, or leave \
             it out by a predicate",
            other.name, other.backend, other.backend
        )));
    }
    let mut report = Report::default();
    let mut reached = found;
    reached.retain(|record| match Collection::reaches(&loaded, record) {
        Ok(()) => true,
        Err(error) => {
            fail(&mut report, &record.name, error);
            false
        }
    });
    let (inside, outside): (Vec<_>, Vec<_>) = reached.into_iter().partition(|r| r.backend == FILES);
    if outside.is_empty() {
        drop(loaded);
    } else {
        // The session ends here: no later step uses it.
        through(loaded, outside, directory, &mut report)?;
    }
    if at.store.is_none() {
        if !inside.is_empty() || report.files == 0 {
            add(
                &mut report,
                export_files(at, workspace, directory, &inside)?,
            );
        }
    } else if !inside.is_empty() {
        let there = files_of(at.pool, workspace)?;
        let (inside, lost): (Vec<_>, Vec<_>) = inside
            .into_iter()
            .partition(|r| there.contains(r.name.as_bytes()));
        for record in lost {
            let text = format!(
                "its bytes aren't in the pool: there is no file /{workspace}/{}",
                record.name
            );
            fail(&mut report, record.name, text);
        }
        if !inside.is_empty() {
            add(
                &mut report,
                export_files(at, workspace, directory, &inside)?,
            );
            write_metadata(inside, directory, &mut report)?;
        }
    }
    finish(report, began, &what, as_json)
}

/// Exports collections that aren't stored in the pool, through this process. Compares contents with
/// existing files, since collections have no times.
fn through(
    workspace: Workspace,
    records: Vec<Record>,
    directory: &Path,
    report: &mut Report,
) -> Result<(), Fail> {
    let names = records.iter().map(|r| r.name.clone().into_bytes());
    let options = Staging {
        checksum: true,
        only: Some(names.collect()),
        ..Staging::stage_out()
    };
    let records = Records::new(Some(workspace), records);
    let to = directory.as_os_str().as_bytes();
    let (progress, team) = (Progress::default(), Team::default());
    let place = place_of(directory)?;
    let staged = stage(&records, b"/", &place, to, &options, &progress, &team);
    add(report, staged.map_err(|e| Fail::new(code::STAGE_OUT, e))?);
    Ok(())
}

fn place_of(directory: &Path) -> Result<DirectoryStore, Fail> {
    DirectoryStore::of(directory.as_os_str().as_bytes()).map_err(|e| {
        let why = explain(e);
        Fail::failed(format!("{} can't be reached: {why}", directory.display()))
    })
}

fn export_files(
    at: &At<'_>,
    workspace: &str,
    directory: &Path,
    records: &[Record],
) -> Result<Report, Fail> {
    let from = OsString::from(format!("/{workspace}"));
    let only: Names = records
        .iter()
        .map(|r| r.name.clone().into_bytes())
        .collect();
    staged(at.pool, &Way::Out(&from, directory), only)
}

/// Returns the names of a workspace's files in the pool.
fn files_of(pool: &str, workspace: &str) -> Result<Names, Fail> {
    let fs = Fs::for_staging(found::open(pool, None)?);
    match fs.list(format!("/{workspace}").as_bytes()) {
        Ok(entries) => Ok(entries
            .into_iter()
            .filter(|e| e.kind == libc::S_IFREG)
            .map(|e| e.name)
            .collect()),
        Err(Errno::NOENT) => Ok(Names::new()),
        Err(e) => Err(Fail::failed(format!(
            "/{workspace}: can't be listed: {}",
            explain(e)
        ))),
    }
}

/// Writes the metadata that collections have in etcd as attributes of the staged files.
fn write_metadata(records: Vec<Record>, directory: &Path, report: &mut Report) -> Result<(), Fail> {
    let place = place_of(directory)?;
    let names: Vec<String> = records.iter().map(|r| r.name.clone()).collect();
    let records = Records::new(None, records);
    for name in names {
        let (path, from) = (directory.join(&name), format!("/{name}"));
        let to = path.as_os_str().as_bytes();
        match user_attributes(&*records.at(from.as_bytes()), &*place.at(to)) {
            Ok(false) => {}
            Ok(true) => {
                let what = "its extended attributes can't be kept here, and were left out";
                note(&mut report.warnings, path.display().to_string(), what);
            }
            // The file wasn't staged; the report says so already.
            Err((_, Errno::NOENT)) if report.failed > 0 => {}
            Err((step, e)) => {
                let text = format!("{step} failed: {}", explain(e));
                fail(report, path.display().to_string(), text);
            }
        }
    }
    Ok(())
}
